"""Reads blocks from a source's L2 into one of its own, as a fetch does: in batches, each verified
once it has come, its bytes by the copier if the transfer has not summed them up."""

from __future__ import annotations

import os
import secrets
import select
from collections.abc import Sequence

from evctl.core.kv import KvLayout
from evctl.wire.messages import TransferAddress
from evengine.benches.source import block_key
from evengine.fetch.limits import FetchLimits
from evengine.pool.arrivals import Arrivals
from evengine.pool.copier import Checked, Copier
from evengine.pool.headers import EMPTY, HEADER_BYTES, boot_digest, slot_stride
from evengine.pool.l2 import HostPool
from evengine.pool.memory import KvMemory
from evengine.pool.pages import Pages
from evengine.ports import Digest, Piece, Slot, TransferState
from evengine.transfer import open_transfer
from evengine.wake import Wake

NODE = "reader"
LAYERS = 4
BLOCK_TOKENS = 16
FIRST_GENERATION = 1
DEADLINE_S = 30.0
WAIT_MS = 5


class ReadFailedError(Exception):
    """The transfer did not move the bytes."""


class Reader:
    """This process's L2 and what moves blocks into it."""

    def __init__(
        self, backend: str, source: TransferAddress, blocks: int, block_bytes: int
    ) -> None:
        row = block_bytes // (LAYERS * 2 * 4 * BLOCK_TOKENS)
        layout = KvLayout(LAYERS, 2, row, "float32", BLOCK_TOKENS)
        assert layout.block_bytes == block_bytes, "blocks of this size have no layout"
        boot_id = f"{os.getpid()}.{secrets.token_hex(4)}"
        self.memory = KvMemory(
            NODE, boot_id, 1, block_bytes, pool_bytes=blocks * slot_stride(block_bytes)
        )
        self.pool = HostPool(
            boot_id, self.memory.pool(), blocks, block_bytes, offset=self.memory.pool_offset
        )
        assert self.pool.take(blocks, 0.0) is not None, "the pool is empty"
        self.source = source
        self._wake = Wake()
        self._copier = Copier(Pages(layout, self.memory), self.pool, self._wake)
        self.transfer = open_transfer(backend, self.memory, NODE, boot_id)
        self.transfer.when_ended(self._wake.set)
        self.transfer.connect(source)
        self._theirs = boot_digest(source.boot_id)
        self._batch_blocks = FetchLimits().batch_blocks

    def clear(self, slots: Sequence[Slot]) -> None:
        """Forget what the slots held: bytes that were read before must not pass for new ones."""
        for slot in slots:
            start = slot * self.pool.stride
            self.pool.view[start : start + HEADER_BYTES] = EMPTY

    def read(self, slots: Sequence[Slot]) -> list[str]:
        """Blocks from the same slots of the source, verified; returns what is wrong with any.
        Raises ReadFailedError."""
        reading: dict[int, Arrivals] = {}
        digest = Digest(HEADER_BYTES, self.pool.block_bytes)
        for first in range(0, len(slots), self._batch_blocks):
            wanted = slots[first : first + self._batch_blocks]
            pieces = self.pieces(wanted)
            source = self.source
            ticket = self.transfer.read(source.node, source.boot_id, pieces, DEADLINE_S, digest)
            keys = [block_key(slot) for slot in wanted]
            generations = [FIRST_GENERATION] * len(wanted)
            reading[ticket] = Arrivals(wanted, keys, self._theirs, generations)
        faults: list[str] = []
        failed = ""
        left = len(slots)

        def done(results: Sequence[Checked]) -> None:
            nonlocal left
            left -= len(results)
            faults.extend(result.fault for result in results if result.fault)

        while left:
            for outcome in self.transfer.poll():
                batch = reading.pop(outcome.ticket)
                if outcome.state is not TransferState.DONE:
                    failed = failed or outcome.reason
                    left -= len(batch.slots)
                elif outcome.checksums:
                    done(batch.take_over(self.pool, outcome.checksums))
                else:
                    self._copier.submit(batch.items(self.pool), done)
            if not self._copier.poll() and left:
                select.select([self._wake.descriptor], [], [], WAIT_MS / 1e3)
                self._wake.clear()
        if failed:
            raise ReadFailedError(failed)
        return faults

    def pieces(self, slots: Sequence[Slot]) -> list[Piece]:
        """What a read of those slots copies."""
        pool, there = self.pool, self.source.pool_offset
        return [
            Piece(pool.slot_offset(slot), there + slot * pool.stride, pool.stride)
            for slot in slots
        ]

    def close(self) -> None:
        self._copier.close()
        self.transfer.close()
        self._wake.close()
        self.memory.path.unlink()
