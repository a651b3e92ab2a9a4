"""Every scheduled fault over every real backend, and that headers catch those that lie."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evengine.pool.headers import HEADER_BYTES, Header, header_fault, read_header, write_header
from evengine.ports import Digest, Outcome, Piece
from evengine.transfer.faults import Fault, FaultKind
from evengine.transfer.faulty import FaultyTransfer, Note
from evengine.transfer.protocol import make_header, verify_header

from .conftest import Node
from .peers import BLOCK_BYTES, DONE, FAILED, Peer, digest, pattern, wait_for

pytestmark = pytest.mark.system
Spawn = Callable[..., Peer]
TWO = [Piece(0, 0, 2 * BLOCK_BYTES)]
KEYS = [b"0" * 16, b"1" * 16]


@pytest.fixture
def there(node: Node, spawn: Spawn) -> Peer:
    peer = spawn("there")
    peer.call("fill", 1)
    node.memory.view[:] = pattern(2)
    node.transfer.connect(peer.address)
    return peer


def run(node: Node, there: Peer, fault: Fault, push: bool) -> tuple[FaultyTransfer, Outcome]:
    """The second call goes wrong; the first must not."""
    faulty = FaultyTransfer(node.transfer, {1: fault}, node.memory)
    start = faulty.write if push else faulty.read
    good = start("there", there.boot_id, [Piece(8 * BLOCK_BYTES, 8 * BLOCK_BYTES, 1)], 10.0)
    assert wait_for(faulty, [good], 15)[good].state is DONE
    assert faulty.injected == 0
    bad = start("there", there.boot_id, TWO, 10.0)
    outcome = wait_for(faulty, [bad], 15)[bad]
    assert faulty.injected == 1
    return faulty, outcome


def faults_of_read_blocks(node: Node, generation: int = 5) -> list[str]:
    """What the reader's check says of both blocks that the peer described."""
    truth = pattern(1)
    found = []
    for index, key in enumerate(KEYS):
        block = memoryview(truth)[index * BLOCK_BYTES :][:BLOCK_BYTES]
        header = make_header(
            block, boot_id="b", key=key, generation=5, valid_tokens=BLOCK_BYTES, token_bytes=1
        )
        fault = verify_header(
            header,
            node.memory.block(index),
            boot_id="b",
            key=key,
            generation=generation,
            token_bytes=1,
        )
        found.append((fault or "").split(" ")[0])
    return found


def test_a_good_read_verifies_and_a_stale_generation_does_not(node: Node, there: Peer) -> None:
    ticket = node.transfer.read("there", there.boot_id, TWO, 10.0)
    assert wait_for(node.transfer, [ticket], 15)[ticket].state is DONE
    assert faults_of_read_blocks(node) == ["", ""]
    assert faults_of_read_blocks(node, generation=6) == ["generation", "generation"]


