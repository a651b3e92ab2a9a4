"""Who is served when: turns of requests, blocks that many want, fetches that nobody waits for."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from evctl.core.kv import FetchPiece
from evengine.fetch.limits import FetchLimits
from tests.fetch.nodes import STRIDE, chain
from tests.fetch.scenes import BATCH, asked_for, path_of, run_all, two_nodes
from tests.fetch.transport import How
from tests.fetch.world import World


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
        found = fact.l1_blocks + sum(peer.blocks for peer in fact.peers)
        assert (found, fact.own_blocks, fact.missed_blocks) == (8, 0, 0)


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


def test_one_failed_read_costs_its_own_batch_alone(world: World) -> None:
    """The peer answers the very next ping."""
    here, there = two_nodes(world)
    path = path_of(0, 3 * BATCH)
    there.plant(chain(path))
    asked = world.request(here, path, [FetchPiece(0, len(path), ("b",))])
    world.turn()
    while world.wire:
        world.deliver(0)
    (ticket,) = here.transfer.pending
    here.transfer.end(ticket, How.FAILED)
    world.turn()
    run_all(world, [asked])
    assert here.counters["fetch_peer_blocks"] >= 2 * BATCH


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
