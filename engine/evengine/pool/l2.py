"""L2: whole, keyed KV blocks in this node's private memory, verified on every read.

Each slot is a header followed by the block's bytes. The index says where a key should lie; the
header says what does lie there. They must agree, and the checksum must hold, or the block is
dropped: a lost block is recomputed, a wrong one would be wrong tokens.
"""

from __future__ import annotations

import mmap
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from evctl.core.blocks import KEY_BYTES, BlockKey
from evctl.core.errors import IntegrityError
from evengine.pool.memory import HEADROOM_BYTES, available_bytes, refuse_beyond
from evengine.transfer.protocol import block_checksum

HEADER = struct.Struct("<16s16sQQQ")
"""Digest of the boot id, key, generation of the slot, length in bytes, checksum."""
HEADER_BYTES = 64
ALIGNMENT_BYTES = 64


class LocalHostPool:
    """HostPool over one anonymous mapping; one thread calls it.

    Eviction takes the least recently put or read block that is not pinned. `dropped_corrupt`
    and `evicted` count blocks since the start.
    """

    def __init__(self, boot_id: str, total_blocks: int, block_bytes: int) -> None:
        """Raises RefusedError EV-4110 where the memory does not hold it. It is taken from the
        system as it is filled, so two pools may pass this check and not fit together."""
        if total_blocks < 1 or block_bytes < 1:
            raise ValueError(f"{total_blocks} blocks of {block_bytes} bytes are no pool")
        self.total_blocks = total_blocks
        self.used_blocks = 0
        self.block_bytes = block_bytes
        self.dropped_corrupt = 0
        self.evicted = 0
        self._stride = HEADER_BYTES + -(-block_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        size_bytes = self._stride * total_blocks
        usable_bytes = available_bytes() - HEADROOM_BYTES
        refuse_beyond(
            "cannot create the L2 pool",
            size_bytes,
            usable_bytes,
            "MemAvailable less 256 MiB",
            "EV-4110",
        )
        self._memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._view = memoryview(self._memory)
        self._boot = blake2b(boot_id.encode(), digest_size=16).digest()
        self._generations = [0] * total_blocks
        self._free = list(range(total_blocks - 1, -1, -1))
        self._unpinned: OrderedDict[BlockKey, int] = OrderedDict()
        self._pinned: dict[BlockKey, int] = {}
        self._pins: Counter[BlockKey] = Counter()

    # ------------------------------------------------------------ HostPool

    def contains(self, keys: Sequence[BlockKey]) -> int:
        """How many leading `keys` are held; changes no recency."""
        for count, key in enumerate(keys):
            if self._slot(key) is None:
                return count
        return len(keys)

    def put(self, key: BlockKey, data: memoryview, checksum: int) -> list[BlockKey] | None:
        """Store a block; returns the keys evicted for it, or None if everything is pinned.

        checksum: block_checksum of `data`, checked when it is read. A key that is held is only
        touched: equal keys have equal bytes. Raises ValueError for a key or data of no block.
        """
        if len(key) != KEY_BYTES or not 0 < data.nbytes <= self.block_bytes:
            raise ValueError(f"key of {len(key)} and block of {data.nbytes} bytes")
        if self._slot(key) is not None:
            self._touch(key)
            return []
        evicted: list[BlockKey] = []
        if not self._free:
            if not self._unpinned:
                return None
            oldest = next(iter(self._unpinned))
            self._remove(oldest)
            self.evicted += 1
            evicted.append(oldest)
        slot = self._free.pop()
        self._store(slot, key, data, checksum)
        self.used_blocks += 1
        (self._pinned if self._pins[key] else self._unpinned)[key] = slot
        return evicted

    def read(self, key: BlockKey, into: memoryview) -> int:
        """Copy a block out and verify what was copied; returns its checksum.

        Raises KeyError if it is not held, ValueError if `into` is too small, and
        IntegrityError EV-4301 (and drops the block) if its bytes are not what its header
        says; `into` then holds rubbish.
        """
        slot = self._slot(key)
        if slot is None:
            raise KeyError(key)
        fault = self._header_fault(slot, key)
        if not fault:
            length_bytes, checksum = self._header(slot)[3:]
            if into.nbytes < length_bytes:
                raise ValueError(f"{length_bytes} bytes do not fit into {into.nbytes}")
            target = into.cast("B")[:length_bytes]
            target[:] = self._data(slot, length_bytes)
            found = block_checksum(target)  # of the copy: what is used is what was checked
            if found == checksum:
                self._touch(key)
                return checksum
            fault = f"checksum {found:016x}, not {checksum:016x}"
        self._remove(key)
        self.dropped_corrupt += 1
        raise IntegrityError(
            what=f"block {key.hex()} in L2 was dropped",
            why=fault,
            next_step="none: it is computed again; if this repeats, test this node's memory",
            code="EV-4301",
        )

    def check_integrity(self, verify_bytes: bool = False) -> list[str]:
        """Violations; verify_bytes also computes every checksum (about 0.1 s per GiB)."""
        held = {**self._unpinned, **self._pinned}
        problems = self._accounting(held)
        for key, slot in held.items():
            fault = self._header_fault(slot, key)
            if not fault and verify_bytes:
                length_bytes, checksum = self._header(slot)[3:]
                if block_checksum(self._data(slot, length_bytes)) != checksum:
                    fault = "bytes differ from their checksum"
            if fault:
                problems.append(f"slot {slot}, block {key.hex()}: {fault}")
        return problems

    def close(self) -> None:
        """Give the memory back. Idempotent; nothing else may be called afterwards."""
        self._view.release()
        self._memory.close()

    # ------------------------------------------------------------ pins

    def pin(self, key: BlockKey) -> bool:
        """Keep a block from eviction until as many unpin(); False if it is not held."""
        slot = self._slot(key)
        if slot is None:
            return False
        self._pins[key] += 1
        self._unpinned.pop(key, None)
        self._pinned[key] = slot
        return True

    def unpin(self, key: BlockKey) -> None:
        """Take one pin back; the last makes the block evictable, as the most recent one.

        A pin outlives a block that is dropped as corrupt. Raises KeyError without a pin.
        """
        if not self._pins[key]:
            del self._pins[key]
            raise KeyError(key)
        self._pins[key] -= 1
        if not self._pins[key]:
            del self._pins[key]
            slot = self._pinned.pop(key, None)
            if slot is not None:
                self._unpinned[key] = slot

    def held_keys(self) -> Iterable[BlockKey]:
        """Held keys: evictable ones first, oldest first, then the pinned."""
        return [*self._unpinned, *self._pinned]

    # ------------------------------------------------------------ slots

    def _slot(self, key: BlockKey) -> int | None:
        slot = self._unpinned.get(key)
        return self._pinned.get(key) if slot is None else slot

    def _touch(self, key: BlockKey) -> None:
        if key in self._unpinned:
            self._unpinned.move_to_end(key)

    def _remove(self, key: BlockKey) -> None:
        slot = self._unpinned.pop(key) if key in self._unpinned else self._pinned.pop(key)
        HEADER.pack_into(self._view, slot * self._stride, b"", b"", 0, 0, 0)
        self._free.append(slot)
        self.used_blocks -= 1

    def _store(self, slot: int, key: BlockKey, data: memoryview, checksum: int) -> None:
        self._generations[slot] += 1
        self._data(slot, data.nbytes)[:] = data.cast("B")
        HEADER.pack_into(
            self._view,
            slot * self._stride,
            self._boot,
            key,
            self._generations[slot],
            data.nbytes,
            checksum,
        )

    def _header(self, slot: int) -> tuple[bytes, bytes, int, int, int]:
        boot, key, generation, length_bytes, checksum = HEADER.unpack_from(
            self._view, slot * self._stride
        )
        return boot, key, generation, length_bytes, checksum

    def _data(self, slot: int, length_bytes: int) -> memoryview:
        start = slot * self._stride + HEADER_BYTES
        return self._view[start : start + length_bytes]

    def _header_fault(self, slot: int, key: BlockKey) -> str:
        boot, found, generation, length_bytes, _ = self._header(slot)
        if boot != self._boot:
            return "header of another life"
        if found != key:
            return f"header of block {found.hex()}"
        if generation != self._generations[slot]:
            return f"generation {generation}, not {self._generations[slot]}"
        if not 0 < length_bytes <= self.block_bytes:
            return f"length {length_bytes}"
        return ""

    def _accounting(self, held: dict[BlockKey, int]) -> list[str]:
        """Each slot is free or holds one block; each pin and count is in its place."""
        problems = []
        if sorted([*self._free, *held.values()]) != list(range(self.total_blocks)):
            problems.append("free list and index do not cover each slot once")
        if self.used_blocks != len(held) or len(held) != len(self._unpinned) + len(self._pinned):
            problems.append(f"used_blocks is {self.used_blocks}, but {len(held)} are held")
        if any(not self._pins[key] for key in list(self._pinned)):
            problems.append("a block without a pin is kept from eviction")
        if any(self._pins.get(key, 0) for key in self._unpinned):
            problems.append("a pinned block can be evicted")
        return problems
