"""A slot of L2: a header, then the canonical bytes of one block.

The header says whose life wrote which block, in which use of the slot, and the checksum of its
bytes. The index of a pool says where a key should lie; the header says what does lie there.
"""

from __future__ import annotations

import struct
from hashlib import blake2b
from typing import NamedTuple

from evctl.core.blocks import BlockKey
from evengine.transfer.protocol import block_checksum

_HEADER = struct.Struct("<16s16sQQQ")
HEADER_BYTES = 64
USED_HEADER_BYTES = _HEADER.size
"""What lies between them and the block means nothing."""
ALIGNMENT_BYTES = 64
EMPTY = bytes(HEADER_BYTES)


class Header(NamedTuple):
    """boot: digest of the boot id. generation: of the slot. checksum: of the block's bytes."""

    boot: bytes
    key: BlockKey
    generation: int
    length_bytes: int
    checksum: int


def boot_digest(boot_id: str) -> bytes:
    """16 bytes for a boot id of any length."""
    return blake2b(boot_id.encode(), digest_size=16).digest()


def slot_stride(block_bytes: int) -> int:
    """Bytes from one slot to the next; the same on every node with blocks of that size."""
    return HEADER_BYTES + -(-block_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def write_header(view: memoryview, offset: int, header: Header) -> None:
    _HEADER.pack_into(view, offset, *header)


def read_header(view: memoryview, offset: int) -> Header:
    return Header(*_HEADER.unpack_from(view, offset))


def header_fault(found: Header, expected: Header) -> str:
    """Why a slot does not hold the block that was expected in it, or "". The checksum is not
    compared: what it should be is known from the header alone (see bytes_fault)."""
    if found.boot != expected.boot:
        return "header of another life"
    if found.key != expected.key:
        return f"header of block {found.key.hex()}"
    if found.generation != expected.generation:
        return f"generation {found.generation}, not {expected.generation}"
    if found.length_bytes != expected.length_bytes:
        return f"length {found.length_bytes}, not {expected.length_bytes}"
    return ""


def bytes_fault(data: memoryview, checksum: int) -> str:
    """Why these are not the bytes that a header describes, or ""."""
    found = block_checksum(data)
    return "" if found == checksum else f"checksum {found:016x}, not {checksum:016x}"
