"""Blocks that a read has put into slots of L2: theirs until their headers are seen, then ours.

Every block that is fetched passes here, on the thread that serves everybody else: with its bytes
summed up already, a block costs a look at one header and the writing of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from evctl.core.blocks import BlockKey
from evengine.pool.copier import Accept, Checked
from evengine.pool.headers import (
    Header,
    checksum_fault,
    header_fault,
    pack_header,
    unpack_header,
)
from evengine.pool.l2 import HostPool
from evengine.ports import Slot


class Arrivals(NamedTuple):
    """slots: ours, one for each key. boot: digest of the boot id that wrote the blocks.
    generations: of the slots that they come from."""

    slots: Sequence[Slot]
    keys: Sequence[BlockKey]
    boot: bytes
    generations: Sequence[int]

    def items(self, pool: HostPool) -> list[Accept]:
        """What the copier has to do with them where nobody has summed up their bytes."""
        expected = zip(self.slots, self.keys, self.generations, strict=True)
        return [
            Accept(
                slot,
                Header(self.boot, key, generation, pool.block_bytes, 0),
                pool.header(slot, key),
            )
            for slot, key, generation in expected
        ]

    def take_over(self, pool: HostPool, checksums: Sequence[int]) -> list[Checked]:
        """Put our headers in the place of theirs, where those are the expected ones and describe
        bytes of these checksums."""
        view, stride, boot, size = pool.view, pool.stride, self.boot, pool.block_bytes
        results = []
        for slot, key, generation, checksum in zip(
            self.slots, self.keys, self.generations, checksums, strict=True
        ):
            at = slot * stride
            found = unpack_header(view, at)
            # compared as fields: what a peer says is its generation need not fit into a header
            if found == (boot, key, generation, size, checksum):
                pack_header(view, at, pool.boot, key, pool.generation(slot), size, checksum)
                results.append(Checked(checksum, ""))
                continue
            header = Header._make(found)
            fault = header_fault(header, Header(boot, key, generation, size, checksum))
            results.append(Checked(0, fault or checksum_fault(checksum, header.checksum)))
        return results
