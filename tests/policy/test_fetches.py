"""What a prefill node fetches from its peers' host memory, and what that is worth."""

from __future__ import annotations

import random

import pytest

from evctl.core.branches import BranchSignal
from evctl.core.effects import Dispatch, RefDelta
from evctl.core.events import (
    DispatchFailed,
    FetchEnded,
    KvEvicted,
    NodeLost,
    PrefillStarted,
    Recalled,
    RequestCancelled,
)
from evctl.core.kv import FetchPiece, FetchSource
from evctl.policy.links import FetchPrior, FetchSpeed
from tests.policy.cluster import BLOCK_TOKENS, Cluster, key, keys, of, sent

PATH = tuple(range(10))
PROMPT = 42
"""Tokens: the path's blocks and a tail, so that none of them holds the last token."""
FAST = FetchPrior(1e-4, 1e-5)


def pool(nodes: int = 4, split: str = "3P1D", **config: object) -> Cluster:
    return Cluster(nodes, split, l2_blocks=100, **{"prior_fetch": FAST, **config})


def leased(cluster: Cluster) -> dict[str, int]:
    """Node -> blocks that are read from it."""
    return {n.name: n.leased for n in cluster.state.directory.nodes.values() if n.leased}


def fetched(
    request_id: str, blocks: int = 10, missed: int = 0, fetch_s: float = 0.1
) -> FetchEnded:
    peers = (FetchSource("n2", blocks, blocks * 64),) if blocks else ()
    return FetchEnded(request_id, 0, 0, peers, fetch_s, 0.0, missed, "gone" if missed else "")


# ---------------------------------------------------------------- the plan


def test_a_node_fetches_what_a_peer_holds_in_l2_and_it_lacks() -> None:
    cluster = pool()
    cluster.holds("n1", 1, 0, 1, 2)
    cluster.holds("n2", 2, *PATH)
    cluster.arrive("busy", 4000)  # goes to n1
    cluster.arrive("more", 4000)
    assert cluster.state.requests["more"].prefill_node == "n2"
    dispatch = cluster.arrive("r", PROMPT, keys(*PATH))
    assert sent([dispatch]) == [Dispatch("r", "n3", "n4", (FetchPiece(0, 10, ("n2",)),))]
    record = cluster.state.requests["r"]
    assert record.uncached_tokens == PROMPT - 10 * BLOCK_TOKENS
    assert record.fetch_blocks == 10


def test_own_blocks_are_not_fetched_and_pieces_come_in_order() -> None:
    cluster = pool(nodes=5, split="1P4D")
    cluster.holds("n1", 1, 0, 1, 2)
    cluster.holds("n2", 2, 0, 1, 2, 3, 4)
    cluster.holds("n3", 2, *range(8))
    cluster.holds("n4", 1, *PATH)
    dispatch = cluster.arrive("r", PROMPT, keys(*PATH))
    assert dispatch.fetch == (FetchPiece(3, 5, ("n2", "n3")), FetchPiece(5, 8, ("n3",)))
    assert cluster.state.requests["r"].uncached_tokens == PROMPT - 32, "L1 of n4 is no source"


def test_what_follows_a_block_that_nobody_has_is_computed() -> None:
    cluster = pool(split="1P3D")
    cluster.holds("n2", 2, *PATH)
    cluster.fact("n2", KvEvicted(2, key(4)))
    dispatch = cluster.arrive("r", PROMPT, keys(*PATH))
    assert dispatch.fetch == (FetchPiece(0, 4, ("n2",)),)
    cluster.feed(RequestCancelled("r"))
    cluster.holds("n1", 2, 0, 1, 2, 3, 4)
    assert cluster.arrive("s", PROMPT, keys(*PATH)).fetch == (FetchPiece(5, 10, ("n2",)),)


def test_the_block_of_the_last_token_is_not_fetched() -> None:
    cluster = pool(split="1P3D")
    cluster.holds("n2", 2, *PATH)
    assert cluster.arrive("r", 40, keys(*PATH)).fetch == (FetchPiece(0, 9, ("n2",)),)


