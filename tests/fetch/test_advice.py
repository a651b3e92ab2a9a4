"""Where to fetch from: pieces in any order, the advice of all who wait, fetches ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.core.events import FetchAheadEnded
from evctl.core.kv import FetchPiece
from evctl.policy.eviction import RefClass
from evctl.wire.messages import FetchAhead
from evengine.fetch.limits import FetchLimits
from evengine.fetch.plan import MOST_NODES, MOST_PIECES, sources
from tests.fetch.nodes import ROOT, chain
from tests.fetch.scenes import ONE_BATCH, asked_for, path_of, run_all, two_nodes
from tests.fetch.world import World

NODES = st.lists(st.sampled_from("abc"), max_size=3).map(tuple)
PIECES = st.lists(st.builds(FetchPiece, st.integers(-4, 12), st.integers(-4, 14), NODES))


@given(pieces=PIECES, first=st.integers(0, 5), end=st.integers(0, 12), most=st.integers(0, 12))
def test_each_block_is_asked_of_a_piece_that_names_it(
    pieces: list[FetchPiece], first: int, end: int, most: int
) -> None:
    found = sources(pieces, first, end, most)
    named = {
        depth: [piece for piece in pieces if piece.start <= depth < piece.end and piece.nodes]
        for depth in range(first, end)
    }
    wanted = [depth for depth, those in named.items() if those]
    assert list(found) == wanted[:most]
    for depth, nodes in found.items():
        earliest = min(piece.start for piece in named[depth])
        assert nodes in [piece.nodes for piece in named[depth] if piece.start == earliest]


def test_advice_without_end_costs_little() -> None:
    nodes = ("a",) * 10_000
    endless = [FetchPiece(-(2**62) + i, 2**62, nodes) for i in range(100_000)]
    found = sources(endless, 0, 1000, 1000)
    assert len(found) == 1000
    assert {len(asked) for asked in found.values()} == {MOST_NODES}
    late = [FetchPiece(0, 0, ("a",))] * MOST_PIECES + [FetchPiece(0, 9, ("a",))]
    assert sources(late, 0, 9, 9) == {}


def test_requests_go_before_fetches_for_nobody(world: World) -> None:
    here, there = two_nodes(world)
    soon, now = path_of(1, 6), path_of(2, 6)
    there.plant(chain(soon) + chain(now))
    pieces = (FetchPiece(0, 6, ("b",)),)
    here.fetcher.fetch_ahead(FetchAhead("t", ROOT, b"".join(chain(soon)), pieces))
    asked = world.request(here, now, pieces)
    order = []
    for _ in range(20):
        here.turn(0.0)
        order += asked_for(world)
        world.calm()
    assert order == chain(now) + chain(soon)
    run_all(world, [asked])
    (fact,) = [f for f in here.mailbox.told if isinstance(f, FetchAheadEnded)]
    assert (fact.ticket, fact.missed_blocks, fact.peers[0].blocks) == ("t", 0, 6)


@pytest.mark.parametrize("shared", [False, True])
def test_a_fetch_ahead_takes_no_needed_blocks_place(world: World, shared: bool) -> None:
    """Not even when a request waits for another block of the same batch."""
    here, there = two_nodes(world, FetchLimits(batch_blocks=4), l2_blocks=8)
    kept, soon = path_of(1, 8), path_of(2, 4)
    there.plant(chain(soon))
    here.plant(chain(kept))
    here.pool.classify(1, chain(kept)[6:], RefClass.UNREFERENCED)
    pieces = (FetchPiece(0, 4, ("b",)),)
    here.fetcher.fetch_ahead(FetchAhead("t", ROOT, b"".join(chain(soon)), pieces))
    here.turn(0.0)
    asked = [world.request(here, soon[:1], pieces)] if shared else []
    run_all(world, asked)
    gone = [key for key in chain(kept) if here.pool.find(key) is None]
    assert set(gone) <= set(chain(kept)[6:]) or (shared and len(gone) == 1)
    if shared:
        assert asked[0].ended()[0].missed_blocks == 0


def test_pieces_that_overlap_ask_for_each_block_once(world: World) -> None:
    here, there = two_nodes(world)
    path = path_of(0, 6)
    there.plant(chain(path))
    pieces = [FetchPiece(2, 5, ("b",)), FetchPiece(-3, 4, ("b",)), FetchPiece(0, 99, ("b",))]
    message = FetchAhead("t", ROOT, b"".join(chain(path)), tuple(pieces))
    here.fetcher.fetch_ahead(message)
    run_all(world, [])
    assert here.counters["fetch_peer_blocks"] == 6
    (fact,) = [f for f in here.mailbox.told if isinstance(f, FetchAheadEnded)]
    assert (fact.missed_blocks, fact.peers[0].blocks) == (0, 6)


def test_a_request_asks_each_block_of_the_node_of_its_own_piece(world: World) -> None:
    """Whatever the order of the pieces, and whatever they say of other blocks."""
    here, there = two_nodes(world)
    other = world.start("c", limits=ONE_BATCH)
    path = path_of(0, 6)
    there.plant(chain(path)[:3])
    other.plant(chain(path)[3:])
    pieces = [FetchPiece(3, 6, ("c",)), FetchPiece(5, 2, ("b",)), FetchPiece(0, 3, ("b",))]
    asked = world.request(here, path, pieces)
    run_all(world, [asked])
    (fact,) = asked.ended()
    assert [(peer.node, peer.blocks) for peer in fact.peers] == [("b", 3), ("c", 3)]


def test_advice_of_everybody_who_waits_is_followed(world: World) -> None:
    """The first one's is out of date."""
    here, there = two_nodes(world)
    other = world.start("c", limits=ONE_BATCH)
    path = path_of(0, 3)
    other.plant(chain(path))
    there.plant(chain(path_of(1, 3)))
    requests = [world.request(here, path, [FetchPiece(0, 3, (name,))]) for name in "bc"]
    run_all(world, requests)
    for asked in requests:
        assert asked.ended()[0].missed_blocks == 0
