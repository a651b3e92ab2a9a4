"""How reads and restores end, one way at a time: what is used, what is asked again, what rests."""

from __future__ import annotations

import pytest

from evctl.core.kv import FetchPiece
from evengine.fetch.limits import FetchLimits
from tests.fetch.nodes import Node, bytes_of, chain
from tests.fetch.scenes import path_of, run_all, two_nodes
from tests.fetch.transport import How
from tests.fetch.world import Asked, World

ALL = FetchLimits(batch_blocks=9)
PATH = path_of(0, 3)
WRONG = {
    How.DONE: 0,
    How.PARTIAL: 1,
    How.CORRUPT: 1,
    How.SWAPPED: 2,
    How.FAILED: 3,
    How.LATE: 3,
}
"""Of three blocks, how many cannot be used."""


def reading(world: World, nodes: str = "b", l2_blocks: int = 40) -> tuple[Node, Asked, int]:
    """A request whose three blocks are being read from the first of `nodes`."""
    here, there = two_nodes(world, ALL, l2_blocks)
    there.plant(chain(PATH))
    world.start("c", limits=ALL, l2_blocks=40).plant(chain(PATH))
    asked = world.request(here, PATH, [FetchPiece(0, 3, tuple(nodes))])
    world.admit(asked)
    world.turn()
    while world.wire:
        world.deliver(0)
    (ticket,) = here.transfer.pending
    return here, asked, ticket


def settle(world: World, here: Node) -> None:
    """What was read is checked, and what follows from that is done."""
    world.turn()
    while here.copier.step():
        world.turn()


@pytest.mark.parametrize("how", How)
def test_only_what_is_right_is_used(world: World, how: How) -> None:
    here, asked, ticket = reading(world)
    here.transfer.end(ticket, how)
    settle(world, here)
    held = [key for key in chain(PATH) if here.pool.find(key) is not None]
    assert len(held) == 3 - WRONG[how]
    assert here.problems() == []
    run_all(world, [asked])
    (fact,) = asked.ended()
    # A peer may fail once; it is read from again after it has shown that it lives.
    lost = WRONG[how] > 0 and how not in (How.FAILED, How.LATE)
    assert (fact.missed_blocks > 0) == lost
    assert fact.cause == ("corrupt" if lost else "")


def test_a_peer_that_fails_twice_is_not_asked_a_third_time(world: World) -> None:
    here, asked, ticket = reading(world)
    here.transfer.end(ticket, How.FAILED)
    settle(world, here)
    assert not here.transfer.pending, "nothing goes to a peer that has not answered a ping"
    here.mailbox.silent.clear()
    world.turn()
    while world.wire:
        world.deliver(0)
    (again,) = here.transfer.pending
    here.transfer.end(again, How.FAILED)
    run_all(world, [asked])
    (fact,) = asked.ended()
    assert (fact.missed_blocks, fact.cause) == (3, "failed")


@pytest.mark.parametrize("how", How)
def test_what_one_could_not_give_the_next_one_is_asked_for(world: World, how: How) -> None:
    here, asked, ticket = reading(world, "bc")
    here.transfer.end(ticket, how)
    run_all(world, [asked])
    (fact,) = asked.ended()
    came = [("b", 3 - WRONG[how]), ("c", WRONG[how])]
    assert [(peer.node, peer.blocks) for peer in fact.peers] == [one for one in came if one[1]]
    assert fact.missed_blocks == 0
    assert here.counters["fetch_blocks_asked_again"] == WRONG[how]


def test_a_slot_that_may_still_be_written_to_is_nobodys(world: World) -> None:
    """The write comes when everything else in L2 is in use, and harms nothing."""
    here, asked, ticket = reading(world, l2_blocks=9)
    here.transfer.end(ticket, How.LATE)
    settle(world, here)
    assert here.pool.resting_blocks == 3
    for first in range(100, 140):
        here.plant(chain([first]))
    assert here.pool.used_blocks == 9
    assert here.pool.held_blocks == 6
    world.clock.time_s = ALL.quarantine_s - 0.5
    world.turn()
    while here.transfer.late:
        here.transfer.write_late(0)
    assert here.problems() == []
    assert here.pool.resting_blocks == 3
    world.clock.time_s = ALL.quarantine_s
    world.turn()
    assert here.pool.resting_blocks == 0
    run_all(world, [asked])


def test_a_read_that_stopped_gives_its_slots_back_at_once(world: World) -> None:
    here, asked, ticket = reading(world)
    here.transfer.end(ticket, How.FAILED)
    settle(world, here)
    assert (here.pool.resting_blocks, here.pool.used_blocks) == (0, 0)
    run_all(world, [asked])


