"""Nodes that are alike lend each other the terms of a phase that one of them never ran."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
import pytest

from evctl.core.costs import Coefficients
from evctl.core.split import Phase
from evctl.policy.costmodel.borrowing import borrow, merged
from evctl.policy.costmodel.fit import Half, ModelShape, fit

from .generated import TRUTH, rows_of


def half(phase: Phase, seconds: float = 120.0, share: float = 1.0) -> Coefficients:
    """Fitted to one phase alone; its times are `share` of the truth."""
    truth = msgspec.structs.replace(
        TRUTH, **{t: getattr(TRUTH, t) * share for t in TRUTH.__struct_fields__ if t[2:] == "_s"}
    )
    rows = [row for row in rows_of(truth, 1, seconds=seconds) if row.phase is phase]
    found = fit(rows, ModelShape())
    assert isinstance(found, Half), found
    assert found.phase is phase
    return found.coefficients


PREFILL, DECODE = half(Phase.PREFILL), half(Phase.DECODE)


def test_half_a_fit_says_which_half_and_what_is_missing() -> None:
    rows = [row for row in rows_of(TRUTH, 1) if row.phase is Phase.DECODE]
    found = fit(rows, ModelShape())
    assert isinstance(found, Half)
    assert (found.phase, found.why) == (Phase.DECODE, "prefill: 0 of 24 iterations")
    assert found.coefficients.windows[0] == 0
    assert found.coefficients.windows[1] > 10
    assert found.coefficients.d2_s == pytest.approx(TRUTH.d2_s, rel=0.1)
    assert found.coefficients.residual < 0.1  # of that half alone


def test_two_halves_make_a_whole_with_its_own_error_bars() -> None:
    whole = merged(PREFILL, msgspec.structs.replace(DECODE, unidentified=("c3", "d1")))
    terms = (whole.c0_s, whole.c1_s, whole.c2_s, whole.c3_s)
    assert terms == (PREFILL.c0_s, PREFILL.c1_s, PREFILL.c2_s, PREFILL.c3_s)
    assert (whole.d0_s, whole.d2_s) == (DECODE.d0_s, DECODE.d2_s)
    assert whole.errors == PREFILL.errors[:4] + DECODE.errors[4:]
    assert whole.unidentified == ("d1",)
    assert whole.windows == (PREFILL.windows[0], DECODE.windows[1])
    assert whole.residual == max(PREFILL.residual, DECODE.residual)
    assert whole.context_tokens == DECODE.context_tokens
    assert all(math.isfinite(error) for error in whole.errors[:3])


def test_a_node_keeps_what_it_knows_and_borrows_the_rest() -> None:
    alike = {"n1": {Phase.PREFILL: PREFILL}, "n2": {Phase.DECODE: DECODE}, "n3": {}}
    first = borrow("n1", alike, {})
    assert first is not None
    assert (first.lenders, first.coefficients) == ({Phase.DECODE: "n2"}, merged(PREFILL, DECODE))
    third = borrow("n3", alike, {})
    assert third is not None
    assert third.lenders == {Phase.PREFILL: "n1", Phase.DECODE: "n2"}


def test_own_terms_win_and_a_whole_model_borrows_nothing() -> None:
    own = {Phase.PREFILL: PREFILL, Phase.DECODE: DECODE}
    assert borrow("n1", {"n1": own, "n2": own}, {}) is None
    slow = half(Phase.PREFILL, share=3.0)
    loan = borrow("n1", {"n1": {Phase.PREFILL: slow}, "n2": own}, {})
    assert loan is not None
    assert loan.coefficients.c1_s == slow.c1_s


def test_half_a_model_is_none_while_nobody_knows_the_other_phase() -> None:
    assert (
        borrow("n1", {"n1": {Phase.PREFILL: PREFILL}, "n2": {Phase.PREFILL: PREFILL}}, {}) is None
    )


def test_who_saw_the_most_lends_and_goes_on_lending() -> None:
    longer = half(Phase.DECODE, seconds=300.0)
    alike: dict[str, Mapping[Phase, Coefficients]] = {
        "n1": {Phase.PREFILL: PREFILL},
        "n2": {Phase.DECODE: DECODE},
        "n3": {Phase.DECODE: DECODE},
    }
    among_equals = borrow("n1", alike, {})
    alike["n4"] = {Phase.DECODE: longer}
    by_windows = borrow("n1", alike, {})
    as_before = borrow("n1", alike, {Phase.DECODE: "n3"})
    gone = borrow("n1", alike, {Phase.DECODE: "n9"})
    lent = [loan and loan.lenders[Phase.DECODE] for loan in (among_equals, by_windows, as_before)]
    assert lent == ["n2", "n4", "n3"]
    assert gone == by_windows
