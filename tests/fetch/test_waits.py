"""Requests that queue for long: how long their fetches are said to take, and what they find."""

from __future__ import annotations

import pytest

from evctl.core.kv import FetchPiece
from evengine.fetch.limits import FetchLimits
from tests.fetch.nodes import Node, chain
from tests.fetch.scenes import path_of, run_all, two_nodes
from tests.fetch.world import Asked, World

LIMITS = FetchLimits(batch_blocks=9, deadline_s=5.0)
PATH = path_of(0, 6)
PIECES = [FetchPiece(0, 6, ("b",))]
LONG_S = 100.0


def restore(world: World, here: Node, asked: Asked) -> None:
    """Copies from L2 into its slots, each of which takes a quarter of a second."""
    while not asked.runnable:
        world.clock.time_s += 0.25
        assert here.copier.step()
        here.turn(world.clock.time_s)


@pytest.mark.parametrize("queued_s", [0.0, LONG_S])
def test_a_wait_for_slots_is_no_part_of_a_fetch(world: World, queued_s: float) -> None:
    """The router learns from it how long peers take: a queue is not their doing."""
    here, there = two_nodes(world, LIMITS)
    there.plant(chain(PATH))
    asked = world.request(here, PATH, PIECES)
    world.turn()
    world.clock.time_s = 1.0
    world.calm()  # all of it is in L2
    world.clock.time_s += queued_s
    here.turn(world.clock.time_s)
    world.admit(asked)
    restore(world, here, asked)
    (fact,) = asked.ended()
    assert fact.fetch_s == pytest.approx(1.25)
    assert fact.queued_s == pytest.approx(queued_s)
    assert (fact.peers[0].blocks, fact.missed_blocks) == (6, 0)
    run_all(world, [asked])


def test_blocks_on_their_way_count_while_the_request_has_no_slots(world: World) -> None:
    here, there = two_nodes(world, LIMITS)
    there.plant(chain(PATH))
    asked = world.request(here, PATH, PIECES)
    world.turn()
    world.clock.time_s = 1.5
    here.turn(world.clock.time_s)
    world.calm()
    world.clock.time_s += LONG_S
    world.cancel(asked)
    (fact,) = asked.ended()
    assert fact.cause == "cancelled"
    assert fact.fetch_s == pytest.approx(1.5)
    run_all(world, [])


def test_what_others_have_computed_while_it_queued_is_not_computed_again(world: World) -> None:
    """L2 has it, and L1 has it no more."""
    here, there = two_nodes(world, LIMITS)
    there.plant(chain(PATH)[:2])
    asked = world.request(here, PATH, [FetchPiece(0, 2, ("b",))])
    for _ in range(4):
        world.calm()
    here.plant(chain(PATH)[:5])
    world.admit(asked)
    run_all(world, [asked])
    (fact,) = asked.ended()
    assert (fact.own_blocks, fact.peers[0].blocks, fact.missed_blocks) == (3, 2, 0)


def test_pieces_behind_a_gap_are_fetched_once_the_gap_is_closed(world: World) -> None:
    here, there = two_nodes(world, LIMITS)
    there.plant(chain(PATH))
    asked = world.request(here, PATH, [FetchPiece(0, 2, ("b",)), FetchPiece(3, 6, ("b",))])
    for _ in range(4):
        world.calm()
    assert here.counters["fetch_peer_blocks"] == 2
    here.plant(chain(PATH)[:3])
    world.admit(asked)
    run_all(world, [asked])
    (fact,) = asked.ended()
    assert (fact.own_blocks, fact.peers[0].blocks, fact.missed_blocks) == (1, 5, 0)


def test_time_in_the_queue_is_not_time_that_peers_were_late(world: World) -> None:
    """L1 had a part when it was dispatched, and loses it while the request queues: a peer has it
    still."""
    here, there = two_nodes(world, LIMITS)
    there.plant(chain(PATH))
    first = world.request(here, PATH[:2], arrive=False)
    assert world.admit(first)
    world.finish(first)
    asked = world.request(here, PATH, PIECES)
    for _ in range(4):
        world.calm()
    lost = here.pool.find(chain(PATH)[0]), here.pool.find(chain(PATH)[1])
    for block in lost:
        assert block is not None
        here.pool.drop(block)
    assert here.l1.allocate(here.l1.total_blocks) is not None  # nothing is left of it
    here.l1.release(range(here.l1.total_blocks))
    world.clock.time_s = LONG_S
    here.turn(LONG_S)
    world.admit(asked)
    run_all(world, [asked])
    (fact,) = asked.ended()
    assert (fact.l1_blocks, fact.peers[0].blocks, fact.missed_blocks) == (0, 6, 0)
