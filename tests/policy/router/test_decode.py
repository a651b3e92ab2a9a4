"""Where requests decode, and what a decision leans on beside Eq. 7's times."""

from __future__ import annotations

import pytest

from evctl.core.branches import BranchSignal
from evctl.core.costs import Coefficients
from evctl.core.errors import UsageError
from evctl.core.events import CoefficientsFitted, FetchEnded, NodeReport, Tick
from evctl.core.split import Phase
from evctl.policy.candidates import candidates
from evctl.policy.links import FetchPrior
from evctl.policy.state import ClusterState, PolicyConfig
from tests.policy.cluster import Cluster, keys


def decodes_in(base_s: float, each_s: float) -> Coefficients:
    return Coefficients(1e-3, 1e-3, 0.0, 0.0, base_s, 0.0, each_s)


def terms(cluster: Cluster, name: str) -> dict[str, float]:
    assert cluster.last is not None
    return cluster.last.explanations[-1].terms[name]


def test_decode_goes_where_an_iteration_will_take_least_not_where_fewest_are() -> None:
    cluster = Cluster(3, "1P2D")
    cluster.feed(CoefficientsFitted("n2", decodes_in(0.010, 0.001), "fitted"))
    cluster.feed(CoefficientsFitted("n3", decodes_in(0.012, 0.0041), "fitted"))
    nodes = [cluster.arrive(f"r{i}").decode_node for i in range(7)]
    assert nodes == [*["n2"] * 6, "n3"], "17 ms with a seventh, against 16.1 with a first"
    assert terms(cluster, "decode n2")["iteration_s"] == pytest.approx(0.017)


def test_where_a_node_has_no_model_requests_are_counted() -> None:
    cluster = Cluster(3, "1P2D")
    cluster.feed(CoefficientsFitted("n3", decodes_in(9.0, 9.0), "fitted"))
    assert [cluster.arrive(f"r{i}").decode_node for i in range(3)] == ["n2", "n3", "n2"]


def test_a_full_node_decodes_only_when_all_are_full() -> None:
    cluster = Cluster(3, "1P2D")
    cluster.feed(NodeReport("n2", "boot1", 0, 0, 0, 0, 995, 0))
    assert cluster.arrive("a").decode_node == "n3"
    cluster.feed(NodeReport("n3", "boot1", 0, 0, 0, 0, 999, 0))
    assert cluster.arrive("b").decode_node == "n2"


def test_room_is_for_one_token_more_than_the_prompt() -> None:
    """What wrong code would pass? One that forgets the block of the first generated token."""
    cluster = Cluster(2, "1P1D")
    for used, has_room in ((989, 1.0), (990, 0.0)):
        cluster.feed(NodeReport("n2", "boot1", 0, 0, 0, 0, used, 0))
        cluster.arrive(f"r{used}", 40)
        assert terms(cluster, "decode n2")["has_room"] == has_room
        cluster.decode(f"r{used}")
        cluster.done(f"r{used}")


@pytest.mark.parametrize(("needed", "weight"), [(False, 0.0), (True, 1.0)])
def test_what_must_make_room_for_a_copy_costs_by_its_class(needed: bool, weight: float) -> None:
    cluster = Cluster(
        3, "2P1D", l2_blocks=10, duplicate_block_s=10.0, prior_fetch=FetchPrior(0.0, 1e-5)
    )
    cluster.holds("n1", 2, *range(8))
    cluster.holds("n2", 2, *range(100, 110))
    if needed:
        cluster.arrive("r0", 41, keys(*range(100, 110)), BranchSignal("b"))
        assert cluster.state.requests["r0"].prefill_node == "n2"
        cluster.decode("r0")
        cluster.done("r0")
    cluster.beat(l2_used=7)
    cluster.arrive("r", 33, keys(*range(8)))
    assert terms(cluster, "prefill n2")["fetch_blocks"] == 8.0
    assert terms(cluster, "prefill n2")["displaced_s"] == pytest.approx(10.0 * 5 * weight)
    assert cluster.state.requests["r"].prefill_node == "n1"


def test_what_was_not_fetched_is_computed_and_not_restored() -> None:
    cluster = Cluster(3, "1P2D", l2_blocks=100)
    cluster.holds("n3", 2, *range(10))
    sent = cluster.arrive("r", 42, keys(*range(10)))
    load = cluster.state.nodes["n1"].load
    assert (load.waiting_restored, load.waiting_tokens, load.fetch_blocks) == (40, 2, 10)
    assert sent.fetch
    cluster.fact("n1", FetchEnded("r", 0, 0, (), 0.1, 0.0, 4))
    assert (load.waiting_restored, load.waiting_tokens, load.fetch_blocks) == (24, 18, 0)


def test_who_may_get_work_is_found_again_when_a_late_node_speaks() -> None:
    cluster = Cluster()
    cluster.now_s += 4.9
    cluster.beat("n2", "n3")
    cluster.arrive("early")
    cluster.now_s += 0.1
    cluster.arrive("late", 4)
    assert "prefill n1" not in (cluster.last.explanations[0].terms if cluster.last else {})
    cluster.feed(Tick())
    cluster.beat("n1")
    cluster.arrive("again", 4)
    assert terms(cluster, "prefill n1")["queued_s"] > 0.0


def test_candidates_are_those_of_the_phase_and_all_where_it_has_none() -> None:
    cluster = Cluster(3, "2P1D")
    state = cluster.state

    def names(phase: Phase, *exclude: str) -> list[str]:
        return [n.name for n in candidates(state, phase, cluster.now_s, exclude)]

    assert (names(Phase.PREFILL), names(Phase.DECODE)) == (["n1", "n2"], ["n3"])
    cluster.hold("1P2D")
    assert (names(Phase.PREFILL), names(Phase.DECODE)) == (["n2"], ["n1", "n3"])
    assert names(Phase.PREFILL, "n2") == ["n1", "n3"]


def test_a_rule_of_routing_that_nobody_knows_is_an_error() -> None:
    with pytest.raises(UsageError) as caught:
        ClusterState(PolicyConfig(("n1", "n2"), "1P1D", routing="fastest"))
    assert caught.value.code == "EV-1109"