@pytest.mark.parametrize("why", ["late", "lost", "no L2 here", "promised there only"])
def test_there_is_nothing_to_fetch(why: str) -> None:
    cluster = pool(split="2P2D" if why == "promised there only" else "1P3D")
    if why == "promised there only":
        cluster.arrive("busy", 3000)
        assert cluster.arrive("other", PROMPT, keys(*PATH)).prefill_node == "n2"
        cluster.start("other")
        cluster.feed(RequestCancelled("busy"))
    else:
        cluster.holds("n2", 2, *PATH)
    if why == "late":
        cluster.now_s += 4.5
        cluster.beat("n1", "n3", "n4")
        cluster.now_s += 1.0
    elif why == "lost":
        cluster.feed(NodeLost("n2", "boot1", "gone"))
    elif why == "no L2 here":
        cluster.state.nodes["n1"].l2_blocks = 0
    dispatch = cluster.arrive("r", PROMPT, keys(*PATH))
    assert dispatch.prefill_node == "n1"
    assert dispatch.fetch == ()
    assert cluster.state.requests["r"].uncached_tokens == PROMPT


def test_load_spreads_over_the_peers_that_have_a_piece() -> None:
    cluster = pool(nodes=6, split="1P5D")
    for name in ("n5", "n4", "n3", "n2"):
        cluster.holds(name, 2, *PATH)
    assert cluster.arrive("r", PROMPT, keys(*PATH)).fetch[0].nodes == ("n2", "n3", "n4")
    assert leased(cluster) == {"n2": 10}
    for name in ("n2", "n3"):
        cluster.holds(name, 2, 50, 51, 52)
    other = cluster.arrive("other", 14, keys(50, 51, 52))
    assert other.fetch == (FetchPiece(0, 3, ("n3", "n2")),)
    for name in ("r", "other"):
        cluster.feed(RequestCancelled(name))
    long = tuple(range(20))
    cluster.holds("n2", 2, *long)
    cluster.holds("n3", 2, *long)
    pieces = cluster.arrive("long", 82, keys(*long)).fetch
    assert pieces == (FetchPiece(0, 10, ("n2", "n3", "n4")), FetchPiece(10, 20, ("n3", "n2")))
    assert leased(cluster) == {"n2": 10, "n3": 10}


# ---------------------------------------------------------------- leases


def waiting(cluster: Cluster) -> None:
    """A request on n1 that fetches from n2, whose blocks nobody refers to."""
    cluster.holds("n2", 2, *PATH)
    assert cluster.arrive("r", PROMPT, keys(*PATH)).fetch == (FetchPiece(0, 10, ("n2",)),)
    assert leased(cluster) == {"n2": 10}


def test_what_is_read_is_kept_until_the_fetch_ends_and_repeats_change_nothing() -> None:
    cluster = pool(split="1P3D")
    last = BranchSignal("b", final=True)
    cluster.arrive("before", PROMPT, keys(*PATH), last)
    cluster.decode("before")
    cluster.holds("n2", 2, *PATH)
    cluster.done("before")
    cluster.fact("n1", KvEvicted(1, keys(*PATH)))
    cluster.arrive("r", PROMPT, keys(*PATH))
    assert leased(cluster) == {"n2": 10}
    ended = fetched("r")
    told = of(cluster.fact("n1", ended), RefDelta)
    assert [(e.node, e.ref_class, e.keys) for e in told] == [("n2", 0, keys(*PATH))]  # type: ignore[union-attr]
    assert leased(cluster) == {}
    learned = cluster.state.nodes["n1"].fetches.weight
    assert cluster.fact("n1", ended) == []
    assert cluster.state.nodes["n1"].fetches.weight == learned
    cluster.start("r", 40)
    assert cluster.fact("n1", ended) == []
    cluster.decode("r")
    cluster.done("r")
    assert cluster.fact("n1", ended) == []


@pytest.mark.parametrize(
    "end", ["started", "cancelled", "refused", "source lost", "node lost", "recalled"]
)
def test_leases_end_however_the_wait_ends(end: str) -> None:
    cluster = pool(split="1P3D")
    waiting(cluster)
    if end == "started":
        cluster.fact("n1", PrefillStarted("r", 40, 2))
    elif end == "cancelled":
        cluster.feed(RequestCancelled("r"))
    elif end == "refused":
        cluster.feed(DispatchFailed("r", "n1", "EV-2306", "never fits", retry=False))
    elif end == "source lost":
        cluster.feed(NodeLost("n2", "boot1", "gone"))
    elif end == "node lost":
        (again,) = of(cluster.feed(NodeLost("n1", "boot1", "gone")), Dispatch)
        assert again.prefill_node == "n2"  # type: ignore[union-attr]
        assert again.fetch == (), "it holds it itself"  # type: ignore[union-attr]
    else:
        cluster.hold("2P2D")
        (again,) = of(cluster.fact("n1", Recalled("r")), Dispatch)
        assert again.fetch == (FetchPiece(0, 10, ("n2",)),) or again.prefill_node == "n2"  # type: ignore[union-attr]
        cluster.feed(RequestCancelled("r"))
    assert leased(cluster) == {}


