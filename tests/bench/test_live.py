"""`evctl bench live`: what its rows say, and that a run is what it claims."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from evctl.bench.live.report import rows, spread
from evctl.bench.live.run import ARMS, BASE, Plan
from evctl.bench.live.waits import most_loaded_over_average
from evctl.bench.report import BenchRun, Timing
from evctl.config.cluster import ClusterConfig, mistakes_of
from evctl.core.errors import UsageError


def run(policy: str, seed: int, e2e_s: float, failed: int = 0) -> BenchRun:
    return BenchRun(policy=policy, seed=seed, e2e_s=Timing(e2e_s, e2e_s, e2e_s), failed=failed)


def test_another_policy_that_is_faster_fails_its_row() -> None:
    runs = [run("predicted", 1, 2.0), run("predicted", 2, 4.0)]
    runs += [run("session", 1, 2.9), run("session", 2, 2.9), run("round-robin", 1, 3.5)]
    found = {row.name: row for row in rows(runs, "predicted")}
    assert found["mean E2E, predicted"].value == 3.0
    assert found["mean E2E, predicted"].ok is UNSET
    assert found["mean E2E, session"].ok is False
    assert found["mean E2E, round-robin"].ok is True
    assert found["mean E2E, session"].ratio == pytest.approx(2.9 / 3.0)


def test_our_own_switches_may_be_faster() -> None:
    runs = [run("predicted", 1, 2.0), run("predicted+both", 1, 1.0)]
    found = {row.name: row for row in rows(runs, "predicted")}
    assert found["mean E2E, predicted+both"].ok is UNSET
    assert found["mean E2E, predicted+both"].ratio == 0.5


def test_a_failed_request_fails_the_bench() -> None:
    found = {row.name: row for row in rows([run("predicted", 1, 2.0, failed=1)], "predicted")}
    assert found["failed, predicted"].ok is False


def test_spread_needs_two_seeds() -> None:
    runs = [run("predicted", 1, 2.0), run("predicted", 2, 4.0)]
    assert spread(runs[:1], "predicted", lambda r: r.e2e_s.mean) is None
    assert spread(runs, "predicted", lambda r: r.e2e_s.mean) == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ({"a": (10, 10.0), "b": (10, 30.0)}, 1.5),
        ({"a": (30, 30.0), "b": (10, 30.0)}, 2.0),
        ({"a": (4, 8.0), "b": (0, 0.0)}, 1.0),
        ({"a": (4, 0.0)}, None),
        ({}, None),
    ],
    ids=["even count", "uneven count", "idle node", "no wait", "nothing"],
)
def test_most_loaded_over_average(
    waits: dict[str, tuple[int, float]], expected: float | None
) -> None:
    found = most_loaded_over_average(waits)
    assert found is None if expected is None else found == pytest.approx(expected)


def test_a_policy_that_there_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="fastest"):
        Plan(arms=("predicted", "fastest")).check()
    Plan(arms=tuple(ARMS)).check()


@pytest.mark.parametrize("arm", ARMS)
def test_every_policy_is_a_cluster_that_can_be(arm: str) -> None:
    """Keys that the cluster file does not know would fail at `up`, minutes later."""
    config = {"name": "x", "nodes": 4, "split": "3P1D", **BASE, **ARMS[arm]}
    found = ClusterConfig.model_validate(config)
    assert not mistakes_of(found)
    assert found.warm_up_s == 0.0, "in warm-up every node serves both phases"
