"""Shortest remaining prefill first: what is ahead of whom, and that nobody starves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evctl.core.costs import Coefficients
from evctl.core.events import CoefficientsFitted, IterationSample, RequestArrived
from evctl.core.split import Phase
from evctl.policy.order import in_order, left, queue_of, rank_s
from evctl.policy.state import Stage
from tests.policy.cluster import Cluster

AGEING = 0.1
TOKEN_S = 1e-3


def cluster_of(**config: object) -> Cluster:
    """One node that prefills, 1 ms a token, whatever its place in the prompt."""
    cluster = Cluster(
        2, "1P1D", shortest_first=True, prefill_ageing=AGEING, max_queued=10**6, **config
    )
    model = Coefficients(0.0, TOKEN_S, 0.0, 0.0, 1e-3, 0.0, 1e-4)
    cluster.feed(CoefficientsFitted("n1", model, "fitted"))
    return cluster


def wait_of(cluster: Cluster, request_id: str) -> float:
    assert cluster.last is not None
    (why,) = cluster.last.explanations
    assert why.subject == f"request {request_id}"
    terms = why.terms["prefill n1"]
    return terms["remaining_s"] + terms["queued_s"]


def test_only_shorter_work_is_ahead_of_a_short_request() -> None:
    cluster = cluster_of()
    cluster.arrive("long", 3000)
    cluster.arrive("short", 100)
    assert wait_of(cluster, "short") == 0.0
    cluster.arrive("middle", 500)
    assert wait_of(cluster, "middle") == pytest.approx(0.1)
    cluster.arrive("longest", 4000)
    assert wait_of(cluster, "longest") == pytest.approx(3.6)


def test_without_the_switch_all_are_ahead() -> None:
    cluster = Cluster(2, "1P1D")
    cluster.arrive("long", 3000)
    cluster.arrive("short", 100)
    assert wait_of(cluster, "short") == pytest.approx(3.0)


def test_one_that_has_waited_long_is_ahead_of_a_shorter_one() -> None:
    cluster = cluster_of()
    cluster.arrive("long", 1000)
    cluster.now_s += 8.9
    cluster.arrive("short", 100)
    assert wait_of(cluster, "short") == 0.0, "0.9 s less work, 8.9 s later"
    cluster.now_s += 0.2
    cluster.arrive("later", 100)
    assert wait_of(cluster, "later") == pytest.approx(1.1)


def test_of_a_longer_one_that_runs_the_chunk_under_way_is_ahead() -> None:
    cluster = cluster_of()
    cluster.state.nodes["n1"].tokens_per_iteration = 256.0
    cluster.arrive("long", 2560)
    cluster.start("long")
    cluster.arrive("short", 100)
    assert wait_of(cluster, "short") == pytest.approx(0.256)


def test_what_is_left_counts_not_what_there_was() -> None:
    cluster = cluster_of()
    cluster.arrive("long", 3000)
    cluster.start("long")
    cluster.fact("n1", IterationSample(Phase.PREFILL, 2.9, 2950, 1.0, 0, 0))
    cluster.arrive("short", 100)
    assert wait_of(cluster, "short") == pytest.approx(0.05)


def test_iterations_advance_the_shortest_first() -> None:
    """What wrong code would pass? One that takes tokens off in the order of arrival, so that the
    router waits for work that is done."""
    cluster = cluster_of()
    for name, tokens in (("long", 1000), ("short", 100)):
        cluster.arrive(name, tokens)
        cluster.start(name)
    cluster.fact("n1", IterationSample(Phase.PREFILL, 0.1, 130, 1.0, 0, 0))
    remaining = {r.request_id: r.remaining_tokens for r in cluster.state.requests.values()}
    assert remaining == {"long": 970, "short": 0}


REQUESTS = st.lists(
    st.tuples(st.integers(1, 4000), st.floats(0, 30), st.sampled_from(["sent", "begun", "half"])),
    max_size=9,
)


@settings(max_examples=100, deadline=None)
@given(requests=REQUESTS, tokens=st.integers(1, 4000))
def test_sums_by_rank_are_those_of_the_list(
    requests: list[tuple[int, float, str]], tokens: int
) -> None:
    cluster = cluster_of()
    node = cluster.state.nodes["n1"]
    node.tokens_per_iteration = 300.0
    for number, (length, pause_s, until) in enumerate(requests):
        cluster.now_s += pause_s
        name = f"r{number}"
        cluster.feed(RequestArrived(name, "t", None, length, 1, b"", b""))
        if until != "sent":
            cluster.start(name)
        if until == "half":
            cluster.state.requests[name].remaining_tokens = length // 2
            cluster.state.recount(cluster.state.requests[name])
    mine = tokens * TOKEN_S + AGEING * cluster.now_s
    running = waiting = chunk = 0.0
    for record in cluster.state.requests.values():
        work_s = left(record) * TOKEN_S
        if work_s + AGEING * record.arrived_s <= mine:
            waiting += work_s * (record.stage is Stage.WAITING)
            running += work_s * (record.stage is Stage.PREFILL)
        elif record.stage is Stage.PREFILL:
            chunk = max(chunk, min(work_s, 300 * TOKEN_S))
    found = queue_of(cluster.state, node).ahead_s(rank_s(tokens, TOKEN_S, AGEING, cluster.now_s))
    assert found == (pytest.approx(running + chunk), pytest.approx(waiting))


def test_a_long_one_is_overtaken_only_for_work_over_ageing_seconds() -> None:
    """A flood of short requests, three times what the node computes: those that come later than
    that wait behind the long one, so that it starts. What wrong code would pass? None that
    forgets to age, for then it never does."""
    cluster = cluster_of()
    cluster.arrive("long", 2000)
    node = cluster.state.nodes["n1"]
    bound_s = 2000 * TOKEN_S / AGEING
    dice = random.Random(3)
    arrived_s: dict[str, float] = {}
    overtook = []
    while (first := in_order(cluster.state, node)[0].request_id) != "long" or not overtook:
        assert len(overtook) < 100, "it starves"
        if first != "long":
            overtook.append(first)
            cluster.decode(first)
            cluster.done(first)
        cluster.now_s += 1.0
        for _ in range(3):
            name = f"s{len(arrived_s)}"
            arrived_s[name] = cluster.now_s
            cluster.feed(RequestArrived(name, "t", None, dice.randrange(300, 600), 1, b"", b""))
    assert max(arrived_s[name] for name in overtook) <= 100.0 + bound_s
