"""Overrides: two operators at once, holds that end, releases, and what a restart knows of them."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from evctl.control.overrides import Overrides
from evctl.control.plane import ControlPlane
from evctl.control.statedir import HeldRoles, StateDirectory
from evctl.control.writer import Writer
from evctl.core.effects import AnyEffect, SplitWritten, TransitionEnded
from evctl.core.errors import ConflictError, EvctlError, RefusedError
from evctl.core.events import (
    Event,
    FirstToken,
    FromNode,
    NodeJoined,
    PrefillStarted,
    RequestArrived,
    Tick,
)
from evctl.core.split import parse_split
from evctl.core.status import SplitWrite
from evctl.policy import transition
from evctl.policy.state import ClusterState, PolicyConfig
from evctl.policy.turn import StepResult, Turn
from tests.control.fake_engine import write_model
from tests.control.state import make_state

WALL_S = 1_800_000_000.0


class Desk:
    """Overrides over a writer with a clock of its own; no loop runs, so ticks come by hand."""

    def __init__(self, root: Path, **config: object) -> None:
        names = ("n1", "n2", "n3")
        self.now_s = 100.0
        self.told: list[AnyEffect] = []
        self.problems: list[str] = []
        self.directory = StateDirectory(root)
        self.state = ClusterState(PolicyConfig(names, "2P1D", **config))  # type: ignore[arg-type]
        self.writer = Writer(self.state, lambda: self.now_s, None, self.told.append)
        self.writer.on_problem = self.problems.append
        self.writer._schedule = lambda *_: None  # type: ignore[method-assign]
        self.overrides = Overrides(
            self.writer,
            self.directory,
            lambda: self.now_s,
            120.0,
            wall_s=lambda: WALL_S + self.now_s,
        )
        for name in names:
            self.writer.feed(NodeJoined(name, "b", 64, 16, 8, 4096))

    @property
    def kept(self) -> HeldRoles:
        held = self.directory.held_roles()
        assert held is not None
        return held

    def written(self) -> list[SplitWrite]:
        return [effect.write for effect in self.told if isinstance(effect, SplitWritten)]

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.writer.feed(Tick())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_of_two_operators_at_once_the_second_hears_of_the_first(desk: Desk) -> None:
    seen = desk.state.generation
    desk.overrides.set_split("1P2D", by="ann@desk", generation=seen)
    with pytest.raises(ConflictError, match="ann@desk changed it meanwhile") as conflict:
        desk.overrides.set_split("2P1D", by="bob", generation=seen, force=True)
    assert (conflict.value.code, conflict.value.exit_code) == ("EV-1351", 7)
    for mode in ("auto", "hold", "advise"):
        with pytest.raises(ConflictError, match="ann@desk"):
            desk.overrides.set_mode(mode, by="bob", generation=seen)
    assert [write.by for write in desk.written()] == ["ann@desk"]
    desk.overrides.set_mode("auto", by="bob", generation=seen + 1)
    with pytest.raises(ConflictError, match="bob changed it meanwhile"):
        desk.overrides.set_mode("hold", by="ann@desk", generation=seen + 1)


def test_a_split_without_a_phase_is_refused(desk: Desk) -> None:
    with pytest.raises(RefusedError, match="each phase needs at least one node") as refused:
        desk.overrides.set_split("3P0D", by="ann", force=True)
    assert refused.value.exit_code == 8
    assert desk.written() == []


def test_a_hold_with_an_end_goes_back_to_auto(tmp_path: Path) -> None:
    desk = Desk(tmp_path, mode="auto")
    desk.overrides.set_split("1P2D", by="ann", reason="tests", for_s=1800)
    assert (desk.state.mode, desk.state.held_until_s) == ("hold", 1900.0)
    assert desk.kept.until_s == pytest.approx(WALL_S + 1900)
    assert (desk.kept.mode, desk.kept.mode_after) == ("hold", "auto")
    desk.wait(1799)
    assert desk.state.mode == "hold"
    desk.wait(1)
    assert (desk.state.mode, desk.state.held_by) == ("auto", "")
    told = desk.written()[-1]
    assert told.told() == (
        "split stays 1P2D by evctl: the time of the hold by ann is over (auto, generation 2)"
    )
    assert (desk.kept.mode, desk.kept.generation, desk.kept.until_s) == ("auto", 2, None)
    with pytest.raises(ConflictError, match="evctl changed it meanwhile"):
        desk.overrides.set_mode("hold", by="ann", generation=1)


def test_a_hold_given_more_time_is_news_and_the_same_one_without_end_is_not(desk: Desk) -> None:
    desk.overrides.set_mode("hold", by="ann", for_s=10)
    desk.overrides.set_mode("hold", by="ann", for_s=20)
    assert desk.state.held_until_s == 120.0
    desk.overrides.set_mode("hold", by="ann")
    assert desk.state.held_until_s is None
    assert desk.state.generation == 3
    desk.overrides.set_mode("hold", by="ann")
    assert desk.state.generation == 3
    desk.wait(1000)
    assert desk.state.mode == "hold"


def test_auto_again_releases(desk: Desk) -> None:
    desk.overrides.set_split("1P2D", by="ann", for_s=60)
    desk.overrides.set_mode("auto", by="bob")
    assert (desk.state.mode, desk.state.held_until_s) == ("auto", None)
    desk.wait(100)
    assert [write.mode for write in desk.written()] == ["hold", "auto"], "nothing is left to end"


def test_what_the_planner_moves_is_kept_and_counts_for_the_cooldown(desk: Desk) -> None:
    desk.overrides.set_mode("auto", by="ann")

    def step_by_planner(now_s: float, event: Event, result: StepResult) -> None:
        del event, result
        if str(desk.state.split) == "2P1D":
            turn = Turn(desk.state, now_s)
            transition.move(turn, parse_split("1P2D"), by="planner", reason="gain")
            turn.settle()
            done = StepResult(tuple(turn.effects), (), None)
            for observe in desk.writer.observers:
                observe(now_s, Tick(), done)

    desk.writer.observers.insert(0, step_by_planner)
    desk.wait(1)
    assert desk.kept.roles == {"n1": "D", "n2": "P", "n3": "D"}
    assert desk.kept.mode == "auto"
    with pytest.raises(RefusedError, match="a change by planner settled 0 s ago") as refused:
        desk.overrides.set_split("2P1D", by="ann")
    assert refused.value.code == "EV-1352"


def busy(desk: Desk) -> None:
    """A prefill runs on either node that could turn to decode."""
    for node, request in (("n1", "r1"), ("n2", "r2")):
        desk.writer.feed(RequestArrived(request, "t", None, 40, 4, b"root", b""))
        assert desk.state.requests[request].prefill_node == node
        desk.writer.feed(FromNode(node, "b", PrefillStarted(request, 0, 40)))


def test_the_cooldown_begins_when_the_change_has_settled_not_when_it_was_written(
    desk: Desk,
) -> None:
    busy(desk)
    desk.overrides.set_split("1P2D", by="ann")
    assert desk.state.transitions.open is not None
    desk.wait(500)  # its node still computes what it had begun
    with pytest.raises(RefusedError, match="a change by ann, 2P1D -> 1P2D, has not settled"):
        desk.overrides.set_split("2P1D", by="bob")
    planned = desk.overrides.set_split("2P1D", by="bob", plan=True)
    assert planned.settling
    assert planned.refused_until_s == WALL_S + desk.now_s + 120.0
    desk.writer.feed(FromNode("n1", "b", FirstToken("r1", 40)))
    assert desk.state.transitions.open is None
    settled_s = desk.now_s
    assert desk.state.planner.cooldown_ends_s == settled_s + 120.0, "the planner's is the same"
    desk.wait(119)
    with pytest.raises(RefusedError, match="a change by ann settled 119 s ago") as refused:
        desk.overrides.set_split("2P1D", by="bob")
    assert "wait 1 s" in refused.value.next_step
    planned = desk.overrides.set_split("2P1D", by="bob", plan=True)
    assert (planned.settling, planned.refused_until_s) == (False, WALL_S + settled_s + 120.0)
    desk.wait(1)
    desk.overrides.set_split("2P1D", by="bob")
    assert not desk.written()[-1].forced


def test_what_is_forced_takes_the_place_of_a_change_under_way(desk: Desk) -> None:
    busy(desk)
    desk.overrides.set_split("1P2D", by="ann")
    desk.overrides.set_split("2P1D", by="bob", force=True)
    assert desk.written()[-1].forced
    (ended,) = [e.transition for e in desk.told if isinstance(e, TransitionEnded)][:1]
    assert (ended.by, ended.outcome) == ("ann", "superseded")


@pytest.mark.parametrize(("lasts_s", "mode"), [(3600.0, "hold"), (-5.0, "auto")])
async def test_a_hold_lasts_over_a_restart_and_ends_on_time(
    tmp_path: Path, lasts_s: float, mode: str
) -> None:
    settings = make_state(tmp_path / "state", model_directory=write_model(tmp_path / "model"))
    plane = ControlPlane(settings)
    plane.start()
    plane.overrides.set_mode("auto", by="ann")
    plane.overrides.set_mode("hold", by="ann", for_s=3600)
    held = plane.directory.held_roles()
    assert held is not None
    assert held.until_s == pytest.approx(time.time() + 3600, abs=5)
    held = msgspec.structs.replace(held, until_s=time.time() + lasts_s)
    await plane.close()
    plane.directory.write_held_roles(held)
    again = ControlPlane(settings)
    again.start()
    try:
        assert (again.state.mode, again.state.held_by) == ("hold", "ann")
        status = again.status()
        assert status.held_until_s == pytest.approx(held.until_s, abs=1.0)
        assert status.mode_after == "auto"
        again.writer.feed(Tick())
        assert again.state.mode == mode
        with pytest.raises(ConflictError, match="ann" if mode == "hold" else "evctl"):
            again.overrides.set_mode("advise", by="bob", generation=0)
    finally:
        await again.close()


def test_what_cannot_be_kept_is_not_done(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(held: HeldRoles) -> None:
        raise EvctlError(what="x", why="full", next_step="y", code="EV-1314")

    monkeypatch.setattr(desk.directory, "write_held_roles", refuse)
    with pytest.raises(EvctlError, match="full"):
        desk.overrides.set_mode("hold", by="ann", for_s=5)
    assert desk.state.mode == "advise"
