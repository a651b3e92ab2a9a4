"""Waiting branches are fetched for shortly before they are expected."""

from __future__ import annotations

import pytest

from evctl.core.branches import BranchSignal
from evctl.core.effects import FetchAhead
from evctl.core.events import (
    BranchSignalled,
    FetchAheadEnded,
    KvHeld,
    NodeLost,
    Tick,
)
from evctl.core.kv import FetchPiece, FetchSource
from evctl.policy import pauses
from evctl.policy.links import FetchPrior
from evctl.policy.membership import next_tick_s
from evctl.policy.pauses import FetchAheads
from tests.policy.cluster import Cluster, keys, of

CONTEXT = tuple(range(10))
ROOT = b""


class Waiting(Cluster):
    """2P2D. Branches whose context decode node n3 has in its L2, and prefill nodes lack."""

    def __init__(self, **config: object) -> None:
        fast = FetchPrior(1e-4, 1e-5)
        super().__init__(4, "2P2D", l2_blocks=100, **{"prior_fetch": fast, **config})
        self.beat()
        self.holds("n3", 2, *CONTEXT)

    def live(self, name: str, branch: str = "b", resume_s: float | None = None) -> None:
        """A request of the branch, which is over in no time."""
        signal = BranchSignal(branch, expect_resume_s=resume_s)
        self.arrive(name, 42, keys(*CONTEXT), signal)
        self.decode(name)
        self.done(name)

    def due_s(self) -> float | None:
        """When the next look after a branch is due: the earliest tick but those for nodes."""
        late_s = min(n.seen_s for n in self.state.nodes.values()) + 5.0
        self.state.late_from_s = None  # it may be early, and hide what comes after it
        next_s = next_tick_s(self.state, self.now_s)
        return next_s if next_s is not None and next_s < late_s else None

    def tick(self, at_s: float) -> list[FetchAhead]:
        """Time passes until then; nodes have been heard of."""
        self.now_s = at_s
        self.beat()
        return of(self.feed(Tick()), FetchAhead)  # type: ignore[return-value]

    def ended(self, fetch: FetchAhead, missed: int = 0, fetch_s: float = 0.5) -> None:
        came = sum(piece.end - piece.start for piece in fetch.pieces) - missed
        peers = (FetchSource("n3", came, 64 * came),) if came else ()
        self.fact(fetch.node, FetchAheadEnded(fetch.ticket, peers, fetch_s, missed))


def test_a_branch_is_fetched_for_a_second_before_its_client_said() -> None:
    cluster = Waiting()
    cluster.live("r", resume_s=4.0)
    assert cluster.due_s() == 103.0
    assert cluster.tick(102.9) == []
    (fetch,) = cluster.tick(103.0)
    pieces = (FetchPiece(0, 10, ("n3",)),)
    assert fetch == FetchAhead("n1", fetch.ticket, ROOT, keys(*CONTEXT), pieces)
    assert cluster.tick(103.5) == [], "one at a time"
    cluster.ended(fetch)
    assert cluster.state.ahead.outcomes.done == 1
    assert cluster.state.ahead.outcomes.fetched_blocks == 10
    assert cluster.state.ahead.blocks == 0


def test_a_slow_fetch_begins_earlier() -> None:
    cluster = Waiting(prior_fetch=FetchPrior(0.5, 0.2))
    cluster.live("r", resume_s=4.0)
    assert cluster.due_s() == pytest.approx(101.5), "2.5 s for 10 blocks"
    (fetch,) = cluster.tick(101.6)
    assert fetch.pieces == (FetchPiece(0, 10, ("n3",)),)


def test_a_branch_that_lacks_less_than_all_is_looked_after_again() -> None:
    cluster = Waiting(prior_fetch=FetchPrior(0.5, 0.2))
    cluster.live("r", resume_s=4.0)
    cluster.fact("n2", KvHeld(2, ROOT, keys(*range(8))))
    assert cluster.tick(101.6) == []
    assert cluster.due_s() == pytest.approx(103.0)
    (fetch,) = cluster.tick(103.01)
    assert (fetch.node, fetch.pieces) == ("n2", (FetchPiece(8, 10, ("n3",)),)), (
        "the longest prefix"
    )
    assert cluster.due_s() is None


def test_the_second_look_is_the_last() -> None:
    cluster = Waiting(prior_fetch=FetchPrior(0.5, 0.2))
    cluster.live("r", resume_s=4.0)
    cluster.fact("n2", KvHeld(2, ROOT, keys(*range(5))))
    assert cluster.tick(101.6) == []
    assert cluster.due_s() == pytest.approx(102.5)
    cluster.fact("n2", KvHeld(2, ROOT, keys(*range(8))))
    (fetch,) = cluster.tick(102.51)
    assert fetch.pieces == (FetchPiece(8, 10, ("n3",)),), "although a second before would do"


