"""Where requests go."""

from __future__ import annotations

from evctl.core.branches import BranchSignal
from evctl.core.effects import Dispatch, Fail, RefDelta, Reject
from evctl.core.events import (
    BranchSignalled,
    DispatchFailed,
    IterationSample,
    KvEvicted,
    NodeLost,
    NodeReport,
    RequestArrived,
    RequestCancelled,
    Tick,
)
from evctl.core.split import Phase
from tests.policy.cluster import Cluster, keys, of


def test_prefill_goes_where_least_is_ahead_and_ties_break_by_name() -> None:
    cluster = Cluster()
    nodes = [cluster.arrive(f"r{i}").prefill_node for i in range(4)]
    assert nodes == ["n1", "n2", "n1", "n2"]
    assert all(d.decode_node == "n3" for d in of(cluster.log, Dispatch))


def test_every_decision_is_explained_with_all_candidates() -> None:
    cluster = Cluster()
    cluster.arrive("r1")
    cluster.arrive("r2")
    assert cluster.last is not None
    (why,) = cluster.last.explanations
    assert why.subject == "request r2"
    assert set(why.terms) == {"prefill n1", "prefill n2", "decode n3"}
    ahead, free = why.terms["prefill n1"], why.terms["prefill n2"]
    assert ahead["queued_s"] > 0 == free["queued_s"]
    assert ahead["total_s"] == ahead["remaining_s"] + ahead["queued_s"] + ahead["own_s"]


def test_a_stored_prefix_draws_a_request_until_the_queue_costs_more() -> None:
    cluster = Cluster()
    cluster.holds("n2", 1, 1, 2)
    prompt = keys(1, 2, 3)
    assert cluster.arrive("r1", 12, prompt).prefill_node == "n2"
    assert cluster.arrive("long", 400).prefill_node == "n1"
    assert cluster.arrive("r2", 12, prompt).prefill_node == "n2"
    cluster.feed(RequestArrived("block", "t", None, 4000, 1, b"", keys(1, 2)))
    assert cluster.arrive("r3", 12, prompt).prefill_node == "n1"


def test_an_evicted_prefix_draws_nobody() -> None:
    cluster = Cluster()
    cluster.holds("n2", 1, 1, 2)
    cluster.holds("n2", 2, 1, 2)
    cluster.fact("n2", KvEvicted(1, keys(1, 2)))
    assert cluster.leading("n2", 1, 2) == 2
    cluster.fact("n2", KvEvicted(2, keys(1)))
    assert cluster.leading("n2", 1, 2) == 0
    assert cluster.arrive("r1", 12, keys(1, 2, 3)).prefill_node == "n1"


def test_simultaneous_forks_go_where_their_prefix_is_being_computed() -> None:
    """Waiting for 400 tokens costs less than computing them again beside a long queue."""
    cluster = Cluster()
    context = keys(*range(100))
    assert cluster.arrive("parent", 400, context).prefill_node == "n1"
    assert cluster.arrive("other", 800).prefill_node == "n2"
    forks = [cluster.arrive(f"f{i}", 404, context + keys(1000 + i)) for i in range(5)]
    assert {fork.prefill_node for fork in forks} == {"n1"}
    cluster.decode("parent")
    cluster.done("parent")
    assert cluster.leading("n1", 0) == 1, "the forks promise it still"


def test_a_promise_ends_with_its_request() -> None:
    cluster = Cluster()
    cluster.arrive("parent", 40, keys(*range(10)))
    cluster.feed(DispatchFailed("parent", "n1", "EV-2306", "never fits", retry=False))
    assert cluster.leading("n1", 0) == 0


def test_forks_spread_when_computing_again_is_cheaper_than_waiting() -> None:
    cluster = Cluster()
    context = keys(*range(5))
    assert cluster.arrive("parent", 20, context).prefill_node == "n1"
    assert cluster.arrive("busy", 14000, b"").prefill_node == "n2"
    assert cluster.arrive("more", 3000, b"").prefill_node == "n1"
    cluster.beat()
    for _ in range(30):
        cluster.fact("n1", IterationSample(Phase.PREFILL, 0.1, 100, 1.0, 0, 0))
        cluster.fact("n2", IterationSample(Phase.PREFILL, 0.001, 400, 1.0, 0, 0))
    assert cluster.arrive("fork", 24, context).prefill_node == "n2"


def test_speed_is_learned_from_iterations_that_only_prefill() -> None:
    cluster = Cluster()
    prior_s = cluster.state.token_s(cluster.state.nodes["n1"])
    cluster.fact("n1", IterationSample(Phase.PREFILL, 50.0, 100, 1.0, 0, 3))
    assert cluster.state.token_s(cluster.state.nodes["n1"]) == prior_s
    for _ in range(20):
        cluster.fact("n1", IterationSample(Phase.PREFILL, 1.0, 100, 1.0, 0, 0))
    assert 0.009 < cluster.state.token_s(cluster.state.nodes["n1"]) < 0.011
    assert 0.009 < cluster.state.token_s(cluster.state.nodes["n3"]) < 0.011, "taken from n1"
    for _ in range(20):
        cluster.fact("n2", IterationSample(Phase.PREFILL, 0.1, 100, 1.0, 0, 0))
    assert [cluster.arrive(f"r{i}").prefill_node for i in range(3)] == ["n2", "n2", "n2"]


