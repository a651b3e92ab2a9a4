"""Every candidate's terms against the formula written down again.

What wrong code would pass? One that errs in the same way as `naive`, which walks where the router
keeps sums, and counts blocks where it compares runs.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evctl.core.costs import Coefficients
from evctl.core.events import CoefficientsFitted, IterationSample, KvEvicted
from evctl.core.split import Phase
from evctl.policy.links import FetchPrior
from tests.policy.cluster import BLOCK_TOKENS, Cluster, key, keys
from tests.policy.router.naive import Pool, expected

NODES = ("n1", "n2", "n3")
LATENCY_S, BLOCK_S = 0.02, 0.004
positive = st.floats(1e-6, 1e-2)
MODELS = st.builds(
    Coefficients, positive, positive, st.floats(0, 1e-5), positive, positive, positive, positive
)
AHEAD = st.tuples(
    st.integers(1, 60),  # prompt tokens
    st.integers(0, 6),  # blocks of the common path
    st.sampled_from(["sent", "begun", "half", "decoding"]),
)


@settings(max_examples=150, deadline=None)
@given(
    models=st.tuples(MODELS, MODELS, MODELS),
    iteration=st.sampled_from([0.0, 32.0]),
    stored=st.tuples(*[st.integers(0, 8)] * 4),
    in_l1=st.tuples(*[st.integers(0, 5)] * 3),
    holes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=3),
    ahead=st.lists(AHEAD, max_size=8),
    tokens=st.integers(1, 45),
    shared=st.integers(0, 8),
)
def test_terms_are_those_of_the_formula(
    models: tuple[Coefficients, ...],
    iteration: float,
    stored: tuple[int, ...],
    in_l1: tuple[int, ...],
    holes: list[tuple[int, int]],
    ahead: list[tuple[int, int, str]],
    tokens: int,
    shared: int,
) -> None:
    cluster = Cluster(
        4, "3P1D", l2_blocks=100, prior_fetch=FetchPrior(LATENCY_S, BLOCK_S), max_queued=99
    )
    for name, model in zip(NODES, models, strict=True):
        cluster.feed(CoefficientsFitted(name, model, "fitted"))
        cluster.state.nodes[name].tokens_per_iteration = iteration
    pool = _store(cluster, stored, in_l1, holes)
    for number, (length, common, until) in enumerate(ahead):
        _request(cluster, f"a{number}", length, common, until)
    prompt = _prompt("new", tokens, shared)
    match = cluster.state.directory.match(keys(*prompt))
    pool.promised = dict(match.promised)
    nodes = [cluster.state.nodes[name] for name in NODES]
    found = {
        node.name: expected(cluster.state, node, prompt, tokens, pool, LATENCY_S, BLOCK_S)
        for node in nodes
    }
    sent = cluster.arrive("new", tokens, keys(*prompt))
    assert cluster.last is not None
    (why,) = cluster.last.explanations
    for name, terms in found.items():
        told = why.terms[f"prefill {name}"]
        for field, value in vars(terms).items():
            assert told[field] == pytest.approx(value), (name, field)
    best = min(found, key=lambda name: (round(found[name].total_s, 12), name))
    assert found[sent.prefill_node].total_s == pytest.approx(found[best].total_s)
    kept = sent.predicted
    assert kept is not None
    chosen = found[sent.prefill_node]
    assert kept.wait_s == pytest.approx(chosen.remaining_s + chosen.queued_s)
    assert (kept.service_s, kept.ttft_s) == (
        pytest.approx(chosen.own_s),
        pytest.approx(chosen.total_s),
    )


def _store(
    cluster: Cluster,
    stored: tuple[int, ...],
    in_l1: tuple[int, ...],
    holes: list[tuple[int, int]],
) -> Pool:
    """Leading blocks 0, 1, ... of the common path, in L2 without some of them."""
    pool = Pool()
    for name, blocks in zip((*NODES, "n4"), stored, strict=True):
        pool.l2[name] = set(range(blocks))
        if blocks:
            cluster.holds(name, 2, *range(blocks))
    for name, blocks in zip(NODES, in_l1, strict=True):
        pool.l1[name] = set(range(blocks))
        if blocks:
            cluster.holds(name, 1, *range(blocks))
    for index, block in holes:
        name = (*NODES, "n4")[index]
        if block in pool.l2[name]:
            pool.l2[name].discard(block)
            cluster.fact(name, KvEvicted(2, key(block)))
    return pool


def _prompt(name: str, tokens: int, shared: int) -> list[int]:
    """So many blocks of the common path, then its own."""
    own = 1000 * (1 + sum(name.encode()))
    return [b if b < shared else own + b for b in range(tokens // BLOCK_TOKENS)]


def _request(cluster: Cluster, name: str, tokens: int, common: int, until: str) -> None:
    sent = cluster.arrive(name, tokens, keys(*_prompt(name, tokens, common)))
    record = cluster.state.requests[name]
    if until == "sent":
        return
    if until == "decoding":
        cluster.decode(name)
        return
    cluster.start(name, tokens - record.uncached_tokens)
    if until == "half":
        half = record.remaining_tokens // 2
        cluster.fact(sent.prefill_node, IterationSample(Phase.PREFILL, 0.1, half, 1.0, 0, 1))