def test_what_did_not_come_must_be_computed() -> None:
    cluster = pool(split="1P3D")
    waiting(cluster)
    cluster.fact("n1", fetched("r", blocks=4, missed=6))
    assert cluster.state.requests["r"].uncached_tokens == 2 + 24
    assert cluster.state.requests["r"].remaining_tokens == 26


# ---------------------------------------------------------------- the router


def terms(cluster: Cluster, node: str) -> dict[str, float]:
    assert cluster.last is not None
    return cluster.last.explanations[-1].terms[f"prefill {node}"]


def test_a_cheap_fetch_makes_an_idle_node_as_good_as_the_one_that_has_it() -> None:
    cluster = pool()
    cluster.holds("n1", 2, *PATH)
    assert cluster.arrive("r1", PROMPT, keys(*PATH)).prefill_node == "n1"
    assert terms(cluster, "n2") == pytest.approx(
        {
            "total_s": 0.002 + 0.0002,
            "remaining_s": 0.0,
            "queued_s": 0.0,
            "own_s": 0.002,
            "cached_tokens": 0.0,
            "uncached_tokens": 2.0,
            "fetch_blocks": 10.0,
            "fetch_s": 0.0002,
            "exposed_s": 0.0002,
            "displaced_s": 0.0,
        }
    )
    second = cluster.arrive("r2", PROMPT, keys(*PATH))
    assert (second.prefill_node, second.fetch) == ("n2", (FetchPiece(0, 10, ("n1",)),))


def test_a_slow_fetch_is_only_worth_it_behind_a_queue() -> None:
    cluster = pool(prior_fetch=FetchPrior(0.0, 0.1))
    cluster.holds("n1", 2, *PATH)
    cluster.arrive("a", 500)
    assert cluster.arrive("r", PROMPT, keys(*PATH)).prefill_node == "n1", "0.5 s are less than 1"
    assert terms(cluster, "n2")["exposed_s"] == pytest.approx(1.0)
    cluster.arrive("b", 2000)
    cluster.arrive("c", 1500)
    assert cluster.state.requests["c"].prefill_node == "n3"
    assert cluster.arrive("s", PROMPT, keys(*PATH)).prefill_node == "n1"
    assert terms(cluster, "n3")["exposed_s"] == 0.0, "the queue hides it"
    assert terms(cluster, "n3")["total_s"] == pytest.approx(1.502)


def test_without_l2_a_node_computes_again() -> None:
    cluster = pool()
    cluster.state.nodes["n2"].l2_blocks = 0
    cluster.holds("n1", 2, *PATH)
    cluster.arrive("r", PROMPT, keys(*PATH))
    assert (terms(cluster, "n2")["fetch_blocks"], terms(cluster, "n2")["own_s"]) == (0.0, 0.042)
    assert terms(cluster, "n3")["fetch_blocks"] == 10.0


def test_a_fetch_queues_behind_others_of_its_node() -> None:
    cluster = pool(split="1P3D", prior_fetch=FetchPrior(0.5, 0.1))
    waiting(cluster)
    assert terms(cluster, "n1")["fetch_s"] == pytest.approx(1.5)
    cluster.holds("n3", 2, 0, 91, 92, 93)
    cluster.arrive("s", 18, keys(0, 91, 92, 93))
    assert terms(cluster, "n1")["fetch_blocks"] == 3.0, "block 0 is promised there"
    assert terms(cluster, "n1")["fetch_s"] == pytest.approx(1.8)
    cluster.fact("n1", fetched("r", fetch_s=3.0))
    speed = cluster.state.nodes["n1"].fetches
    assert (speed.blocks, speed.seconds) == (10.0, 3.0)
    cluster.fact("n1", fetched("s", blocks=3, fetch_s=3.0))
    assert speed.blocks == 10.0 * 0.95 + 13.0, "it had to wait for the first"


