"""The planner within the reducer: when it decides, what it may do, and what becomes of it."""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import pytest

from evctl.core.branches import BranchSignal
from evctl.core.costs import Coefficients
from evctl.core.effects import Decided, Notice, SetRole, SplitWritten
from evctl.core.events import CoefficientsFitted, Event, NodeLost, Override, RequestDone, Tick
from evctl.core.planning import PlanDecision
from evctl.policy.planner import PlannerConfig, plus
from evctl.policy.planning import plan_now
from evctl.policy.state import ClusterState, step
from tests.policy.cluster import Cluster, of

SHORT = PlannerConfig(window_s=10.0, slices=5, cooldown_s=4.0, least_requests=2)
TEN = msgspec.structs.replace(SHORT, slices=10, least_requests=1)
SLOW_PREFILL = Coefficients(0.0, 0.02, 0.0, 0.0, 0.01, 0.0, 0.0)
"""0.8 s for a prompt of 40 tokens, 0.16 s for an answer of 16: all but one node should prefill."""
SLOW_DECODE = Coefficients(0.0, 0.001, 0.0, 0.0, 0.2, 0.0, 0.05)


class Flow(Cluster):
    """Two requests a second, each half a second long, under a planner that may act."""

    def __init__(
        self,
        split: str = "1P3D",
        *,
        planner: PlannerConfig = SHORT,
        model: Coefficients | None = SLOW_PREFILL,
        depth: int = 0,
        **config: Any,
    ) -> None:
        self.fed: list[tuple[float, Event]] = []
        self.numbers = 0
        self.wait_s = 0.05
        self.depth = depth
        self.open: deque[str] = deque()
        config = {"mode": "auto", "generation": 3} | config
        super().__init__(4, split, planner=planner, **config)
        self.config = self.state.config
        if model is not None:
            for name in self.state.nodes:
                self.feed(CoefficientsFitted(name, model, "fitted"))

    def feed(self, event: Event) -> Any:
        self.fed.append((self.now_s, event))
        return super().feed(event)

    def go(self, seconds: float) -> list[PlanDecision]:
        """Let time pass under work; returns what was decided."""
        before, end_s = len(self.log), self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            self.serve()
        return self.decided(before)

    def serve(self) -> None:
        """One request within half a second; `depth` later ones come before it ends."""
        self.numbers += 1
        name = f"r{self.numbers}"
        self.arrive(name, 40, branch=BranchSignal(f"b{self.numbers % 3}"))
        self.now_s += self.wait_s
        self.decode(name)
        self.now_s += 0.45 - self.wait_s
        self.open.append(name)
        if len(self.open) > self.depth:
            name = self.open.popleft()
            node = self.state.requests[name].decode_node
            self.fact(node, RequestDone(name, "length", 40, 0, 16))
        self.now_s += 0.05
        self.feed(Tick())

    def idle(self, seconds: float) -> list[PlanDecision]:
        before = len(self.log)
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.beat()
            self.feed(Tick())
        return self.decided(before)

    def decided(self, since: int = 0) -> list[PlanDecision]:
        return [e.decision for e in of(self.log[since:], Decided)]  # type: ignore[union-attr]

    def notices(self) -> list[str]:
        return [e.what for e in of(self.log, Notice)]  # type: ignore[union-attr]


def test_a_window_ends_in_one_decision_that_moves_several_nodes_at_once() -> None:
    cluster = Flow()
    assert cluster.go(9.4) == []
    (decision,) = cluster.go(1.0)
    assert (decision.verdict, decision.current, decision.chosen) == ("move", "1P3D", "3P1D")
    assert [move.node for move in decision.moves] == ["n2", "n3"]
    assert len(decision.slices) == 5
    assert decision.model == dict.fromkeys(("n1", "n2", "n3", "n4"), "fitted")
    (write,) = of(cluster.log, SplitWritten)
    told = write.write  # type: ignore[union-attr]
    assert (told.by, told.mode, told.before, told.after) == ("planner", "auto", "1P3D", "3P1D")
    assert len(of(cluster.log, SetRole)) == 2
    assert cluster.state.planner.decisions[-1] == decision
    assert str(cluster.state.split) == "3P1D"


def test_a_decode_heavy_load_moves_the_other_way_and_stays_there() -> None:
    cluster = Flow("3P1D", model=SLOW_DECODE, depth=12)
    decisions = cluster.go(60.0)
    assert [d.verdict for d in decisions if d.verdict == "move"] == ["move"]
    assert str(cluster.state.split) == "1P3D"
    assert decisions[-1].verdict == "stay"


