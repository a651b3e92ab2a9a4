"""What others would do with the same candidates."""

from __future__ import annotations

from collections import Counter

import pytest

from evctl.core.branches import BranchSignal
from evctl.core.events import NodeLost, NodeReport, RequestArrived
from evctl.policy.baselines.routing import BALANCE_ABS_THRESHOLD
from evctl.policy.cluster import ROUTING_NAMES
from evctl.policy.router import ROUTINGS
from tests.policy.cluster import Cluster, keys


def test_names_of_rules_are_those_that_configs_may_give() -> None:
    assert tuple(ROUTINGS) == ROUTING_NAMES


def test_round_robin_takes_turns_in_both_phases_whatever_is_where() -> None:
    cluster = Cluster(4, "2P2D", routing="round-robin")
    cluster.holds("n1", 1, *range(9))
    sent = [cluster.arrive(f"r{i}", 40, keys(*range(9))) for i in range(4)]
    assert [s.prefill_node for s in sent] == ["n1", "n2", "n1", "n2"]
    assert [s.decode_node for s in sent] == ["n3", "n4", "n3", "n4"]


def test_round_robin_decode_passes_over_full_nodes() -> None:
    cluster = Cluster(4, "1P3D", routing="round-robin")
    cluster.feed(NodeReport("n3", "boot1", 0, 0, 0, 0, 1000, 0))
    assert {cluster.arrive(f"r{i}").decode_node for i in range(4)} == {"n2", "n4"}


def test_a_session_stays_on_its_node_and_only_those_of_a_lost_one_move() -> None:
    cluster = Cluster(5, "4P1D", routing="session", max_queued=999)

    def placed(turn: int) -> dict[int, str]:
        found = {}
        for number in range(60):
            branch = BranchSignal(f"b{number}-{turn}", session=f"s{number}")
            name = f"r{number}-{turn}"
            found[number] = cluster.arrive(name, 8, branch=branch).prefill_node
        return found

    first, second = placed(0), placed(1)
    assert first == second
    counts = Counter(first.values())
    assert set(counts) == {"n1", "n2", "n3", "n4"}
    assert max(counts.values()) < 30, "they are spread"
    cluster.feed(NodeLost("n2", "boot1", "gone"))
    third = placed(2)
    assert all(third[n] == node for n, node in first.items() if node != "n2")
    assert "n2" not in third.values()


@pytest.mark.parametrize("pair", [("s1", "s12"), ("s", "s1")])
def test_sessions_are_told_apart_exactly(pair: tuple[str, str]) -> None:
    """A gateway took one for another whose name it begins."""
    cluster = Cluster(9, "8P1D", routing="session")
    nodes = [
        cluster.arrive(f"r{i}", branch=BranchSignal(f"b{i}", session=session)).prefill_node
        for i, session in enumerate(pair)
    ]
    assert nodes[0] != nodes[1], "by these names; they might be equal by chance"


def test_without_session_or_branch_requests_are_spread() -> None:
    cluster = Cluster(5, "4P1D", routing="session")
    nodes = {cluster.arrive(f"r{i}").prefill_node for i in range(20)}
    assert len(nodes) == 4


def test_cache_aware_goes_to_the_longest_prefix_whatever_waits_there() -> None:
    cluster = Cluster(3, "2P1D", routing="cache-aware")
    cluster.holds("n2", 1, *range(9))
    for number in range(5):
        assert cluster.arrive(f"r{number}", 40, keys(*range(9))).prefill_node == "n2"


def test_cache_aware_goes_to_who_keeps_least_when_little_matches() -> None:
    cluster = Cluster(3, "2P1D", routing="cache-aware")
    cluster.holds("n1", 1, *range(9))
    cluster.holds("n2", 1, *range(100, 120))
    prompt = keys(0, 1, *range(50, 58))  # 8 tokens of 40 are there
    assert cluster.arrive("r1", 40, prompt).prefill_node == "n1", "it keeps least as well"
    other = keys(100, 101, *range(60, 68))
    assert cluster.arrive("r2", 40, other).prefill_node == "n1"


def test_cache_aware_leaves_the_prefix_when_loads_differ_much() -> None:
    cluster = Cluster(3, "2P1D", routing="cache-aware", max_queued=999)
    cluster.holds("n2", 1, *range(9))
    nodes = [
        cluster.arrive(f"r{i}", 40, keys(*range(9))).prefill_node
        for i in range(BALANCE_ABS_THRESHOLD + 2)
    ]
    assert nodes == [*["n2"] * (BALANCE_ABS_THRESHOLD + 1), "n1"]


@pytest.mark.parametrize("routing", ROUTING_NAMES)
def test_all_of_them_plan_fetches_explain_and_predict(routing: str) -> None:
    cluster = Cluster(4, "3P1D", l2_blocks=100, routing=routing)
    cluster.holds("n4", 2, *range(9))
    sent = cluster.arrive("r", 40, keys(*range(10)), BranchSignal("b"))
    assert [(p.start, p.end, p.nodes) for p in sent.fetch] == [(0, 9, ("n4",))]
    assert sent.predicted is not None
    assert sent.predicted.ttft_s >= sent.predicted.service_s > 0.0
    assert cluster.last is not None
    assert len(cluster.last.explanations[0].terms) == 4
    assert cluster.feed(RequestArrived("s", "t", None, 40, 1, b"", b""))