def test_a_node_without_l2_is_not_fetched_for() -> None:
    cluster = Waiting()
    cluster.state.nodes["n1"].l2_blocks = 0
    cluster.live("r", resume_s=2.0)
    (fetch,) = cluster.tick(101.0)
    assert fetch.node == "n2"


def test_a_branch_has_one_fetch_under_way_whatever_it_does_meanwhile() -> None:
    cluster = Waiting()
    cluster.live("r", resume_s=2.0)
    (fetch,) = cluster.tick(101.0)
    cluster.live("s", resume_s=2.0)
    assert cluster.tick(102.0) == []
    cluster.ended(fetch)
    cluster.live("t", resume_s=2.0)
    assert len(cluster.tick(103.0)) == 1


def test_peers_that_send_ahead_are_asked_last() -> None:
    cluster = Waiting()
    cluster.holds("n4", 2, *CONTEXT)
    for name in ("a", "b"):
        cluster.live(name, name, resume_s=2.0)
    first, second = cluster.tick(101.0)
    assert first.pieces[0].nodes == ("n3", "n4")
    assert second.pieces[0].nodes == ("n4", "n3")
    for fetch in (first, second):
        cluster.ended(fetch)
    speed = cluster.state.nodes["n1"].fetches
    assert speed.blocks == 10 * 0.95 + 20, "the second had to wait for the first"


def test_a_habit_takes_two_pauses_and_is_their_median() -> None:
    cluster = Waiting()
    for number, pause_s in enumerate((3.0, 2.0, 600.0, 4.0)):
        cluster.live(f"r{number}")
        assert (cluster.due_s() is None) == (number < 2), "nothing is known of its pauses"
        cluster.now_s += pause_s
        cluster.beat()
    before_s = cluster.now_s
    cluster.live("last")
    assert cluster.due_s() == before_s + 3.0 - 1.0, "of 2, 3, 4 and 600 the lower middle"


def test_a_request_or_an_end_before_that_calls_it_off() -> None:
    cluster = Waiting()
    cluster.live("r", resume_s=4.0)
    cluster.arrive("early", 42, keys(*CONTEXT), BranchSignal("b"))
    assert cluster.tick(103.0) == []
    cluster.decode("early")
    cluster.done("early")
    cluster.live("s", "other", resume_s=3.0)
    cluster.feed(BranchSignalled("t", "end", BranchSignal("other")))
    assert cluster.tick(106.0) == []
    assert cluster.state.ahead.outcomes.sent == 0
    assert ("t", "other") not in cluster.state.ahead.pauses


def test_nothing_is_fetched_where_it_is_switched_off_or_nobody_has_l2() -> None:
    for cluster in (Waiting(fetch_ahead=False), Waiting()):
        if cluster.state.config.fetch_ahead:
            for node in cluster.state.nodes.values():
                node.l2_blocks = 0
        cluster.live("r", resume_s=4.0)
        assert cluster.due_s() is None
        assert cluster.tick(104.0) == []


def test_the_budget_is_that_of_the_cluster_and_the_room_that_of_the_node() -> None:
    cluster = Waiting(fetch_ahead_blocks=14)
    for name in ("a", "b", "c"):
        cluster.live(name, name, resume_s=2.0)
    first, second = cluster.tick(101.0)
    assert first.pieces == (FetchPiece(0, 10, ("n3",)),)
    assert second.pieces == (FetchPiece(0, 4, ("n3",)),), "leading blocks are worth most"
    assert cluster.state.ahead.outcomes.no_room == 1
    for fetch in (first, second):
        cluster.ended(fetch)
    cluster.live("d", "d", resume_s=2.0)
    cluster.now_s = 103.0
    cluster.beat(l2_used=97)
    (third,) = of(cluster.feed(Tick()), FetchAhead)
    assert third.pieces == (FetchPiece(0, 3, ("n3",)),)  # type: ignore[union-attr]


def test_what_nobody_needs_may_go_and_what_is_under_way_takes_room() -> None:
    cluster = Waiting()
    cluster.holds("n1", 2, 50, 51, 52, 53, 54)
    cluster.holds("n1", 1, 60, 61, 62)
    for name in ("a", "b"):
        cluster.live(name, name, resume_s=2.0)
    cluster.now_s = 101.0
    cluster.beat(l2_used=94)
    first, second = of(cluster.feed(Tick()), FetchAhead)
    assert first.pieces == (FetchPiece(0, 10, ("n3",)),)  # type: ignore[union-attr]
    assert second.pieces == (FetchPiece(0, 1, ("n3",)),), "6 are free, 5 unneeded"  # type: ignore[union-attr]


