"""Blocks whose bytes lie in the regions of several ranks: put together and taken apart."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from evctl.core.kv import KvLayout
from evengine.pool.memory import KvMemory, region_bytes
from evengine.pool.pages import Pages
from evengine.ports import Piece, Slot
from evengine.transfer.protocol import block_checksum

Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def open_pages(layout: KvLayout, memory: KvMemory) -> Pages:
    """The pages of a node's L1, however many ranks share it."""
    if memory.ranks == 1:
        return Pages(layout, memory)
    return ReplicatedPages(layout, memory) if memory.replicated else ShardedPages(layout, memory)


class RankedPages(Pages):
    """What shards and replicas have in common: a piece of every slot in every rank."""

    def pieces(
        self, slot: Slot, remote_slot: Slot, tokens: int, remote_blocks: int
    ) -> Sequence[Piece]:
        memory = self.memory
        part = memory.part_bytes
        remote_region = region_bytes(remote_blocks, part)
        return [
            Piece(
                local_offset=rank * memory.region_bytes + slot * part,
                remote_offset=rank * remote_region + remote_slot * part,
                length_bytes=tokens * part // self.layout.block_tokens,
            )
            for rank in range(memory.ranks)
        ]

    def _tokens(self, slot: Slot, n_bytes: int) -> int:
        """Whole tokens in so many canonical bytes. Raises IndexError, ValueError."""
        if not 0 <= slot < self.memory.total_blocks:
            raise IndexError(f"slot {slot} is not in 0..{self.memory.total_blocks - 1}")
        if n_bytes % self.layout.token_bytes or n_bytes > self.layout.block_bytes:
            raise ValueError(f"{n_bytes} bytes are no tokens of a block")
        return n_bytes // self.layout.token_bytes


class ShardedPages(RankedPages):
    """Rank r holds the r-th part of every row, `[slot][block_tokens, n_layers, planes,
    row_elements / ranks]`: its share of the KV heads.

    numpy releases the GIL while it copies, and rows are runs of hundreds of bytes.
    """

    def __init__(self, layout: KvLayout, memory: KvMemory) -> None:
        super().__init__(layout, memory)
        if layout.row_elements % memory.ranks:
            raise ValueError(f"rows of {layout.row_elements} do not divide over {memory.ranks}")
        self._token_rows = layout.n_layers * layout.planes
        rows = layout.block_tokens * self._token_rows
        shape = (memory.total_blocks, rows, memory.part_bytes // rows)
        self._shards: list[Bytes] = [
            np.frombuffer(memory.region(rank), np.uint8).reshape(shape)
            for rank in range(memory.ranks)
        ]

    def canonical(self, slot: Slot, tokens: int | None = None) -> memoryview:
        """A fresh copy, put together; writing to it changes nothing."""
        count = self.layout.block_tokens if tokens is None else tokens
        out = memoryview(bytearray(count * self.layout.token_bytes))
        self.copy_out(slot, out)
        return out

    def write(self, slot: Slot, data: memoryview) -> None:
        tokens = self._tokens(slot, data.nbytes)
        whole = self._rows(np.frombuffer(data, np.uint8), tokens)
        for rank, shard in enumerate(self._shards):
            shard[slot, : tokens * self._token_rows] = whole[:, rank]

    def copy_out(self, slot: Slot, target: memoryview) -> None:
        tokens = self._tokens(slot, target.nbytes)
        whole = self._rows(np.frombuffer(target, np.uint8), tokens)
        for rank, shard in enumerate(self._shards):
            whole[:, rank] = shard[slot, : tokens * self._token_rows]

    def _rows(self, canonical: Bytes, tokens: int) -> Bytes:
        """Canonical bytes as [rows, ranks, bytes of a shard of a row]."""
        return canonical.reshape(tokens * self._token_rows, self.ranks, -1)


class ReplicatedPages(RankedPages):
    """Every rank holds whole blocks (latent KV, which all query heads read)."""

    def canonical(self, slot: Slot, tokens: int | None = None) -> memoryview:
        """Rank 0's bytes."""
        return self._replica(0, slot, self._size(tokens))

    def checksum(self, slot: Slot, tokens: int | None = None) -> int:
        """Of the canonical bytes, which all ranks hold. Where replicas differ, one of them is
        damaged and nothing is canonical: then of all their checksums, which matches no block."""
        size = self._size(tokens)
        found = [block_checksum(self._replica(rank, slot, size)) for rank in range(self.ranks)]
        if found.count(found[0]) == self.ranks:
            return found[0]
        return block_checksum(memoryview(struct.pack(f"<{self.ranks}Q", *found)))

    def write(self, slot: Slot, data: memoryview) -> None:
        self._tokens(slot, data.nbytes)
        for rank in range(self.ranks):
            self._replica(rank, slot, data.nbytes)[:] = data

    def _size(self, tokens: int | None) -> int:
        return self.layout.block_bytes if tokens is None else tokens * self.layout.token_bytes

    def _replica(self, rank: int, slot: Slot, size: int) -> memoryview:
        self._tokens(slot, size)
        start = rank * self.memory.region_bytes + slot * self.memory.part_bytes
        return self.memory.view[start : start + size]