def test_the_first_window_of_a_fresh_cluster_only_advises_and_says_so() -> None:
    cluster = Flow(generation=0)
    (first,) = cluster.go(10.4)
    assert (first.verdict, first.chosen) == ("advise", "3P1D")
    assert "first window" in first.why
    assert of(cluster.log, SplitWritten) == []
    (second,) = cluster.go(10.0)
    assert second.verdict == "move"


@pytest.mark.parametrize("mode", ["hold", "advise"])
def test_hold_and_advise_never_move_and_record_what_it_would_have_done(mode: str) -> None:
    cluster = Flow(mode=mode, planner=plus(TEN))
    decisions = cluster.go(60.0)
    assert len(decisions) >= 5
    assert {d.verdict for d in decisions} == {"advise"}
    assert {(d.chosen, d.mode, len(d.moves)) for d in decisions} == {("3P1D", mode, 2)}
    assert of(cluster.log, SplitWritten) == of(cluster.log, SetRole) == []


def test_no_decision_within_the_cooldown_whoever_moved() -> None:
    """Moved by a person to where it should not be, with a cooldown of three windows."""
    config = msgspec.structs.replace(SHORT, cooldown_s=29.0)
    cluster = Flow("2P2D", planner=config)
    cluster.feed(Override("hold", "1P3D", "me", ""))
    cluster.state.mode = "auto"
    settled_s = cluster.now_s
    decisions = cluster.go(45.0)
    early = [d for d in decisions if d.time_s < settled_s + 29.0]
    assert [d.verdict for d in early] == ["cooldown", "cooldown"]
    late = [d for d in decisions if d.time_s >= settled_s + 29.0]
    assert late[0].verdict == "move"


def test_the_window_restarts_when_a_move_has_settled() -> None:
    """A request that decodes for seconds on the node that moves: until it ends nothing is
    planned, and slices of before do not count after."""
    cluster = Flow("2P2D")
    for name in ("long1", "long2"):
        cluster.arrive(name, 40)
        cluster.decode(name)
    nodes = {cluster.state.requests[n].decode_node: n for n in ("long1", "long2")}
    (moved,) = cluster.go(10.4)
    assert moved.chosen == "3P1D"
    moving = moved.moves[0].node
    assert cluster.state.planner.pending is not None
    (during,) = cluster.go(10.0)
    assert during.verdict == "settling"
    cluster.fact(moving, RequestDone(nodes[moving], "length", 40, 0, 16))
    assert cluster.state.planner.pending is None
    assert cluster.state.planner.meter.slices == []
    assert cluster.state.planner.meter.start_s == cluster.now_s


def test_a_change_by_a_person_that_has_not_settled_is_waited_for_too() -> None:
    cluster = Flow("2P2D")
    for name in ("long1", "long2"):
        cluster.arrive(name, 40)
        cluster.decode(name)
    cluster.feed(Override("hold", "3P1D", "me", ""))
    cluster.state.mode = "auto"
    assert cluster.state.planner.pending is None
    assert [d.verdict for d in cluster.go(10.4)] == ["settling"]


def test_a_move_that_does_not_settle_is_not_waited_for_for_ever() -> None:
    config = msgspec.structs.replace(SHORT, pending_s=15.0)
    cluster = Flow("2P2D", planner=config)
    for name in ("long1", "long2"):
        cluster.arrive(name, 40)
        cluster.decode(name)
    cluster.go(10.4)
    assert cluster.state.planner.pending is not None
    before = cluster.go(16.5)
    assert cluster.state.planner.pending is None
    assert any("has not settled after" in what for what in cluster.notices())
    after = cluster.go(10.0)
    assert [d.verdict for d in before] == ["settling"]
    assert [d.verdict for d in after] == ["stay"], "planned on, although it has not settled"
    assert cluster.state.settled_split != str(cluster.state.split)


def test_without_a_model_it_is_blind_and_says_so_once() -> None:
    cluster = Flow(model=None)
    decisions = cluster.go(30.5)
    assert [d.verdict for d in decisions] == ["blind"] * 3
    assert "no execution-time model of n1, n2, n3, n4" in decisions[0].why
    assert sum("decides nothing" in what for what in cluster.notices()) == 1


def test_thin_slices_are_an_alarm_and_no_decision() -> None:
    cluster = Flow(planner=msgspec.structs.replace(SHORT, least_requests=20))
    (decision,) = cluster.go(10.4)
    assert decision.verdict == "blind"
    assert "5 of 5 slices have fewer than 20 requests" in decision.why
    assert all(one.thin for one in decision.slices)


def test_before_a_few_slices_have_passed_it_says_how_many_it_takes() -> None:
    cluster = Flow()
    cluster.go(2.4)
    plan = plan_now(cluster.state, cluster.now_s)
    assert (plan.verdict, plan.why) == ("blind", "1 of the 3 slices that it takes have passed")