def test_running_prefills_shrink_as_iterations_report() -> None:
    cluster = Cluster(split="1P2D")
    for name in ("a", "b"):
        cluster.arrive(name, 100)
        cluster.start(name)
    cluster.fact("n1", IterationSample(Phase.PREFILL, 0.1, 130, 1.0, 0, 0))
    left = {r.request_id: r.remaining_tokens for r in cluster.state.requests.values()}
    assert left == {"a": 0, "b": 70}


def test_decode_goes_to_the_node_with_fewest_and_room() -> None:
    cluster = Cluster(4, "2P2D")
    assert [cluster.arrive(f"r{i}").decode_node for i in range(3)] == ["n3", "n4", "n3"]
    cluster.feed(NodeReport("n4", "boot1", 0, 0, 0, 0, 995, 0))
    assert cluster.arrive("r3").decode_node == "n3", "n4 has fewer, and no room"


def test_a_full_queue_turns_requests_away_with_a_time() -> None:
    cluster = Cluster(max_queued=2)
    cluster.arrive("r1", 8000)
    cluster.arrive("r2", 8000)
    (effect,) = cluster.feed(RequestArrived("r3", "t", None, 40, 16, b"", b""))
    assert isinstance(effect, Reject)
    assert 1.0 < effect.retry_after_s < 30.0
    cluster.start("r1")
    assert cluster.arrive("r4").request_id == "r4"


def test_without_nodes_requests_are_turned_away() -> None:
    cluster = Cluster(2, "1P1D")
    for name in ("n1", "n2"):
        cluster.feed(NodeLost(name, "boot1", "gone"))
    (effect,) = of(cluster.feed(RequestArrived("r", "t", None, 40, 16, b"", b"")), Reject)
    assert "alive" in effect.reason  # type: ignore[union-attr]


def test_a_refused_dispatch_goes_elsewhere_and_ends_in_an_error_at_last() -> None:
    cluster = Cluster(4, "3P1D")
    assert cluster.arrive("r").prefill_node == "n1"
    for expected in ("n2", "n3"):
        node = cluster.state.requests["r"].prefill_node
        (again,) = cluster.feed(DispatchFailed("r", node, "EV-2307", "full", retry=True))
        assert isinstance(again, Dispatch)
        assert again.prefill_node == expected
    end, _ = cluster.feed(DispatchFailed("r", "n3", "EV-2307", "full", retry=True))
    assert isinstance(end, Fail)
    assert "EV-2307" in end.reason


def test_a_step_that_changes_no_node_asks_none_of_them_anew() -> None:
    """What a hundred nodes cost each event: nothing, until one changes or may be late."""
    cluster = Cluster(9, "4P5D")
    cluster.beat()
    state = cluster.state
    assert (state.unsettled, state.late_from_s) == ((), 105.0)
    cluster.now_s += 2.0
    cluster.beat()
    cluster.arrive("r", 40)
    assert cluster.last is not None
    assert (state.late_from_s, cluster.last.next_tick_s) == (105.0, 105.0), "early does no harm"
    cluster.now_s = 105.0
    cluster.feed(Tick())
    assert (state.late_from_s, cluster.last.next_tick_s) == (107.0, 107.0)
    cluster.beat()
    cluster.feed(NodeLost("n1", "boot1", "gone"))
    assert state.late_from_s == 110.0


def test_late_nodes_get_no_new_work_until_they_report() -> None:
    cluster = Cluster()
    cluster.now_s += 4.5
    cluster.beat("n2", "n3")
    assert cluster.last is not None
    assert cluster.last.next_tick_s == 105.0
    cluster.now_s = 105.0
    (notice,) = cluster.feed(Tick())
    assert "late" in str(notice)
    assert {cluster.arrive(f"r{i}").prefill_node for i in range(4)} == {"n2"}
    cluster.beat("n1")
    assert cluster.arrive("r9").prefill_node == "n1"


def test_when_all_nodes_are_late_work_goes_on() -> None:
    cluster = Cluster()
    cluster.now_s += 60
    cluster.feed(Tick())
    assert cluster.arrive("r1").prefill_node == "n1"
    assert cluster.last is not None
    assert cluster.last.next_tick_s is None


def test_what_a_node_held_before_is_not_called_unneeded() -> None:
    """After a restart of the control plane nobody refers to it yet; its branch may come back."""
    cluster = Cluster()
    cluster.holds("n1", 1, 1, 2)
    assert not of(cluster.log, RefDelta)
    branch = BranchSignal("b")
    cluster.feed(RequestArrived("r1", "t", branch, 12, 16, b"", keys(1, 2, 3)))
    cluster.feed(RequestCancelled("r1"))
    cluster.feed(BranchSignalled("t", "end", branch))
    told = [(e.node, e.ref_class, e.keys) for e in of(cluster.log, RefDelta)]
    assert ("n1", 0, keys(1, 2)) in told, "once a branch had it and ended, it is"


def test_a_final_request_that_its_client_leaves_ends_the_branch() -> None:
    cluster = Cluster()
    last = BranchSignal("b", final=True)
    cluster.feed(RequestArrived("r1", "t", last, 12, 16, b"", keys(1, 2, 3)))
    assert ("t", "b") in cluster.state.directory.ledger.branches
    cluster.feed(RequestCancelled("r1"))
    assert ("t", "b") not in cluster.state.directory.ledger.branches