@pytest.mark.parametrize("offset", [0, BLOCK_BYTES, 2 * BLOCK_BYTES - 1])
def test_a_flipped_byte_ends_as_done_and_is_caught(node: Node, there: Peer, offset: int) -> None:
    _, outcome = run(node, there, Fault(FaultKind.CORRUPT, offset=offset), push=False)
    assert outcome.state is DONE
    expected = ["", ""]
    expected[offset // BLOCK_BYTES] = "checksum"
    assert faults_of_read_blocks(node) == expected


def test_a_flipped_byte_at_the_far_end(node: Node, there: Peer) -> None:
    _, outcome = run(node, there, Fault(FaultKind.CORRUPT, offset=7), push=True)
    assert outcome.state is DONE
    size = 2 * BLOCK_BYTES
    assert there.call("digest", 0, size) != digest(pattern(2)[:size])
    assert there.call("digest", 8, size - 8) == digest(pattern(2)[8:size])
    assert digest(node.memory.view) == digest(pattern(2))


def test_swapped_blocks_end_as_done_and_are_caught(node: Node, there: Peer) -> None:
    _, outcome = run(node, there, Fault(FaultKind.SWAPPED), push=False)
    assert outcome.state is DONE
    assert faults_of_read_blocks(node) == ["checksum", "checksum"]
    assert bytes(node.memory.block(0)) == pattern(1)[BLOCK_BYTES : 2 * BLOCK_BYTES]


def test_a_failure_that_has_written(node: Node, there: Peer) -> None:
    _, outcome = run(node, there, Fault(FaultKind.FAILED_BUT_WRITES), push=False)
    assert (outcome.state, outcome.settled) == (FAILED, False)
    assert faults_of_read_blocks(node) == ["", ""]


def test_a_late_write_comes_after_its_failure(node: Node, there: Peer) -> None:
    faulty, outcome = run(node, there, Fault(FaultKind.LATE_WRITE, polls=3), push=False)
    assert (outcome.state, outcome.settled) == (FAILED, False)
    assert digest(node.memory.block(0)) == digest(pattern(2)[:BLOCK_BYTES])
    later = faulty.read("there", there.boot_id, [Piece(9 * BLOCK_BYTES, 0, 1)], 10.0)
    wait_for(faulty, [later], 15)
    for _ in range(10):
        assert faulty.poll() == []  # the late success is nobody's
    follow = faulty.read("there", there.boot_id, [Piece(9 * BLOCK_BYTES, 0, 1)], 10.0)
    wait_for(faulty, [follow], 15)
    assert faults_of_read_blocks(node) == ["", ""]


def test_a_stall_says_nothing_and_moves_nothing(node: Node, there: Peer) -> None:
    faulty = FaultyTransfer(node.transfer, {0: Fault(FaultKind.STALL, polls=5)})
    ticket = faulty.read("there", there.boot_id, TWO, 10.0)
    assert [faulty.poll() for _ in range(4)] == [[], [], [], []]
    (outcome,) = faulty.poll()
    assert (outcome.ticket, outcome.state, outcome.settled) == (ticket, FAILED, True)
    assert digest(node.memory.view) == digest(pattern(2))


@pytest.mark.parametrize("report", [FAILED, DONE])
def test_a_partial_batch(node: Node, there: Peer, report: object) -> None:
    fault = Fault(FaultKind.PARTIAL, pieces=0, report=report)  # type: ignore[arg-type]
    _, outcome = run(node, there, fault, push=False)
    assert outcome.state is report
    assert outcome.settled is (report is DONE)
    assert faults_of_read_blocks(node) == ["checksum", "checksum"]


# ------------------------------------------------------------ slots of L2: a header, then bytes

SLOT_HEADERS = [Header(b"b" * 16, key, 6, BLOCK_BYTES - HEADER_BYTES, 77) for key in KEYS]
SLOTS = [Piece(i * BLOCK_BYTES, i * BLOCK_BYTES, BLOCK_BYTES) for i in range(2)]


def lend_slots(node: Node, there: Peer) -> None:
    """Make the peer's first two blocks slots of L2, and forget them here."""
    for piece, header in zip(SLOTS, SLOT_HEADERS, strict=True):
        write_header(node.memory.view, piece.local_offset, header)
    ticket = node.transfer.write("there", there.boot_id, SLOTS, 10.0)
    assert wait_for(node.transfer, [ticket], 15)[ticket].state is DONE
    node.memory.view[:] = pattern(2)


def read_slots(node: Node, there: Peer, fault: Fault) -> tuple[Outcome, list[str], list[Note]]:
    lend_slots(node, there)
    sent = bytes(pattern(2)[HEADER_BYTES:BLOCK_BYTES])
    notes: list[Note] = []
    faulty = FaultyTransfer(node.transfer, {0: fault}, node.memory, notes.append)
    ticket = faulty.read("there", there.boot_id, SLOTS, 10.0)
    outcome = wait_for(faulty, [ticket], 15)[ticket]
    assert bytes(node.memory.block(0)[HEADER_BYTES:]) == sent, "the block's own bytes are right"
    found = [
        header_fault(read_header(node.memory.view, piece.local_offset), expected)
        for piece, expected in zip(SLOTS, SLOT_HEADERS, strict=True)
    ]
    return outcome, found, notes


def test_a_header_of_another_use_ends_as_done_and_is_caught(node: Node, there: Peer) -> None:
    outcome, found, notes = read_slots(node, there, Fault(FaultKind.WRONG_GENERATION))
    assert outcome.state is DONE
    assert found == ["generation 7, not 6", ""]
    assert [(n.over, n.took_place, n.bad_blocks) for n in notes] == [
        (False, False, 0),
        (True, True, 1),
    ]


def test_bytes_of_another_life_end_as_done_and_are_caught(node: Node, there: Peer) -> None:
    outcome, found, notes = read_slots(node, there, Fault(FaultKind.OTHER_LIFE))
    assert outcome.state is DONE
    assert found == ["header of another life"] * 2
    assert notes[-1].bad_blocks == 2


def test_a_write_into_another_life_ends_as_done_and_changes_nothing_here_or_there(
    node: Node, there: Peer
) -> None:
    before = there.call("digest")
    _, outcome = run(node, there, Fault(FaultKind.OTHER_LIFE), push=True)
    assert outcome.state is DONE
    first = digest(pattern(1)[: 2 * BLOCK_BYTES])
    assert there.call("digest", 0, 2 * BLOCK_BYTES) == first
    assert before == digest(pattern(1))
    assert digest(node.memory.view) == digest(pattern(2))


@pytest.mark.parametrize("push", [True, False], ids=["write", "read"])
def test_a_slow_call_is_half_way_for_long_and_then_right(
    node: Node, there: Peer, push: bool
) -> None:
    notes: list[Note] = []
    slow = FaultyTransfer(node.transfer, {0: Fault(FaultKind.SLOW, polls=300)}, noted=notes.append)
    start = slow.write if push else slow.read
    ticket = start("there", there.boot_id, SLOTS, 10.0)

    def landed() -> list[bool]:
        source = pattern(2) if push else pattern(1)
        return [
            (
                there.call("digest", i * BLOCK_BYTES, BLOCK_BYTES)
                if push
                else digest(node.memory.block(i))
            )
            == digest(source[i * BLOCK_BYTES :][:BLOCK_BYTES])
            for i in range(2)
        ]

    for _ in range(290):
        assert slow.poll() == []
        if landed() == [True, False]:
            break
    assert landed() == [True, False]
    assert [note.over for note in notes] == [False]
    assert wait_for(slow, [ticket], 15)[ticket].state is DONE
    assert landed() == [True, True]
    assert notes[-1].took_place
    assert notes[-1].bad_blocks == 0


def test_a_fault_that_another_failure_forestalls_is_not_counted(node: Node) -> None:
    notes: list[Note] = []
    fault = {0: Fault(FaultKind.CORRUPT)}
    faulty = FaultyTransfer(node.transfer, fault, node.memory, notes.append)
    ticket = faulty.read("nobody", "boot", SLOTS, 10.0)
    assert wait_for(faulty, [ticket], 15)[ticket].state is FAILED
    assert faulty.injected == 0
    assert [(n.over, n.took_place, n.bad_blocks) for n in notes] == [
        (False, False, 0),
        (True, False, 0),
    ]


@pytest.mark.parametrize("fault", [None, Fault(FaultKind.CORRUPT, offset=7)])
def test_a_faulty_read_has_no_checksums(node: Node, there: Peer, fault: Fault | None) -> None:
    """They would be of the bytes before the damage, and nobody would notice it."""
    faulty = FaultyTransfer(node.transfer, {} if fault is None else {0: fault}, node.memory)
    ticket = faulty.read("there", there.boot_id, TWO, 10.0, Digest(0, 64))
    outcome = wait_for(faulty, [ticket], 15)[ticket]
    assert outcome.state is DONE
    if fault is not None:
        assert not outcome.checksums
