"""What every backend must do when a peer dies, stops, stays mute or comes back as another."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from evengine.ports import Outcome, Piece
from evengine.transfer.protocol import MAX_PEER_PIECES

from .conftest import Node
from .peers import BLOCK_BYTES, DONE, FAILED, ROOT, SIZE_BYTES, Peer, digest, pattern, wait_for

pytestmark = pytest.mark.system
Spawn = Callable[..., Peer]
WHOLE = [Piece(0, 0, SIZE_BYTES)]
GAP_LIMIT_S = 0.5
"""The loop may stand still for 0.1 s; five times that, on machines that others use too."""


def watch(node: Node, tickets: list[int], limit_s: float) -> tuple[dict[int, Outcome], float]:
    """As wait_for, and the longest time between two turns of a loop that polls every ms."""
    ended: dict[int, Outcome] = {}
    start_s = last_s = time.monotonic()
    gap_s = 0.0
    while set(tickets) - set(ended):
        assert time.monotonic() - start_s < limit_s, "tickets outlive their deadline"
        ended |= {outcome.ticket: outcome for outcome in node.transfer.poll()}
        time.sleep(0.001)
        now_s = time.monotonic()
        gap_s, last_s = max(gap_s, now_s - last_s), now_s
    return ended, gap_s


def one(node: Node, peer: Peer, pieces: list[Piece], push: bool = True) -> Outcome:
    start = node.transfer.write if push else node.transfer.read
    ticket = start(peer.node, peer.boot_id, pieces, 5.0)
    return wait_for(node.transfer, [ticket], 10)[ticket]


def test_a_killed_peer_fails_its_tickets_soon_and_nobody_elses(node: Node, spawn: Spawn) -> None:
    doomed, other = spawn("doomed"), spawn("other")
    for peer in (doomed, other):
        node.transfer.connect(peer.address)
        assert one(node, peer, WHOLE).state is DONE
    doomed.kill()
    tickets = [
        start("doomed", doomed.boot_id, [Piece(0, 0, BLOCK_BYTES)], 60.0)
        for start in (node.transfer.write, node.transfer.read)
    ]
    kept = node.transfer.write("other", other.boot_id, WHOLE, 10.0)
    ended, gap_s = watch(node, [*tickets, kept], 5.0)
    assert [ended[ticket].state for ticket in tickets] == [FAILED, FAILED]
    assert ended[kept].state is DONE
    assert gap_s < GAP_LIMIT_S


def test_a_peer_that_failed_is_refused_until_it_is_connected_again(
    node: Node, spawn: Spawn
) -> None:
    """No retry without a new look at the boot id: the failed life takes no more tickets."""
    doomed = spawn("doomed")
    node.transfer.connect(doomed.address)
    assert one(node, doomed, WHOLE).state is DONE
    doomed.kill()
    assert one(node, doomed, WHOLE).state is FAILED
    start_s = time.monotonic()
    again = node.transfer.write("doomed", doomed.boot_id, WHOLE, 60.0)
    outcome = wait_for(node.transfer, [again], 1)[again]
    assert (outcome.state, outcome.settled) == (FAILED, True)
    assert time.monotonic() - start_s < 0.5
    node.transfer.connect(doomed.address)
    outcome = one(node, doomed, WHOLE)
    assert outcome.state is FAILED


def test_a_stopped_peer_blocks_nobody_and_its_tickets_meet_their_deadline(
    node: Node, spawn: Spawn, backend: str
) -> None:
    stopped, other = spawn("stopped"), spawn("other")
    for peer in (stopped, other):
        node.transfer.connect(peer.address)
        assert one(node, peer, WHOLE).state is DONE
    stopped.signal(signal.SIGSTOP)
    start_s = time.monotonic()
    tickets = [node.transfer.write("stopped", stopped.boot_id, WHOLE, 1.0) for _ in range(4)]
    kept = [node.transfer.read("other", other.boot_id, WHOLE, 10.0) for _ in range(4)]
    ended, gap_s = watch(node, [*tickets, *kept], 5.0)
    assert time.monotonic() - start_s < 3.0
    assert gap_s < GAP_LIMIT_S
    assert {ended[ticket].state for ticket in kept} == {DONE}
    if backend == "mooncake":  # nobody answers: past its deadline, and may be written to later
        assert {(ended[t].state, ended[t].settled) for t in tickets} == {(FAILED, False)}
    else:  # its memory is there, whether or not it runs
        assert {ended[ticket].state for ticket in tickets} == {DONE}
    stopped.signal(signal.SIGCONT)


def test_a_peer_stopped_before_the_first_contact_blocks_nobody(
    node: Node, spawn: Spawn, backend: str
) -> None:
    stopped, other = spawn("stopped"), spawn("other")
    stopped.signal(signal.SIGSTOP)
    node.transfer.connect(stopped.address)
    ticket = node.transfer.write("stopped", stopped.boot_id, WHOLE, 1.0)
    time.sleep(0.2)
    node.transfer.connect(other.address)
    kept = node.transfer.read("other", other.boot_id, WHOLE, 3.0)
    ended, gap_s = watch(node, [ticket, kept], 5.0)
    assert ended[kept].state is DONE
    assert gap_s < GAP_LIMIT_S
    if backend == "mooncake":
        assert (ended[ticket].state, ended[ticket].settled) == (FAILED, True)
    stopped.signal(signal.SIGCONT)


def test_disconnect_fails_what_runs_and_what_waits(node: Node, spawn: Spawn) -> None:
    there = spawn("there")
    node.transfer.connect(there.address)
    assert one(node, there, WHOLE).state is DONE
    tickets = [node.transfer.write("there", there.boot_id, WHOLE, 10.0) for _ in range(50)]
    node.transfer.disconnect("there", there.boot_id)
    ended = wait_for(node.transfer, tickets, 1)
    assert ended[tickets[-1]].state is FAILED
    assert set(ended) == set(tickets)


def test_the_queue_of_a_peer_is_bounded(node: Node, spawn: Spawn) -> None:
    there = spawn("there")
    there.signal(signal.SIGSTOP)
    node.transfer.connect(there.address)
    pieces = [Piece(2 * i, 4 * i, 1) for i in range(1_000)]
    tickets = [
        node.transfer.write("there", there.boot_id, pieces, 1.0)
        for _ in range(MAX_PEER_PIECES // 1_000 * 3)
    ]
    ended = wait_for(node.transfer, tickets, 5)
    there.signal(signal.SIGCONT)
    full = [one for one in ended.values() if one.reason.startswith("queue full")]
    assert all(outcome.settled for outcome in full)
    assert len(full) >= MAX_PEER_PIECES // 1_000  # shm may have ended some meanwhile


def restart(spawn: Spawn, old: Peer, ports: tuple[int, int] | None) -> Peer:
    """A new life of the same name, at the same endpoint where the backend has ports."""
    for _ in range(30):
        fresh = spawn(old.node, ports=ports)
        if ports is None or fresh.address.endpoint == old.address.endpoint:
            return fresh
        fresh.kill()
    raise AssertionError("the old port was not drawn again")


@pytest.fixture(params=["same-data-port", "other-data-port"])
def lives(
    request: pytest.FixtureRequest, spawn: Spawn, backend: str
) -> Iterator[tuple[Peer, Callable[[], Peer]]]:
    """A peer, and how to replace it by another life at the same endpoint."""
    if backend == "shm":
        old = spawn("phoenix")
        yield old, lambda: restart(spawn, old, None)
        return
    first = 20_000
    old = spawn("phoenix", ports=(first, first + 1))
    port = int(old.address.endpoint.split(":")[1])
    other = port - 1 if port == first else port  # a range of two in which only `port` is shared
    start = first if request.param == "same-data-port" else other
    yield old, lambda: restart(spawn, old, (start, start + 1))


def test_a_restarted_peer_never_gets_or_gives_bytes_under_its_old_boot_id(
    node: Node, lives: tuple[Peer, Callable[[], Peer]]
) -> None:
    old, replace = lives
    old.call("fill", 1)
    node.transfer.connect(old.address)
    node.memory.view[:] = pattern(2)
    assert one(node, old, [Piece(0, 0, BLOCK_BYTES)]).state is DONE
    old.kill()
    fresh = replace()
    fresh.call("fill", 3)
    assert fresh.address.boot_id != old.boot_id
    for _ in range(6):  # a backend's second try is the one that reached the wrong process
        for push in (True, False):
            assert one(node, old, WHOLE, push).state is FAILED
        node.transfer.connect(old.address)  # even told, wrongly, that the old life is there
        time.sleep(0.05)
    assert fresh.call("digest") == digest(pattern(3))
    assert digest(node.memory.view) == digest(pattern(2))
    node.transfer.connect(fresh.address)
    assert one(node, old, WHOLE).state is FAILED
    assert one(node, fresh, WHOLE, push=False).state is DONE
    assert digest(node.memory.view) == digest(pattern(3))
    node.memory.view[:] = pattern(4)
    assert one(node, fresh, WHOLE).state is DONE
    assert fresh.call("digest") == digest(pattern(4))


def test_tickets_of_the_old_life_fail_when_the_new_one_is_connected(
    node: Node, lives: tuple[Peer, Callable[[], Peer]], backend: str
) -> None:
    old, replace = lives
    node.transfer.connect(old.address)
    assert one(node, old, WHOLE).state is DONE
    old.signal(signal.SIGSTOP)
    tickets = [node.transfer.write(old.node, old.boot_id, WHOLE, 60.0) for _ in range(20)]
    old.kill()
    fresh = replace()
    fresh.call("fill", 3)
    node.transfer.connect(fresh.address)
    ended = wait_for(node.transfer, tickets, 2)
    if backend == "mooncake":  # over shm a stopped peer's memory can be written to
        assert {outcome.state for outcome in ended.values()} == {FAILED}
    kept = one(node, fresh, [Piece(0, 0, 1)], push=False)
    assert kept.state is DONE
    assert fresh.call("digest") == digest(pattern(3))


def test_a_peer_of_another_backend_or_address_is_refused(node: Node, spawn: Spawn) -> None:
    there, other = spawn("there"), spawn("other")
    other.call("fill", 1)
    for change in (
        {"backend": "pigeon"},
        {"endpoint": "evctl-nothing-l1"},
        {"endpoint": other.address.endpoint},  # a live one, but not that of this node
    ):
        node.transfer.connect(msgspec.structs.replace(there.address, **change))
        assert one(node, there, WHOLE).state is FAILED
    assert other.call("digest") == digest(pattern(1))
    node.transfer.connect(there.address)
    assert one(node, there, WHOLE).state is DONE


MUTE = """
import sys, time
from tests.transfer.conftest import Node
import msgspec
node = Node(sys.argv[1], "leaver")
address = msgspec.structs.replace(
    node.transfer.address, node="mute", boot_id="m", endpoint=sys.argv[2]
)
node.transfer.connect(address)
time.sleep(0.3)
node.transfer.write("mute", "m", [], 5.0)
node.transfer.close()
node.transfer.close()
node.memory.close()
"""


def test_a_process_with_a_mute_peer_ends_when_it_wants_to(backend: str) -> None:
    """A thread inside the library must not keep the process, nor crash it on its way out."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mute = f"127.0.0.1:{listener.getsockname()[1]}"
        start_s = time.monotonic()
        ended = subprocess.run([sys.executable, "-c", MUTE, backend, mute], timeout=60, cwd=ROOT)
        assert ended.returncode == 0
        assert time.monotonic() - start_s < 10
