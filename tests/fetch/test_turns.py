"""Who is served when: turns of requests, blocks that many want, fetches that nobody waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evctl.core.events import FetchAheadEnded
from evctl.core.kv import FetchPiece
from evctl.policy.eviction import RefClass
from evctl.wire.messages import FetchAhead, LocateKv
from evengine.fetch.limits import FetchLimits
from tests.fetch.nodes import ROOT, STRIDE, Node, chain
from tests.fetch.transport import How
from tests.fetch.world import Asked, World

BATCH = 3
ONE_BATCH = FetchLimits(batch_blocks=BATCH, bytes_in_flight=1)
"""The bound is reached with the first batch: the next one goes when that has come."""


def path_of(first: int, length: int) -> list[int]:
    return [first, *range(length - 1)]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def two_nodes(world: World, limits: FetchLimits = ONE_BATCH, l2_blocks: int = 120) -> list[Node]:
    return [
        world.start(name, limits=limits, l1_blocks=60, l2_blocks=l2_blocks) for name in ("a", "b")
    ]


def asked_for(world: World) -> list[bytes]:
    """Keys of the letters that have not arrived, in their order."""
    packed = b"".join(x.message.keys for x in world.wire if isinstance(x.message, LocateKv))
    return [packed[at : at + 16] for at in range(0, len(packed), 16)]


def run_all(world: World, requests: list[Asked]) -> None:
    """To the end; nothing may be left."""
    waiting = list(requests)
    for _ in range(300):
        for asked in list(waiting):
            if not asked.admitted:
                world.admit(asked)
            if asked.runnable:
                world.finish(asked)
                waiting.remove(asked)
        if world.calm() and not waiting:
            break
    assert waiting == []
    world.clock.time_s += 60
    world.turn()
    for node in world.nodes.values():
        assert node.problems() == []
        assert {what: left for what, left in node.remains().items() if left} == {}


@settings(max_examples=30, deadline=None)
@given(blocks=st.lists(st.integers(1, 14), min_size=2, max_size=4), admitted=st.booleans())
def test_requests_take_turns(blocks: list[int], admitted: bool) -> None:
    """At no time has one that still waits got more than a batch less than another."""
    world = World()
    try:
        here, there = two_nodes(world)
        requests = []
        for number, length in enumerate(blocks):
            path = path_of(number, length)
            there.plant(chain(path))
            requests.append(world.request(here, path, [FetchPiece(0, length, ("b",))]))
            if admitted:
                assert world.admit(requests[-1])
        got: Counter[int] = Counter()
        owner = {key: i for i, asked in enumerate(requests) for key in asked.seq.keys}
        for _ in range(200):
            here.turn(0.0)
            batch = Counter(owner[key] for key in asked_for(world))
            assert len(batch) <= 1, "a batch beyond the bound"
            got += batch
            unserved = [got[i] for i, length in enumerate(blocks) if got[i] < length]
            assert max(got.values()) - min(unserved, default=99) <= BATCH
            world.calm()
        assert [got[i] for i in range(len(blocks))] == blocks
        run_all(world, requests)
    finally:
        world.close()


def test_a_block_flies_once_however_many_wait(world: World) -> None:
    here, there = two_nodes(world, FetchLimits(batch_blocks=BATCH))
    path = path_of(0, 8)
    there.plant(chain(path))
    requests = [world.request(here, path, [FetchPiece(0, 8, ("b",))]) for _ in range(4)]
    here.turn(0.0)
    assert sorted(asked_for(world)) == sorted(chain(path))
    run_all(world, requests)
    assert here.counters["fetch_peer_blocks"] == 8
    assert here.counters["fetch_blocks_shared"] == 3 * 8
    for asked in requests:
        (fact,) = asked.ended()
        assert fact.missed_blocks == 0


def test_when_one_of_two_leaves_the_other_gets_each_block_once(world: World) -> None:
    """What both wanted stood in both queues already."""
    here, there = two_nodes(world, FetchLimits(batch_blocks=BATCH))
    path = path_of(0, 5)
    there.plant(chain(path))
    pieces = [FetchPiece(0, 5, ("b",))]
    first, second = (world.request(here, path, pieces) for _ in range(2))
    world.cancel(first)
    here.turn(0.0)
    assert asked_for(world) == chain(path)
    run_all(world, [second])
    assert second.ended()[0].missed_blocks == 0


def test_a_request_that_ends_early_gives_up_what_is_in_the_batch_being_made(world: World) -> None:
    """It learns that a block is lost while the rest of its batch is being chosen: what stands in
    the batch already comes in for nobody."""
    limits = FetchLimits(batch_blocks=9, bytes_in_flight=1)
    here, there = two_nodes(world, limits)
    world.start("c", limits=limits)
    path = path_of(0, 4)
    keys = chain(path)
    there.plant(keys[1:])
    asked = world.request(here, path, [FetchPiece(0, 1, ("c", "gone")), FetchPiece(1, 4, ("b",))])
    world.admit(asked)
    here.turn(0.0)
    world.calm()  # c does not have the first block: it goes to the end of the queue
    assert asked.runnable
    run_all(world, [asked])
    assert asked.ended()[0].missed_blocks > 0


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


def test_late_is_computed(world: World) -> None:
    """A peer that answers and then reads for ever: the request runs when its time is up."""
    limits = FetchLimits(batch_blocks=BATCH, deadline_s=2.0, transfer_s=9.0)
    here, there = two_nodes(world, limits)
    path = path_of(0, 6)
    there.plant(chain(path))
    asked = world.request(here, path, [FetchPiece(0, 6, ("b",))])
    world.admit(asked)
    here.turn(0.0)
    while world.wire:
        world.deliver(0)
    (first, second) = here.transfer.pending
    here.transfer.end(first, How.DONE)
    for _ in range(3):
        here.copier.step()
        here.turn(1.0)
    assert not asked.runnable
    world.clock.time_s = 2.1
    world.turn()
    while here.copier.step():
        world.turn()
    assert asked.runnable
    (fact,) = asked.ended()
    assert (fact.peers[0].blocks, fact.missed_blocks, fact.cause) == (3, 3, "deadline")
    world.finish(asked)
    here.transfer.end(second, How.DONE)
    run_all(world, [])
    assert here.counters["fetch_peer_blocks"] == 6, "what is under way comes in all the same"


def test_where_only_a_part_has_room_the_rest_is_computed(world: World) -> None:
    """Three slots of L2 are pinned by a peer that reads; a batch of three finds one."""
    here, there = two_nodes(world, l2_blocks=4)
    path, lent = path_of(0, 3), path_of(1, 3)
    there.plant(chain(path))
    here.plant(chain(lent))
    for key in chain(lent):
        here.pool.pin(key)
    asked = world.request(here, path, [FetchPiece(0, 3, ("b",))])
    world.admit(asked)
    for _ in range(5):
        world.calm()
    assert asked.runnable
    (fact,) = asked.ended()
    assert (fact.peers[0].blocks, fact.missed_blocks, fact.cause) == (1, 2, "no_room")
    assert here.fetcher.flights.bytes_in_flight == 0
    world.finish(asked)
    for key in chain(lent):
        block = here.pool.find(key)
        assert block is not None
        here.pool.unpin(block)
    run_all(world, [])


def test_the_bound_holds_for_all_batches_together(world: World) -> None:
    limits = FetchLimits(batch_blocks=2, bytes_in_flight=5 * STRIDE)
    here, there = two_nodes(world, limits)
    path = path_of(0, 14)
    there.plant(chain(path))
    asked = world.request(here, path, [FetchPiece(0, 14, ("b",))])
    here.turn(0.0)
    assert len(asked_for(world)) == 6
    run_all(world, [asked])
