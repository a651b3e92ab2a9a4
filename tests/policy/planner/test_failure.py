"""A bug in the planner costs it a window: never the event of that step, nor what replays."""

from __future__ import annotations

from typing import Any

import pytest

from evctl.control.journal import encode_effects
from evctl.core.branches import BranchSignal
from evctl.core.effects import Decided, Notice, SplitWritten
from evctl.core.events import RequestArrived, Tick
from evctl.policy import planning
from evctl.policy.planner.meter import Meter
from evctl.policy.state import ClusterState, step
from tests.policy.cluster import of
from tests.policy.planner.test_planning import Flow


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(*_: object, **__: object) -> Any:
        raise ZeroDivisionError(f"of {object()!r}")  # an address: no two runs say the same

    monkeypatch.setattr(planning, "judge", judge)


def test_the_event_of_the_step_counts_and_the_failure_is_a_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Flow()
    broken(monkeypatch)
    cluster.go(9.4)
    cluster.now_s = 110.0  # the window ends with the arrival itself
    dispatched = cluster.arrive("late", 40, branch=BranchSignal("b9"))
    assert isinstance(cluster.fed[-1][1], RequestArrived)
    assert dispatched.request_id == "late"
    assert "late" in cluster.state.requests
    (decision,) = cluster.decided()
    assert decision.verdict == "failed"
    assert "EV-9005" in decision.why
    assert "ZeroDivisionError in evctl.policy.planning._decide" in decision.why
    assert cluster.state.planner.decisions[-1] == decision
    assert isinstance(cluster.last and cluster.last.failure, ZeroDivisionError)
    cluster.now_s += 0.05
    cluster.decode("late")


def test_it_is_told_once_and_tried_again_with_each_window(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Flow()
    with monkeypatch.context() as context:
        broken(context)
        decisions = cluster.go(40.0)
    assert [d.verdict for d in decisions] == ["failed"] * 4
    assert [d.number for d in decisions] == [1, 2, 3, 4]
    told = [e for e in of(cluster.log, Notice) if "EV-9005" in e.what]  # type: ignore[union-attr]
    assert [e.level for e in told] == ["fail"]  # type: ignore[union-attr]
    assert not of(cluster.log, SplitWritten)
    assert [d.verdict for d in cluster.go(12.0)] == ["move"]
    assert cluster.last is not None
    assert cluster.last.failure is None


def test_one_that_cannot_even_measure_does_not_ask_for_ticks_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Flow()
    monkeypatch.setattr(Meter, "_record", lambda *_: 1 / 0)
    cluster.now_s += 5.0
    cluster.beat()
    cluster.feed(Tick())
    assert cluster.last is not None
    assert cluster.last.next_tick_s is not None
    assert cluster.last.next_tick_s > cluster.now_s
    assert len(of(cluster.log, Decided)) == 1


def test_the_same_events_give_the_same_bytes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Flow()
    broken(monkeypatch)
    cluster.go(25.0)
    assert "failed" in [d.verdict for d in cluster.decided()]
    again = ClusterState(cluster.config)
    effects = [
        effect for now_s, event in cluster.fed for effect in step(again, event, now_s).effects
    ]
    assert encode_effects(tuple(effects)) == encode_effects(tuple(cluster.log))
