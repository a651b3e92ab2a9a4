"""What every backend must do, with real peer processes. Healthy peers only."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from evengine.ports import Digest, Piece
from evengine.transfer.protocol import (
    MAX_BATCH_PIECES,
    MAX_PEER_OUTSTANDING_PIECES,
    block_checksum,
)

from .conftest import Node
from .peers import BLOCK_BYTES, BLOCKS, DONE, FAILED, SIZE_BYTES, Peer, digest, pattern, wait_for

pytestmark = pytest.mark.system
Spawn = Callable[..., Peer]


def block_pieces(pairs: list[tuple[int, int]]) -> list[Piece]:
    return [Piece(a * BLOCK_BYTES, b * BLOCK_BYTES, BLOCK_BYTES) for a, b in pairs]


def apply(source: bytes, target: bytearray, pieces: list[Piece], push: bool) -> None:
    """The model: what the destination must hold afterwards, byte for byte."""
    for piece in pieces:
        ends = (piece.local_offset, piece.remote_offset)
        start, to = ends if push else ends[::-1]
        target[to : to + piece.length_bytes] = source[start : start + piece.length_bytes]


def scattered(count: int, seed: int) -> list[Piece]:
    """Pieces of odd lengths at odd offsets, no two of which touch the same bytes."""
    rng = random.Random(seed)
    local, remote = rng.sample(range(BLOCKS), count), rng.sample(range(BLOCKS), count)
    return [
        Piece(a * BLOCK_BYTES + rng.randrange(9), b * BLOCK_BYTES + rng.randrange(9), length)
        for a, b in zip(local, remote, strict=True)
        for length in [rng.randrange(1, BLOCK_BYTES - 9)]
    ]


def test_write_moves_exactly_these_bytes(node: Node, spawn: Spawn) -> None:
    there = spawn("there")
    there.call("fill", 1)
    node.memory.view[:] = pattern(2)
    node.transfer.connect(there.address)
    pieces = [Piece(5, 9, 1), Piece(4096, 8192, 4096), Piece(SIZE_BYTES - 3, 0, 3)]
    ticket = node.transfer.write("there", there.boot_id, pieces, 10.0)
    assert wait_for(node.transfer, [ticket], 15)[ticket].state is DONE
    expected = bytearray(pattern(1))
    apply(pattern(2), expected, pieces, push=True)
    assert there.call("digest") == digest(bytes(expected))
    assert digest(node.memory.view) == digest(pattern(2))


def test_read_moves_exactly_these_bytes(node: Node, spawn: Spawn) -> None:
    there = spawn("there")
    there.call("fill", 1)
    node.memory.view[:] = pattern(2)
    node.transfer.connect(there.address)
    pieces = [Piece(5, 9, 1), Piece(4096, 8192, 4096), Piece(0, SIZE_BYTES - 3, 3)]
    ticket = node.transfer.read("there", there.boot_id, pieces, 10.0)
    assert wait_for(node.transfer, [ticket], 15)[ticket].state is DONE
    expected = bytearray(pattern(2))
    apply(pattern(1), expected, pieces, push=False)
    assert digest(node.memory.view) == digest(bytes(expected))
    assert there.call("digest") == digest(pattern(1))


def test_nothing_is_done_before_its_last_piece_has_landed(node: Node, spawn: Spawn) -> None:
    """Many large pieces that do not coalesce, looked at as soon as the ticket has ended."""
    there = spawn("there")
    there.call("fill", 1)
    node.transfer.connect(there.address)
    size = 8 * BLOCK_BYTES
    pieces = [Piece(start, start, size) for start in range(0, SIZE_BYTES, 2 * size)]
    source = pattern(1)
    expected = [digest(source[p.local_offset : p.local_offset + size]) for p in pieces]
    for _ in range(3):
        node.memory.view[:] = bytes(SIZE_BYTES)
        ticket = node.transfer.read("there", there.boot_id, pieces, 10.0)
        while not (outcomes := node.transfer.poll()):
            pass
        assert [(one.ticket, one.state) for one in outcomes] == [(ticket, DONE)]
        view = node.memory.view
        found = [digest(view[p.local_offset : p.local_offset + size]) for p in pieces]
        assert found == expected


@pytest.mark.parametrize("push", [True, False], ids=["write", "read"])
def test_more_pieces_than_one_batch_or_peer_takes(node: Node, spawn: Spawn, push: bool) -> None:
    there = spawn("there")
    there.call("fill", 1)
    node.memory.view[:] = pattern(2)
    node.transfer.connect(there.address)
    pieces = scattered(MAX_PEER_OUTSTANDING_PIECES + MAX_BATCH_PIECES + 1, seed=3)
    start = node.transfer.write if push else node.transfer.read
    ticket = start("there", there.boot_id, pieces, 20.0)
    assert wait_for(node.transfer, [ticket], 25)[ticket].state is DONE
    source, target = (pattern(2), pattern(1)) if push else (pattern(1), pattern(2))
    expected = bytearray(target)
    apply(source, expected, pieces, push)
    found = there.call("digest") if push else digest(node.memory.view)
    assert found == digest(bytes(expected))


@pytest.mark.parametrize("push", [True, False], ids=["write", "read"])
def test_done_means_that_the_last_piece_has_landed_too(
    node: Node, spawn: Spawn, push: bool
) -> None:
    """A byte and then megabytes: whoever looks at the first piece alone is early by far."""
    there = spawn("there")
    node.transfer.connect(there.address)
    big = SIZE_BYTES - 2 * BLOCK_BYTES
    tail = big - BLOCK_BYTES
    pieces = [Piece(SIZE_BYTES - 1, 0, 1), Piece(0, BLOCK_BYTES, big)]
    start = node.transfer.write if push else node.transfer.read
    for seed in range(3, 8):
        there.call("fill", seed if not push else 1)
        node.memory.view[:] = pattern(seed if push else 1)
        ticket = start("there", there.boot_id, pieces, 10.0)
        while not (outcomes := node.transfer.poll()):
            pass
        found = (
            there.call("digest", tail + BLOCK_BYTES, BLOCK_BYTES)
            if push
            else digest(node.memory.view[tail:big])
        )
        assert [(o.ticket, o.state) for o in outcomes] == [(ticket, DONE)]
        at = tail if push else tail + BLOCK_BYTES
        assert found == digest(pattern(seed)[at : at + BLOCK_BYTES])


def test_runs_of_blocks_in_any_order(node: Node, spawn: Spawn) -> None:
    """Contiguous on both sides, on one only, and backwards: coalescing changes no byte."""
    there = spawn("there")
    there.call("fill", 1)
    node.memory.view[:] = pattern(2)
    node.transfer.connect(there.address)
    pairs = [(i, i + 7) for i in range(64)]
    pairs += [(100 + i, 400 - i) for i in range(64)] + [(200 + 2 * i, 500 + i) for i in range(64)]
    random.Random(4).shuffle(pairs)
    pieces = block_pieces(pairs)
    ticket = node.transfer.write("there", there.boot_id, pieces, 10.0)
    assert wait_for(node.transfer, [ticket], 15)[ticket].state is DONE
    expected = bytearray(pattern(1))
    apply(pattern(2), expected, pieces, push=True)
    assert there.call("digest") == digest(bytes(expected))


def test_many_tickets_to_two_peers_at_once(node: Node, spawn: Spawn) -> None:
    peers = [spawn("one"), spawn("two")]
    node.memory.view[:] = pattern(2)
    for peer in peers:
        peer.call("fill", 1)
        node.transfer.connect(peer.address)
    expected = {peer.node: bytearray(pattern(1)) for peer in peers}
    tickets = []
    for index in range(100):
        peer = peers[index % 2]
        pieces = block_pieces([(index * 3 + 2 * i, index * 8 + i) for i in range(8)])
        apply(pattern(2), expected[peer.node], pieces, push=True)
        tickets.append(node.transfer.write(peer.node, peer.boot_id, pieces, 10.0))
    assert len(set(tickets)) == 100
    assert {one.state for one in wait_for(node.transfer, tickets, 15).values()} == {DONE}
    for peer in peers:
        assert peer.call("digest") == digest(bytes(expected[peer.node]))


def test_any_node_to_any_node_in_both_directions_at_once(node: Node, spawn: Spawn) -> None:
    """here -> one -> two -> one -> here, each node a source and a destination at a time."""
    one, two = spawn("one"), spawn("two")
    one.call("fill", 11)
    two.call("fill", 12)
    node.memory.view[:] = pattern(13)
    for peer in (one, two):
        peer.connect(node.transfer.address)
        node.transfer.connect(peer.address)
    one.connect(two.address)
    two.connect(one.address)
    half = BLOCKS // 2 * BLOCK_BYTES
    low_to_high = [[0, half, half // 2]]
    one.order("copy", True, "two", two.boot_id, low_to_high)
    two.order("copy", True, "one", one.boot_id, low_to_high)
    piece = Piece(0, half + half // 2, half // 2)
    pushed = node.transfer.write("one", one.boot_id, [piece], 20.0)
    pulled = node.transfer.read("two", two.boot_id, [Piece(half, 0, half // 2)], 20.0)
    ended = wait_for(node.transfer, [pushed, pulled], 25)
    assert {outcome.state for outcome in ended.values()} == {DONE}
    assert one.answer() == ["done", ""]
    assert two.answer() == ["done", ""]
    quarter = half // 2
    assert one.call("digest", half, quarter) == digest(pattern(12)[:quarter])
    assert one.call("digest", half + quarter, quarter) == digest(pattern(13)[:quarter])
    assert two.call("digest", half, quarter) == digest(pattern(11)[:quarter])
    assert digest(node.memory.view[half : half + quarter]) == digest(pattern(12)[:quarter])


@pytest.mark.parametrize(
    "piece",
    [
        Piece(SIZE_BYTES - 10, 0, 11),
        Piece(0, SIZE_BYTES // 2 - 10, 11),
        Piece(-1, 0, 10),
        Piece(0, -1, 10),
        Piece(0, 0, 0),
        Piece(SIZE_BYTES, 0, 1),
    ],
    ids=["local-end", "remote-end", "local-negative", "remote-negative", "empty", "outside"],
)
def test_a_range_outside_either_side_is_refused(node: Node, spawn: Spawn, piece: Piece) -> None:
    """The peer is the smaller, so that checking only one size, or the wrong one, shows."""
    there = spawn("there", BLOCKS // 2)
    there.call("fill", 1)
    before = there.call("digest")
    node.memory.view[:] = pattern(2)
    node.transfer.connect(there.address)
    good = Piece(0, 0, 10)
    tickets = [
        node.transfer.write("there", there.boot_id, [good, piece], 5.0),
        node.transfer.read("there", there.boot_id, [good, piece], 5.0),
    ]
    for outcome in wait_for(node.transfer, tickets, 1).values():
        assert outcome.state is FAILED
        assert outcome.settled
        assert "bytes" in outcome.reason
    assert there.call("digest") == before
    assert digest(node.memory.view) == digest(pattern(2))
    assert (
        wait_for(node.transfer, [node.transfer.write("there", there.boot_id, [good], 5.0)], 10)
        .popitem()[1]
        .state
        is DONE
    )


def test_unknown_peers_and_lives_fail_and_nothing_is_a_success(node: Node, spawn: Spawn) -> None:
    there = spawn("there")
    node.transfer.connect(there.address)
    one_byte = [Piece(0, 0, 1)]
    lost = node.transfer.write("nobody", there.boot_id, one_byte, 5.0)
    other_life = node.transfer.read("there", "another", one_byte, 5.0)
    nothing = node.transfer.write("there", there.boot_id, [], 5.0)
    ended = wait_for(node.transfer, [lost, other_life, nothing], 1)
    assert (ended[lost].state, ended[lost].settled) == (FAILED, True)
    assert "nobody" in ended[lost].reason
    assert (ended[other_life].state, ended[other_life].settled) == (FAILED, True)
    assert ended[nothing].state is DONE
    node.transfer.disconnect("there", "another")  # not this life: no effect
    kept = node.transfer.write("there", there.boot_id, one_byte, 5.0)
    assert wait_for(node.transfer, [kept], 10)[kept].state is DONE
    node.transfer.disconnect("there", there.boot_id)
    node.transfer.disconnect("there", there.boot_id)
    gone = node.transfer.write("there", there.boot_id, one_byte, 5.0)
    assert wait_for(node.transfer, [gone], 1)[gone].state is FAILED
    assert node.transfer.poll() == []


def test_checksums_are_of_what_lies_here(node: Node, spawn: Spawn) -> None:
    """Where a backend computes them; of pieces side by side, apart, and of more than one slice."""
    there = spawn("there")
    there.call("fill", 1)
    node.transfer.connect(there.address)
    asked = Digest(skip_bytes=64, length_bytes=512)
    pieces = [*block_pieces([(3, 1), (4, 2), (7, 9)]), Piece(0, 0, SIZE_BYTES)]
    for some in (pieces[:3], pieces[3:]):
        ticket = node.transfer.read("there", there.boot_id, some, 10.0, asked)
        outcome = wait_for(node.transfer, [ticket], 15)[ticket]
        assert outcome.state is DONE
        starts = [piece.local_offset + asked.skip_bytes for piece in some]
        here = [block_checksum(node.memory.view[at : at + asked.length_bytes]) for at in starts]
        assert list(outcome.checksums) in ([], here)
        assert bool(outcome.checksums) == (node.transfer.address.backend == "shm")
    assert digest(node.memory.view) == digest(pattern(1))
