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


unpack_header = _HEADER.unpack_from
pack_header = _HEADER.pack_into
"""As read_header and write_header, with the fields alone: for where every block passes."""


def write_header(view: memoryview, offset: int, header: Header) -> None:
    _HEADER.pack_into(view, offset, *header)


def read_header(view: memoryview, offset: int) -> Header:
    return Header._make(_HEADER.unpack_from(view, offset))


def header_fault(found: Header, expected: Header) -> str:
    """Why a slot does not hold the block that was expected in it, or "". The checksum is not
    compared: what it should be is known from the header alone (see bytes_fault)."""
    if found[:4] == expected[:4]:
        return ""
    if found.boot != expected.boot:
        return "header of another life"
    if found.key != expected.key:
        return f"header of block {found.key.hex()}"
    if found.generation != expected.generation:
        return f"generation {found.generation}, not {expected.generation}"
    return f"length {found.length_bytes}, not {expected.length_bytes}"


def take_over(
    view: memoryview, offset: int, block_bytes: int, theirs: Header, ours: Header
) -> tuple[int, str]:
    """Put our header in the place of theirs, if that is what lies there (checksums aside) and
    the bytes behind it are those that it describes. Returns their checksum, or 0 and why not.

    Every block that is fetched passes here, 256 of them while 16 MiB are copied (1.5 ms): so this
    is read_header, header_fault, bytes_fault and write_header, written out.
    """
    found = _HEADER.unpack_from(view, offset)
    checksum: int = found[4]
    if found[:4] != theirs[:4]:
        return 0, header_fault(Header._make(found), theirs)
    start = offset + HEADER_BYTES
    here = block_checksum(view[start : start + block_bytes])
    if here != checksum:
        return 0, checksum_fault(here, checksum)
    _HEADER.pack_into(view, offset, *ours[:4], checksum)
    return checksum, ""


def bytes_fault(data: memoryview, checksum: int) -> str:
    """Why these are not the bytes that a header describes, or ""."""
    return checksum_fault(block_checksum(data), checksum)


def checksum_fault(found: int, expected: int) -> str:
    return "" if found == expected else f"checksum {found:016x}, not {expected:016x}"