def test_what_was_fetched_teaches_how_long_the_next_takes() -> None:
    cluster = Waiting()
    cluster.live("r", resume_s=2.0)
    (fetch,) = cluster.tick(101.0)
    before_s = cluster.state.fetch_s(cluster.state.nodes["n1"], 10)
    cluster.ended(fetch, fetch_s=20.0)
    assert cluster.state.fetch_s(cluster.state.nodes["n1"], 10) > 10 * before_s
    assert cluster.state.fetch_s(cluster.state.nodes["n2"], 10) > 10 * before_s


def test_facts_that_are_late_repeated_or_of_another_node_change_nothing() -> None:
    cluster = Waiting()
    cluster.live("r", resume_s=2.0)
    (fetch,) = cluster.tick(101.0)
    ignored = cluster.state.tallies.ignored
    cluster.fact("n2", FetchAheadEnded(fetch.ticket, (), 0.1, 10))
    cluster.fact("n1", FetchAheadEnded("a999", (), 0.1, 10))
    assert cluster.state.tallies.ignored == ignored + 2
    assert cluster.state.ahead.blocks == 10
    cluster.ended(fetch, missed=4)
    cluster.ended(fetch, missed=4)
    assert cluster.state.tallies.ignored == ignored + 3
    assert (cluster.state.ahead.blocks, cluster.state.ahead.outcomes.short) == (0, 1)


def test_a_lost_node_and_an_answer_that_never_comes_free_the_budget() -> None:
    cluster = Waiting()
    cluster.live("r", resume_s=2.0)
    cluster.live("s", "other", resume_s=60.0)
    (fetch,) = cluster.tick(101.0)
    cluster.feed(NodeLost("n3", "boot1", "gone"))
    assert cluster.state.ahead.blocks == 10, "the node that fetches will say so"
    cluster.feed(NodeLost(fetch.node, "boot1", "gone"))
    assert (cluster.state.ahead.blocks, cluster.state.ahead.outcomes.lost) == (0, 1)
    cluster = Waiting()
    cluster.live("r", resume_s=2.0)
    assert len(cluster.tick(101.0)) == 1
    cluster.tick(160.9)
    assert cluster.state.ahead.blocks == 10
    assert cluster.due_s() == 161.0
    cluster.tick(161.0)
    assert cluster.state.ahead.blocks == 0


def test_what_the_node_has_or_nobody_has_is_not_asked_for() -> None:
    cluster = Waiting()
    cluster.live("r", resume_s=2.0)
    cluster.fact("n1", KvHeld(2, ROOT, keys(*CONTEXT)))
    assert cluster.tick(101.0) == []
    assert cluster.state.ahead.outcomes.nothing_to_fetch == 1


# ---------------------------------------------------------------- the books


def test_many_pauses_without_end_take_no_room_for_ever() -> None:
    books = FetchAheads()
    for number in range(5000):
        branch = ("t", f"b{number % 10}")
        books.ended(branch, float(number))
        books.began(branch, ROOT, float(number))
        books.plan(branch, 1e6 + number)
    assert len(books._heap) <= 2 * 10 + 257
    assert books.next_s() == 1e6 + 4990
    assert books.check() == []
    assert [key[1] for key, _ in books.due(2e6)] == [f"b{i}" for i in range(10)]
    assert books.next_s() is None


def test_the_branches_used_last_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "MOST_BRANCHES", 3)
    books = FetchAheads()
    for name in "abcd":
        books.began(("t", name), ROOT, 1.0)
        books.plan(("t", name), 5.0)
    assert [branch for _, branch in books.pauses] == ["b", "c", "d"]
    assert books.check() == []
    assert [branch[1] for branch, _ in books.due(9.0)] == ["b", "c", "d"]


def test_a_usual_pause_is_of_the_last_eight() -> None:
    books = FetchAheads()
    pause = books.began(("t", "b"), ROOT, 0.0)
    now_s = 0.0
    for length_s in (900.0, 800.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0):
        assert len(pause.lengths_s) >= 2 or pause.usual_s is None
        now_s += length_s
        books.ended(("t", "b"), now_s)
        books.began(("t", "b"), ROOT, now_s)
    assert pause.usual_s == 4.0