def test_idle_is_no_alarm() -> None:
    cluster = Flow()
    decisions = cluster.idle(31.0)
    assert [d.verdict for d in decisions] == ["idle"], "told once"
    assert not any("decides nothing" in what for what in cluster.notices())


def test_the_first_window_is_the_first_with_work_and_a_model() -> None:
    cluster = Flow(generation=0, model=None)
    cluster.idle(21.0)
    assert [d.verdict for d in cluster.go(10.0)] == ["blind"]
    for name in cluster.state.nodes:
        cluster.feed(CoefficientsFitted(name, SLOW_PREFILL, "fitted"))
    assert [d.verdict for d in cluster.go(20.0)] == ["advise", "move"]


def test_no_planning_while_a_phase_has_no_node() -> None:
    cluster = Flow()
    cluster.feed(NodeLost("n1", "boot1", "gone"))
    (decision,) = cluster.go(10.4)
    assert decision.verdict == "blind"
    assert "no node is left for phase P" in decision.why
    cluster.join("n1", "boot2")
    assert cluster.go(10.0)[0].verdict == "move"


def test_it_asks_for_a_tick_at_the_end_of_each_slice() -> None:
    cluster = Flow(node_late_after_s=1e6)
    assert cluster.last is not None
    end_s = cluster.state.planner.meter.end_s
    assert end_s is not None
    assert cluster.last.next_tick_s == end_s


def test_what_it_would_do_now_changes_nothing_and_is_what_it_then_does() -> None:
    asked, silent = Flow(), Flow()
    for cluster in (asked, silent):
        while cluster.now_s < 109.3:
            cluster.serve()
            if cluster is asked:
                plan_now(cluster.state, cluster.now_s)
    plan = plan_now(asked.state, asked.now_s)
    assert (plan.verdict, plan.chosen) == ("move", "3P1D")
    assert plan.number == 1
    for cluster in (asked, silent):
        cluster.go(30.0)
    assert msgspec.msgpack.encode(asked.log) == msgspec.msgpack.encode(silent.log)
    assert asked.decided()[0].chosen == plan.chosen


@pytest.mark.parametrize("config", [SHORT, plus(TEN)])
def test_the_same_events_give_the_same_bytes(config: PlannerConfig) -> None:
    cluster = Flow(planner=config)
    cluster.go(40.0)
    cluster.feed(Override("hold", "2P2D", "me", ""))
    cluster.go(20.0)
    assert len(cluster.decided()) >= 4
    state = ClusterState(cluster.config)
    again = [effect for at_s, event in cluster.fed for effect in step(state, event, at_s).effects]
    assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode(cluster.log)


def test_decisions_kept_are_bounded_and_numbered() -> None:
    cluster = Flow(model=None, planner=msgspec.structs.replace(SHORT, window_s=5.0))
    cluster.go(350.0)
    kept = cluster.state.planner.decisions
    assert len(kept) == 64
    numbers = [d.number for d in kept]
    assert numbers == list(range(numbers[0], numbers[0] + 64))


# ---------------------------------------------------------------- probation

ON_TRIAL = msgspec.structs.replace(SHORT, probation=True, closed=True, slices=10, window_s=20.0)


def test_a_move_whose_waits_are_not_as_forecast_is_taken_back_and_not_made_again() -> None:
    cluster = Flow("2P2D", planner=ON_TRIAL)
    (moved,) = cluster.go(20.4)
    assert (moved.verdict, moved.chosen) == ("move", "3P1D")
    assert cluster.state.planner.trial is not None
    cluster.wait_s = 0.44
    cluster.state.planner.trial = msgspec.structs.replace(
        cluster.state.planner.trial,
        forecast=msgspec.structs.replace(moved.candidates[-1].forecast, ttft_s=0.1),
    )
    decisions = cluster.go(20.0)
    assert decisions[0].verdict == "revert"
    assert decisions[0].chosen == "2P2D"
    assert "0.44 s" in decisions[0].why
    assert decisions[0].time_s - moved.time_s < 20.0, "within a window"
    assert str(cluster.state.split) == "2P2D"
    later = cluster.go(30.0)
    assert all(d.verdict != "move" for d in later)
    guarded = {c.verdict for d in later for c in d.candidates if c.split == "3P1D"}
    assert guarded == {"guarded"}


def test_a_move_that_keeps_its_word_stays() -> None:
    cluster = Flow("2P2D", planner=ON_TRIAL)
    cluster.go(20.4)
    decisions = cluster.go(40.0)
    assert "revert" not in [d.verdict for d in decisions]
    assert cluster.state.planner.trial is None, "probation lasts one window"
    assert str(cluster.state.split) == "3P1D"
