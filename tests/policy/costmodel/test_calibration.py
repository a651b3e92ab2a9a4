"""When a fit is due, when the model is frozen, and when it is opened again."""

from __future__ import annotations

import itertools
import random

import msgspec

from evctl.core.costs import Coefficients
from evctl.core.split import Phase
from evctl.policy.costmodel.calibration import CalibrationLimits, NodeCalibration

from .generated import TRUTH, decode, prefill

LIMITS = CalibrationLimits(warm_up_s=60.0)


def run(
    node: NodeCalibration, start_s: float, seconds: float, truth: Coefficients = TRUTH
) -> list[tuple[float, str]]:
    """Ten iterations a second of both kinds; what was said, and when."""
    rng = random.Random(1)
    said = []
    for index in range(int(seconds * 10)):
        now_s = start_s + index / 10
        sample = (prefill if index % 2 else decode)(truth, rng, 0.05)
        if word := node.observe(now_s, sample):
            said.append((now_s, word))
    return said


def slower(share: float) -> Coefficients:
    terms = {t: getattr(TRUTH, t) * share for t in TRUTH.__struct_fields__ if t.endswith("_s")}
    return msgspec.structs.replace(TRUTH, **terms)


def test_a_fit_is_due_after_the_warm_up_and_then_with_every_window() -> None:
    said = run(NodeCalibration(LIMITS), 1000.0, 80.0)
    assert {word for _, word in said} == {"fit"}
    assert 1060.0 <= said[0][0] < 1065.2
    assert [round(b[0] - a[0]) for a, b in itertools.pairwise(said)] == [5] * (len(said) - 1)


def test_warm_up_begins_with_the_first_iteration_not_with_the_node() -> None:
    node = NodeCalibration(LIMITS)
    assert run(node, 0.0, 0.1) == []
    other = NodeCalibration(LIMITS)
    assert run(other, 5000.0, 59.0) == []


def test_a_model_is_frozen_while_it_fits() -> None:
    node = NodeCalibration(LIMITS)
    run(node, 0.0, 70.0)
    node.adopt(TRUTH)
    assert run(node, 70.0, 900.0) == []
    assert not node.open
    assert node.off is not None
    assert abs(node.off) < 0.05
    assert len(node.windows.closed) < 100


def test_a_residual_over_15_per_cent_for_5_minutes_opens_it_again() -> None:
    node = NodeCalibration(LIMITS)
    node.adopt(TRUTH)
    said = run(node, 0.0, 330.0, slower(1.3))
    assert said[0][1] == "drift"
    assert 300.0 <= said[0][0] < 315.0
    assert said[1][1] == "fit"
    assert {row.start_s >= 0.0 for row in node.windows.closed} == {True}
    assert sum(row.iterations for row in node.windows.closed) > 2500


def test_a_short_or_small_deviation_does_not() -> None:
    node = NodeCalibration(LIMITS)
    node.adopt(TRUTH)
    assert run(node, 0.0, 250.0, slower(1.5)) == []
    assert run(node, 250.0, 30.0) == []
    assert run(node, 280.0, 250.0, slower(1.5)) == []
    assert run(node, 530.0, 30.0) == []
    assert run(node, 560.0, 900.0, slower(1.1)) == []


def test_a_borrowed_phase_is_fitted_after_as_much_work_in_it_as_in_a_warm_up() -> None:
    node = NodeCalibration(LIMITS)
    run(node, 0.0, 70.0)
    node.adopt(TRUTH, frozenset({Phase.DECODE}))
    assert {row.phase for row in node.rows} == {Phase.DECODE}  # what was seen of it stays
    node = NodeCalibration(LIMITS)
    node.adopt(TRUTH, frozenset({Phase.DECODE}))
    said = run(node, 100.0, 80.0)
    assert {word for _, word in said} == {"fit"}
    assert 160.0 <= said[0][0] < 165.2
    assert {row.phase for row in node.rows} == {Phase.DECODE}  # the other is frozen
    node.adopt(TRUTH)
    assert run(node, 180.0, 200.0) == []


def test_two_bad_windows_around_an_idle_hour_are_no_drift() -> None:
    node = NodeCalibration(LIMITS)
    node.adopt(TRUTH)
    assert run(node, 0.0, 11.0, slower(2.0)) == []
    assert run(node, 3600.0, 11.0, slower(2.0)) == []


def test_the_switch_turns_it_off() -> None:
    node = NodeCalibration(msgspec.structs.replace(LIMITS, drift=False))
    node.adopt(TRUTH)
    assert run(node, 0.0, 900.0, slower(2.0)) == []
