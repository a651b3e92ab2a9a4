"""L1 as blocks: where the bytes of one block lie, however many ranks hold them.

The canonical form of a block is KvLayout's: token-major, all KV heads of a token side by side.
It is what L2 keeps, what checksums are of, and what is the same for any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from evctl.core.kv import KvLayout
from evengine.pool.memory import KvMemory
from evengine.ports import Piece, Slot
from evengine.transfer.protocol import block_checksum


class Pages:
    """L1 slots of `memory` in one rank, which holds whole blocks; pool.ranked has those of
    several. Called from any thread, one call a slot at a time."""

    def __init__(self, layout: KvLayout, memory: KvMemory) -> None:
        self.layout = layout
        self.memory = memory
        self.ranks = memory.ranks

    def canonical(self, slot: Slot, tokens: int | None = None) -> memoryview:
        """The bytes of a block, or of its first `tokens` tokens; to be read, not kept."""
        whole = self.memory.block(slot)
        return whole if tokens is None else whole[: tokens * self.layout.token_bytes]

    def checksum(self, slot: Slot, tokens: int | None = None) -> int:
        """Of the canonical bytes."""
        return block_checksum(self.canonical(slot, tokens))

    def write(self, slot: Slot, data: memoryview) -> None:
        """Fill a slot from canonical bytes."""
        self.memory.block(slot)[: data.nbytes] = data

    def copy_out(self, slot: Slot, target: memoryview) -> None:
        """Canonical bytes of a whole block into `target`."""
        target[:] = self.canonical(slot)

    def pieces(
        self, slot: Slot, remote_slot: Slot, tokens: int, remote_blocks: int
    ) -> Sequence[Piece]:
        """Copies that move a block's first `tokens` tokens to a slot of a node with as many
        ranks. remote_blocks: slots of its L1 (TransferAddress.l1_blocks)."""
        del remote_blocks  # one region begins at 0 on either side
        size = self.memory.block_bytes
        return [Piece(slot * size, remote_slot * size, tokens * self.layout.token_bytes)]
