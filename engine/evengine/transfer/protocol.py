"""What every transfer backend keeps to: limits, ranges, coalescing and block headers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xxhash

from evctl.core.blocks import BlockKey
from evctl.core.kv import BlockHeader
from evengine.ports import Piece

MAX_BATCH_PIECES = 512
"""In one call of a backend; beyond about 2,048 Mooncake fails having written a part."""
MAX_PEER_OUTSTANDING_PIECES = 1_024
"""Handed to the backend and not yet ended, for one peer."""
MAX_PEER_PIECES = 16_384
"""Of all live tickets to one peer, after coalescing; a ticket beyond it fails at once."""
CONNECT_DEADLINE_S = 5.0
"""For the first copy to a new peer, which warms the session."""
SELF_TEST_DEADLINE_S = 5.0


def coalesce(pieces: Sequence[Piece]) -> list[Piece]:
    """The same copy in the fewest pieces: those contiguous on both sides become one. Those that
    can merge have the same distance between both sides.

    The order of the result is not that of the input: pieces of one batch have no order.
    """
    merged: list[Piece] = []
    open_at, open_end, open_gap = 0, -1, 0  # of the piece that the next one may continue
    for gap, local, length_bytes in sorted(
        (p.remote_offset - p.local_offset, p.local_offset, p.length_bytes) for p in pieces
    ):
        end = local + length_bytes
        if gap == open_gap and local <= open_end:
            open_end = max(open_end, end)
            continue
        if open_end >= 0:
            merged.append(Piece(open_at, open_at + open_gap, open_end - open_at))
        open_at, open_end, open_gap = local, end, gap
    if open_end >= 0:
        merged.append(Piece(open_at, open_at + open_gap, open_end - open_at))
    return merged


def range_fault(pieces: Sequence[Piece], local_bytes: int, remote_bytes: int) -> str:
    """Why a piece may not be copied, or "". Both sides: a backend checks at most the remote."""
    for piece in pieces:
        if piece.length_bytes < 1:
            return f"a piece of {piece.length_bytes} bytes"
        if not 0 <= piece.local_offset <= local_bytes - piece.length_bytes:
            return _outside("local", piece.local_offset, piece.length_bytes, local_bytes)
        if not 0 <= piece.remote_offset <= remote_bytes - piece.length_bytes:
            return _outside("remote", piece.remote_offset, piece.length_bytes, remote_bytes)
    return ""


block_checksum: Callable[[memoryview], int] = xxhash.xxh3_64_intdigest
"""xxh3-64 of the bytes. Guards against accidents, not against an adversary."""


def make_header(
    block: memoryview,
    *,
    boot_id: str,
    key: BlockKey,
    generation: int,
    valid_tokens: int,
    token_bytes: int,
) -> BlockHeader:
    """Describe the first `valid_tokens` of a slot's bytes.

    generation: of the slot that the copy will lie in. Raises ValueError if the slot is smaller.
    """
    length_bytes = valid_tokens * token_bytes
    if not 0 < length_bytes <= len(block):
        raise ValueError(f"{valid_tokens} tokens of {token_bytes} bytes in {len(block)} bytes")
    checksum = block_checksum(block[:length_bytes])
    return BlockHeader(boot_id, key, generation, valid_tokens, checksum)


def verify_header(
    header: BlockHeader,
    block: memoryview,
    *,
    boot_id: str,
    key: BlockKey,
    generation: int,
    token_bytes: int,
) -> str | None:
    """Why a slot's bytes are not what was expected in it, or None (transfer rule 3).

    boot_id, key, generation: what the reader expects, from its own records.
    """
    if header.boot_id != boot_id:
        return f"boot id {header.boot_id!r}, not {boot_id!r}"
    if header.key != key:
        return f"key {header.key.hex()}, not {key.hex()}"
    if header.generation != generation:
        return f"generation {header.generation}, not {generation}"
    length_bytes = header.valid_tokens * token_bytes
    if not 0 < length_bytes <= len(block):
        return f"{header.valid_tokens} tokens do not lie in {len(block)} bytes"
    found = block_checksum(block[:length_bytes])
    if found != header.checksum:
        return f"checksum {found:016x}, not {header.checksum:016x}"
    return None


def _outside(side: str, offset: int, length_bytes: int, size_bytes: int) -> str:
    return f"{side} range [{offset}, {offset + length_bytes}) is outside its {size_bytes} bytes"