def test_copies_that_push_needed_blocks_out_cost_what_lambda_says() -> None:
    cluster = pool(duplicate_block_s=0.5)
    cluster.holds("n1", 2, *PATH)
    cluster.holds("n2", 2, 50, 51, 52)
    cluster.beat(l2_used=94)
    cluster.arrive("r", PROMPT, keys(*PATH))
    assert terms(cluster, "n2")["displaced_s"] == 0.0, "what nobody refers to is free to go"
    assert terms(cluster, "n3")["displaced_s"] == 0.0
    cluster.feed(RequestCancelled("r"))
    cluster.arrive("keeps", 14, keys(50, 51, 52), BranchSignal("b"))
    assert cluster.state.requests["keeps"].prefill_node == "n2"
    cluster.arrive("s", PROMPT, keys(*PATH))
    assert terms(cluster, "n2")["displaced_s"] == 1.5, "6 blocks are free, 3 of 3 others needed"


# ---------------------------------------------------------------- the model of links


def test_the_model_finds_latency_and_time_a_block_and_leaves_the_prior() -> None:
    prior = FetchPrior(0.01, 0.0005)
    speed = FetchSpeed()
    assert speed.fetch_s(0, prior) == 0.0
    assert speed.fetch_s(100, prior) == pytest.approx(0.06)
    for blocks in (10, 200, 40, 100) * 10:
        speed.observe(blocks, 0.2 + 0.002 * blocks)
    assert speed.fetch_s(150, prior) == pytest.approx(0.5, rel=0.05)
    assert speed.fetch_s(10, prior) == pytest.approx(0.22, rel=0.2)
    for odd in ((0, 1.0), (5, 0.0), (5, float("inf")), (5, float("nan")), (-3, 1.0)):
        before = speed.fetch_s(10, prior)
        speed.observe(*odd)
        assert speed.fetch_s(10, prior) == before


def test_times_are_never_negative_whatever_was_seen() -> None:
    prior = FetchPrior(0.01, 0.0005)
    for pairs in ([(1000, 0.001), (1, 5.0)], [(1, 1e-9), (1000, 50.0)], [(7, 3.0)] * 30):
        speed = FetchSpeed()
        for blocks, seconds in pairs * 5:
            speed.observe(blocks, seconds)
        times = [speed.fetch_s(blocks, prior) for blocks in (1, 10, 100, 1000)]
        assert times == sorted(times)
        assert times[0] >= 0.0


# ---------------------------------------------------------------- against the block model


@pytest.mark.parametrize("seed", range(40))
def test_plans_are_what_a_model_of_single_blocks_says(seed: int) -> None:
    """Nodes hold and lose blocks of two tiers at random; forks cut the path into runs."""
    chance = random.Random(seed)
    cluster = pool(nodes=5, split="1P4D")
    names = ["n1", "n2", "n3", "n4", "n5"]
    copies: dict[tuple[str, int], set[int]] = {(n, tier): set() for n in names for tier in (1, 2)}
    for _ in range(25):
        name, tier = chance.choice(names), chance.choice((1, 2, 2))
        end = chance.randrange(1, 11)
        if chance.random() < 0.6:
            cluster.holds(name, tier, *range(end))
            copies[name, tier] |= set(range(end))
        elif chance.random() < 0.3:
            cluster.holds(name, 1, *range(end), 100 + end)
            copies[name, 1] |= set(range(end))
        else:
            gone = chance.randrange(end)
            cluster.fact(name, KvEvicted(tier, keys(*range(gone, end))))
            copies[name, tier] -= set(range(gone, end))
    own = 0
    while own in copies["n1", 1] | copies["n1", 2]:
        own += 1
    expected: list[tuple[int, frozenset[str]]] = []
    for at in range(own, 10):
        who = frozenset(name for name in names if at in copies[name, 2])
        if not who:
            break
        if "n1" not in who:
            expected.append((at, who))
    planned = [
        (at, set(piece.nodes))
        for piece in cluster.arrive("r", PROMPT, keys(*PATH)).fetch
        for at in range(piece.start, piece.end)
    ]
    assert [at for at, _ in planned] == [at for at, _ in expected]
    for (_, asked), (_, who) in zip(planned, expected, strict=True):
        assert asked <= who
        assert len(asked) == min(3, len(who))
    assert sum(leased(cluster).values()) == len(expected)
