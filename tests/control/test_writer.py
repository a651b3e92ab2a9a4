"""The writer goes on: after a planner that failed, and after a step that did."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from evctl.control.journal import FORMAT, Journal, JournalHeader
from evctl.control.replay import replay
from evctl.control.writer import RETRY_S, Writer
from evctl.core.effects import AnyEffect, Decided, Notice
from evctl.core.events import Event, NodeJoined, NodeReport, RequestArrived, Tick
from evctl.policy import planning
from evctl.policy.state import ClusterState, PolicyConfig


class Desk:
    """A writer with a clock of its own; no loop runs, so its wish for ticks is only noted."""

    def __init__(self, journal: Path) -> None:
        config = PolicyConfig(("n1", "n2"), "1P1D")
        self.now_s = 100.0
        self.done: list[AnyEffect] = []
        self.problems: list[str] = []
        self.wished_s: list[float | None] = []
        self.state = ClusterState(config)
        self.journal = Journal(journal, JournalHeader(FORMAT, 1, 0, 100.0, 0.0, config))
        self.writer = Writer(self.state, lambda: self.now_s, self.journal, self.done.append)
        self.writer.on_problem = self.problems.append
        self.writer._schedule = (  # type: ignore[method-assign]
            lambda next_tick_s, now_s: self.wished_s.append(next_tick_s)
        )
        for name in self.state.nodes:
            self.feed(NodeJoined(name, "b", 64, 16, 8, 4096))

    def feed(self, event: Event) -> None:
        self.writer.feed(event)


def fails(*_: object, **__: object) -> None:
    raise ValueError(f"a bug of {object()!r}")


def test_a_planner_that_fails_is_logged_and_its_journal_replays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(tmp_path)
    monkeypatch.setattr(planning, "_look", fails)
    desk.now_s += 61.0
    with caplog.at_level(logging.ERROR):
        desk.feed(RequestArrived("r1", "t", None, 8, 4, b"root", b""))
    assert "r1" in desk.state.requests
    assert desk.problems == []
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    (told,) = [effect for effect in desk.done if isinstance(effect, Decided)]
    assert told.decision.verdict == "failed"
    assert any(isinstance(e, Notice) and "EV-9005" in e.what for e in desk.done)
    desk.now_s += 1.0
    desk.feed(NodeReport("n1", "b", 1, 0, 0, 0, 0, 8))
    steps = desk.writer.steps
    desk.journal.close()
    report = replay(tmp_path)
    assert report.equal, report
    assert (report.steps, report.tail) == (steps, "")


def test_after_a_step_that_failed_there_is_a_next_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(tmp_path)
    monkeypatch.setattr("evctl.control.writer.step", fails)
    desk.now_s += 1.0
    desk.feed(Tick())
    desk.journal.close()
    assert any("EV-9001" in problem for problem in desk.problems)
    assert desk.wished_s[-1] == desk.now_s + RETRY_S