def test_who_stays_is_served_when_who_asked_leaves(world: World) -> None:
    """A block that comes back to the queue of a request that then goes."""
    here, there = two_nodes(world, ALL)
    world.start("c", limits=ALL).plant(chain(PATH))
    there.plant(chain(path_of(1, 2)))
    pieces = [FetchPiece(0, 3, ("b", "c"))]
    first, second = (world.request(here, PATH, pieces) for _ in range(2))
    here.turn(0.0)
    while world.wire:
        world.deliver(0)  # b has none of it
    world.cancel(first)
    run_all(world, [second])
    (fact,) = second.ended()
    assert [(peer.node, peer.blocks) for peer in fact.peers] == [("c", 3)]


def test_what_nobody_waits_for_any_more_is_not_asked_for(world: World) -> None:
    here, there = two_nodes(world, FetchLimits(batch_blocks=1, bytes_in_flight=1))
    there.plant(chain(PATH))
    asked = world.request(here, PATH, [FetchPiece(0, 3, ("b",))])
    here.turn(0.0)
    world.cancel(asked)
    run_all(world, [])
    assert here.counters["fetch_peer_blocks"] == 1, "what was under way comes in"
    assert here.counters["fetch_blocks_asked_again"] == 0


def test_a_block_that_has_gone_bad_here_is_dropped_and_computed(world: World) -> None:
    here, _ = two_nodes(world)
    here.plant(chain(PATH))
    block = here.pool.find(chain(PATH)[1])
    assert block is not None
    here.pool.data(block.slot)[7] ^= 0x80
    asked = world.request(here, PATH)
    world.admit(asked)
    here.copier.step()
    here.turn(0.0)
    assert asked.runnable
    (fact,) = asked.ended()
    assert (fact.own_blocks, fact.missed_blocks, fact.cause) == (1, 2, "corrupt")
    assert here.pool.find(chain(PATH)[1]) is None
    assert (here.counters["l2_read_failed"], here.pool.dropped_corrupt) == (1, 1)
    run_all(world, [asked])


def test_slots_of_a_cancelled_restore_stay_until_it_is_over(world: World) -> None:
    """Another request must not compute into what the copier still writes to."""
    here = world.start("a", limits=ALL, l1_blocks=4, l2_blocks=9)
    here.plant(chain(PATH))
    gone = world.request(here, PATH)
    assert world.admit(gone)
    world.cancel(gone)
    other = world.request(here, path_of(1, 3))
    assert not world.admit(other)
    assert here.copier.step()
    here.turn(0.0)
    assert world.admit(other)
    run_all(world, [other])
    assert all(bytes(here.memory.block(b.slot)) == bytes_of(b.key) for b in here.l1.blocks())


def test_nobody_waits_for_a_peer_that_is_gone(world: World) -> None:
    """The control plane says so before the peer's time to answer is up."""
    here, there = two_nodes(world, ALL)
    there.plant(chain(PATH))
    world.start("c", limits=ALL).plant(chain(PATH)[:2])
    asked = world.request(here, PATH, [FetchPiece(0, 3, ("b", "c"))])
    world.admit(asked)
    world.turn()
    world.vanish("b")
    run_all(world, [asked])
    (fact,) = asked.ended()
    assert fact.fetch_s == 0.0
    assert [(peer.node, peer.blocks) for peer in fact.peers] == [("c", 2)]
    assert fact.missed_blocks == 1


def test_what_another_request_computes_meanwhile_is_used(world: World) -> None:
    """As it lies in L1: nothing is copied, and nothing more is waited for."""
    here, asked, _ = reading(world)
    other = world.request(here, PATH, arrive=False)
    other.admitted = here.store.take_prefix(other.seq, 0)
    world.finish(other)
    world.clock.time_s = 0.5
    here.fetcher.tick(0.5)
    assert asked.runnable
    (fact,) = asked.ended()
    assert (fact.l1_blocks, fact.own_blocks, fact.peers, fact.missed_blocks) == (3, 0, (), 0)
    run_all(world, [asked])


@pytest.mark.parametrize("again", [True, False])
def test_what_came_and_had_to_go_again_is_asked_for_once_more(world: World, again: bool) -> None:
    """While its request queued; once it has slots, that is over. If it does not come then, it is
    computed."""
    here, there = two_nodes(world, ALL, l2_blocks=3)
    there.plant(chain(PATH))
    asked = world.request(here, PATH, [FetchPiece(0, 3, ("b",))])
    while not world.calm():
        pass
    assert here.counters["fetch_peer_blocks"] == 3
    for first in range(100, 103):
        here.plant(chain([first]))
        if not again:
            there.plant(chain([first]))
    world.admit(asked)
    assert not asked.runnable
    for _ in range(9):
        world.calm()
    assert asked.runnable
    assert asked.ended()[0].missed_blocks == (0 if again else 3)
    assert here.counters["fetch_peer_blocks"] == (6 if again else 3)
    run_all(world, [asked])
