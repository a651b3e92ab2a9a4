"""Records of changes of the split: what happened on each node, when, and how it ended."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from evctl.core.effects import (
    AnyEffect,
    Fail,
    MoveEnded,
    Notice,
    SetRole,
    SplitWritten,
    TransitionEnded,
)
from evctl.core.errors import RefusedError
from evctl.core.events import NodeLost, Override, Recalled, RequestCancelled, Tick
from evctl.core.split import Phase, parse_split
from evctl.core.transitions import Transition
from evctl.policy import moves, transition
from evctl.policy.state import ClusterState, NodeRecord, RequestRecord, step
from evctl.policy.turn import Turn
from tests.policy import test_accounting
from tests.policy.cluster import Cluster, of


def ended(effects: list[AnyEffect]) -> Transition:
    (one,) = of(effects, TransitionEnded)
    return one.transition  # type: ignore[union-attr]


def busy() -> Cluster:
    """2P1D. n1: r1 running, r3 waiting. n2: r2 waiting."""
    cluster = Cluster()
    for name in ("r1", "r2", "r3"):
        cluster.arrive(name)
    cluster.start("r1")
    return cluster


def all_run() -> Cluster:
    """2P1D. n1: r1 and r3 running. n2, which is the cheapest to move: r2 running."""
    cluster = busy()
    for name in ("r2", "r3"):
        cluster.start(name)
    return cluster


def test_a_node_with_nothing_on_it_settles_in_the_same_step() -> None:
    cluster = Cluster()
    effects = cluster.hold("1P2D")
    record = ended(effects)
    assert (record.number, record.generation, record.by) == (1, 1, "me")
    assert (record.before, record.after, record.outcome) == ("2P1D", "1P2D", "settled")
    (move,) = record.moves
    assert (move.node, move.to_flip_s, move.whole_s) == ("n1", 0.0, 0.0)
    assert (move.running, move.queued, move.finished, move.requeued) == (0, 0, 0, 0)
    (write,) = of(effects, SplitWritten)
    assert write.write.change == 1  # type: ignore[union-attr]
    assert list(cluster.state.transitions.ended) == [record]


def test_it_flips_when_its_queue_is_gone_and_settles_when_what_runs_has_ended() -> None:
    cluster = all_run()
    cluster.arrive("r4")
    assert cluster.state.requests["r4"].prefill_node == "n2"
    cluster.hold("1P2D")
    cluster.now_s += 0.02
    assert of(cluster.fact("n2", Recalled("r4")), TransitionEnded) == []
    cluster.now_s += 1.0
    cluster.first_token("r2")
    record = cluster.state.transitions.ended[0]
    (move,) = record.moves
    assert move.to_flip_s == pytest.approx(0.02)
    assert move.whole_s == pytest.approx(1.02)
    assert (move.running, move.queued, move.finished, move.requeued) == (1, 1, 1, 1)
    assert "flipped in 20 ms, settled in 1.0 s, 1 finished in place, 1 requeued" in record.told()


def test_a_cancelled_request_neither_finished_nor_went_elsewhere() -> None:
    cluster = Cluster(3, "1P2D")
    cluster.arrive("r1")
    cluster.arrive("r2")
    cluster.decode("r1")
    cluster.decode("r2")
    cluster.hold("2P1D")
    (moving,) = cluster.state.transitions.open.so_far().moves  # type: ignore[union-attr]
    (there,) = [r for r in cluster.state.requests.values() if r.decode_node == moving.node]
    (move,) = ended(cluster.feed(RequestCancelled(there.request_id))).moves
    assert (move.running, move.finished, move.requeued) == (1, 0, 0)


def test_several_nodes_move_in_one_change() -> None:
    cluster = Cluster(5, "4P1D")
    for name in ("r1", "r2", "r3", "r4"):
        cluster.arrive(name)
        cluster.start(name)
    cluster.hold("1P4D")
    opened = cluster.state.transitions.open
    assert opened is not None
    moving = [part.move.node for part in opened.parts]
    assert len(moving) == 3
    seen: list[AnyEffect] = []
    for record in list(cluster.state.requests.values()):
        if record.prefill_node in moving:
            cluster.now_s += 1
            cluster.first_token(record.request_id)
            seen += cluster.last.effects if cluster.last else ()
    assert [e.move.node for e in of(seen, MoveEnded)] == moving  # type: ignore[union-attr]
    record = ended(seen)
    assert [move.whole_s for move in record.moves] == [1.0, 2.0, 3.0]
    assert record.ended_s == cluster.now_s


def test_a_node_that_dies_meanwhile_ends_its_part_and_the_others_go_on() -> None:
    cluster = Cluster(4, "3P1D")
    for name in ("r1", "r2", "r3"):
        cluster.arrive(name)
        cluster.start(name)
    cluster.hold("1P3D")
    first, second = (p.move.node for p in cluster.state.transitions.open.parts)  # type: ignore[union-attr]
    effects = cluster.feed(NodeLost(first, "boot1", "its process died"))
    assert [e.move.outcome for e in of(effects, MoveEnded)] == ["lost"]  # type: ignore[union-attr]
    (left,) = [r for r in cluster.state.requests.values() if r.prefill_node == second]
    cluster.start(left.request_id)
    cluster.first_token(left.request_id)
    record = cluster.state.transitions.ended[-1]
    assert record.outcome == "lost"
    assert {m.node: m.outcome for m in record.moves} == {first: "lost", second: "settled"}


def test_a_node_that_restarts_meanwhile_counts_as_lost() -> None:
    cluster = all_run()
    cluster.hold("1P2D")
    record = ended(cluster.join("n2", "boot2"))
    assert (record.outcome, record.moves[0].outcome) == ("lost", "lost")
    assert cluster.state.nodes["n2"].settled_role == "D"


def test_a_change_back_supersedes() -> None:
    cluster = all_run()
    cluster.hold("1P2D")
    first, second = (e.transition for e in of(cluster.hold("2P1D"), TransitionEnded))  # type: ignore[union-attr]
    assert (first.number, first.outcome, first.superseded_by) == (1, "superseded", 2)
    assert "superseded by change 2" in first.told()
    assert (second.number, second.outcome, second.after) == (2, "settled", "2P1D")
    assert [m.node for m in second.moves] == ["n2"], "it has not left its old role yet"


def test_a_further_target_takes_over_what_is_under_way() -> None:
    cluster = Cluster(4, "3P1D")
    for name in ("r1", "r2", "r3"):
        cluster.arrive(name)
        cluster.start(name)
    cluster.hold("2P2D")
    began_s = cluster.now_s
    cluster.now_s += 5
    assert ended(cluster.hold("1P3D")).outcome == "superseded"
    for name in ("r1", "r2", "r3"):
        cluster.now_s += 1
        cluster.first_token(name)
    record = cluster.state.transitions.ended[-1]
    assert (record.number, record.outcome, len(record.moves)) == (2, "settled", 2)
    assert [move.cordoned_s for move in record.moves] == [began_s, began_s + 5]
    assert all(move.finished == 1 for move in record.moves)


def test_holding_what_is_so_leaves_the_open_change_alone() -> None:
    cluster = all_run()
    cluster.hold("1P2D")
    assert of(cluster.hold("1P2D"), TransitionEnded) == []
    cluster.first_token("r2")
    assert cluster.state.transitions.ended[-1].generation == 1


# ------------------------------------------------------------ modes


def test_a_hold_ends_by_itself_and_the_mode_is_what_it_was() -> None:
    cluster = Cluster(mode="auto")
    cluster.feed(Override("hold", "1P2D", "ann", "tests", until_s=cluster.now_s + 60))
    assert cluster.state.mode == "hold"
    assert cluster.last is not None
    assert cluster.last.next_tick_s is not None
    assert cluster.last.next_tick_s <= cluster.now_s + 60
    cluster.now_s += 59
    assert of(cluster.feed(Tick()), SplitWritten) == []
    cluster.now_s += 1
    (written,) = of(cluster.feed(Tick()), SplitWritten)
    write = written.write  # type: ignore[union-attr]
    assert (write.mode, write.by, write.moves, write.generation) == ("auto", "evctl", (), 2)
    assert write.reason == "the time of the hold by ann is over"
    assert (cluster.state.mode, cluster.state.held_by) == ("auto", "")
    assert str(cluster.state.split) == "1P2D", "the split stays; the planner may move it"


def test_a_hold_over_a_hold_goes_back_to_what_was_before_both() -> None:
    cluster = Cluster()
    cluster.feed(Override("hold", "1P2D", "ann", "", until_s=cluster.now_s + 60))
    cluster.feed(Override("hold", "2P1D", "bob", "", until_s=cluster.now_s + 10))
    cluster.now_s += 10
    cluster.feed(Tick())
    assert cluster.state.mode == "advise"
    cluster.now_s += 60
    assert of(cluster.feed(Tick()), SplitWritten) == [], "ann's ended with bob's"


@pytest.mark.parametrize(
    ("override", "why"),
    [
        (Override("hold", "3P0D", "me", ""), "each phase needs at least one node"),
        (Override("hold", "1P2D", "me", "", generation=7), "generation 7, the present one is 0"),
        (Override("hold", "1P2D", "me", "", until_s=50.0), "its time is over"),
    ],
)
def test_an_override_that_cannot_be_changes_nothing(override: Override, why: str) -> None:
    cluster = Cluster()
    (notice,) = cluster.feed(override)
    assert isinstance(notice, Notice)
    assert why in notice.what
    assert (cluster.state.generation, cluster.state.transitions.last) == (0, 0)


def test_the_planner_moves_in_auto_only() -> None:
    cluster = all_run()

    def move() -> list[AnyEffect]:
        turn = Turn(cluster.state, cluster.now_s)
        transition.move(turn, parse_split("1P2D"), by="planner", reason="a gain of 12 %")
        turn.settle()
        return turn.effects

    with pytest.raises(RefusedError, match="the mode is advise"):
        move()
    cluster.hold("2P1D")
    with pytest.raises(RefusedError, match="the mode is hold, by me") as refused:
        move()
    assert refused.value.code == "EV-1359"
    cluster.feed(Override("auto", "", "me", ""))
    effects = move()
    assert of(effects, SetRole) == [SetRole("n2", "D", 3)]
    (written,) = of(effects, SplitWritten)
    assert (written.write.by, written.write.mode) == ("planner", "auto")  # type: ignore[union-attr]


# ------------------------------------------------------------ whatever happens


class Moving(test_accounting.World):
    """The world of the accounting test, with overrides of every kind. Every change ends once,
    none is open beside another, and what it tells adds up."""

    def __init__(self) -> None:
        self.begun: dict[int, SplitWritten] = {}
        self.over: dict[int, Transition] = {}
        super().__init__()

    def _see(self, effect: AnyEffect) -> None:
        super()._see(effect)
        if isinstance(effect, SplitWritten) and effect.write.change:
            assert effect.write.change == len(self.begun) + 1
            self.begun[effect.write.change] = effect
        elif isinstance(effect, TransitionEnded):
            self._ended(effect.transition)
        elif isinstance(effect, Fail):
            assert effect.reason

    def _ended(self, change: Transition) -> None:
        assert change.number not in self.over
        self.over[change.number] = change
        assert change.outcome in ("settled", "superseded", "lost")
        assert change.ended_s is not None
        for move in change.moves:
            assert move.outcome
            assert (move.outcome == "settled") == (move.settled_s is not None)
            if move.settled_s is not None:
                assert move.flipped_s is not None
                assert move.cordoned_s <= move.flipped_s <= move.settled_s <= change.ended_s

    @rule(
        mode=st.sampled_from(["auto", "hold", "hold", "advise"]),
        split=st.sampled_from(["1P3D", "2P2D", "3P1D", "4P0D"]),
        for_s=st.none() | st.sampled_from([-1.0, 0.3, 2.0, 20.0]),
        generation=st.none() | st.integers(0, 3),
    )
    def override_of_any_kind(
        self, mode: str, split: str, for_s: float | None, generation: int | None
    ) -> None:
        until_s = None if for_s is None else self.now_s + 0.25 + for_s
        self.feed(Override(mode, split, "model", "", until_s=until_s, generation=generation))

    @invariant()
    def at_most_one_is_open(self) -> None:
        change = self.state.transitions.open
        still = set(self.begun) - set(self.over)
        assert still == ({change.head.number} if change is not None else set())
        if self.state.held_until_s is not None:
            assert self.state.mode == "hold"

    def teardown(self) -> None:
        """Whatever is open ends once the requests have."""
        for name in list(self.at):
            self._end(name, "cancelled")
            self.feed(RequestCancelled(name))
        assert set(self.begun) == set(self.over)
        super().teardown()


TestMoving = Moving.TestCase
TestMoving.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


def test_records_survive_the_wire() -> None:
    cluster = Cluster()
    effects = cluster.hold("1P2D")
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(ended(effects)), type=Transition)
    assert again == ended(effects)
    assert step(cluster.state, Tick(), cluster.now_s).next_tick_s is not None


def test_an_event_elsewhere_does_not_look_through_the_requests_of_nodes_that_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else every event costs all requests that are there, for as long as a large change takes."""
    cluster = Cluster(4, "3P1D")
    for number in range(12):
        cluster.arrive(f"r{number}")
        cluster.start(f"r{number}")
    cluster.hold("1P3D")
    looked = []
    old_work = moves.old_work

    def counted(state: ClusterState, node: NodeRecord, phase: Phase) -> list[RequestRecord]:
        looked.append(node.name)
        return old_work(state, node, phase)

    monkeypatch.setattr(moves, "old_work", counted)
    cluster.beat()
    assert looked == []
    change = cluster.state.transitions.open
    assert change is not None
    moving = {part.move.node for part in change.parts}
    name = next(n for n, r in cluster.state.requests.items() if r.prefill_node in moving)
    node = cluster.state.requests[name].prefill_node
    cluster.first_token(name)
    assert looked == [node]
