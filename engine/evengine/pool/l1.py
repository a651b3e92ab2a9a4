"""L1: who owns each slot of KV memory, and which cached block lies where.

A slot is free, private (one request fills it), cached (findable under its key, pinned or
evictable) or quarantined (somebody may still write to it). Keys are chained hashes, so the
prefix tree needs no edges: a block is reachable if its ancestors are cached, and eviction
keeps that so by taking the least recently used unpinned block, which is never older than its
ancestors.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from enum import IntEnum

from evctl.core.blocks import BlockKey
from evengine.ports import Slot


class SlotState(IntEnum):
    FREE = 0
    PRIVATE = 1
    CACHED = 2
    QUARANTINED = 3


class CachedBlock:
    """One findable block; pins: requests that use it now."""

    __slots__ = ("checksum", "children", "key", "parent", "pins", "slot")

    def __init__(self, key: BlockKey, parent: BlockKey, slot: Slot, checksum: int) -> None:
        self.key = key
        self.parent = parent
        self.slot = slot
        self.checksum = checksum
        self.pins = 1
        self.children = 0


class L1Cache:
    """ports.PrefixCache over `total_blocks` slots. `parent` of a first block is b""."""

    def __init__(self, total_blocks: int, *, reuse: bool = True) -> None:
        """reuse: off, nothing is ever found, as if every request were the first."""
        if total_blocks < 1:
            raise ValueError(f"L1 needs at least one block, not {total_blocks}")
        self.total_blocks = total_blocks
        self._reuse = reuse
        self._state = [SlotState.FREE] * total_blocks
        self._generation = [0] * total_blocks
        self._free = deque(range(total_blocks))
        self._by_key: dict[BlockKey, CachedBlock] = {}
        self._by_slot: dict[Slot, CachedBlock] = {}
        self._evictable: OrderedDict[BlockKey, CachedBlock] = OrderedDict()
        self._quarantine: dict[str, list[Slot]] = {}
        self._evicted: list[BlockKey] = []

    # ------------------------------------------------------------ what is where

    @property
    def used_blocks(self) -> int:
        """Slots that a request holds or that are quarantined: all but free and evictable."""
        return self.total_blocks - self.available_blocks

    @property
    def available_blocks(self) -> int:
        return len(self._free) + len(self._evictable)

    @property
    def cached_blocks(self) -> int:
        return len(self._by_key)

    @property
    def quarantined_blocks(self) -> int:
        return sum(map(len, self._quarantine.values()))

    def blocks(self) -> list[CachedBlock]:
        """All cached blocks, in no particular order."""
        return list(self._by_key.values())

    def peek(self, keys: Sequence[BlockKey]) -> int:
        for count, key in enumerate(keys):
            if key not in self._by_key:
                return count
        return len(keys)

    def checksum(self, slot: Slot) -> int:
        """Checksum of the cached block in `slot`."""
        return self._by_slot[slot].checksum

    def generation(self, slot: Slot) -> int:
        return self._generation[slot]

    # ------------------------------------------------------------ taking and giving

    def match(self, keys: Sequence[BlockKey]) -> list[Slot]:
        slots: list[Slot] = []
        for key in keys if self._reuse else ():
            block = self._by_key.get(key)
            if block is None:
                break
            self._pin(block)
            slots.append(block.slot)
        return slots

    def allocate(self, count: int) -> list[Slot] | None:
        if count > self.available_blocks:
            return None
        while len(self._free) < count:
            self._evict_one()
        slots = [self._free.popleft() for _ in range(count)]
        for slot in slots:
            self._state[slot] = SlotState.PRIVATE
            self._generation[slot] += 1
        return slots

    def publish(self, slot: Slot, key: BlockKey, parent: BlockKey, checksum: int) -> Slot:
        self._require(slot, SlotState.PRIVATE)
        known = self._by_key.get(key)
        if known is not None:
            self._free_slot(slot)
            self._pin(known)
            return known.slot
        if parent:
            if parent not in self._by_key:
                raise ValueError(f"the parent of block {key.hex()} is not cached")
            self._by_key[parent].children += 1
        block = CachedBlock(key, parent, slot, checksum)
        self._by_key[key] = block
        self._by_slot[slot] = block
        self._state[slot] = SlotState.CACHED
        return slot

    def release(self, slots: Sequence[Slot]) -> None:
        # deepest first, so that an ancestor ends up more recent than its descendants
        for slot in reversed(slots):
            if self._state[slot] is SlotState.PRIVATE:
                self._free_slot(slot)
                continue
            self._require(slot, SlotState.CACHED)
            block = self._by_slot[slot]
            if block.pins < 1:
                raise ValueError(f"slot {slot} is released more often than it was taken")
            block.pins -= 1
            if not block.pins:
                self._evictable[block.key] = block

    def take_evicted(self) -> list[BlockKey]:
        """Keys evicted since the last call, to be announced before their slots are read."""
        evicted, self._evicted = self._evicted, []
        return evicted

    # ------------------------------------------------------------ quarantine

    def quarantine(self, slots: Sequence[Slot], owner: str) -> None:
        for slot in slots:
            self._require(slot, SlotState.PRIVATE)
            self._state[slot] = SlotState.QUARANTINED
        self._quarantine.setdefault(owner, []).extend(slots)

    def lift_quarantine(self, owner: str) -> int:
        slots = self._quarantine.pop(owner, [])
        for slot in slots:
            self._state[slot] = SlotState.PRIVATE
            self._free_slot(slot)
        return len(slots)

    # ------------------------------------------------------------ invariants

    def check_integrity(self) -> list[str]:
        problems = [*self._check_slots(), *self._check_blocks()]
        if list(self._free) and len(set(self._free)) != len(self._free):
            problems.append("a slot is in the free list twice")
        return problems

    def _check_slots(self) -> list[str]:
        problems = []
        free = set(self._free)
        quarantined = {slot for slots in self._quarantine.values() for slot in slots}
        for slot, state in enumerate(self._state):
            expected = {
                SlotState.FREE: slot in free,
                SlotState.CACHED: slot in self._by_slot,
                SlotState.QUARANTINED: slot in quarantined,
                SlotState.PRIVATE: True,
            }[state]
            claims = (slot in free) + (slot in self._by_slot) + (slot in quarantined)
            if not expected or claims != (state is not SlotState.PRIVATE):
                problems.append(f"slot {slot} is {state.name} but its lists say otherwise")
        return problems

    def _check_blocks(self) -> list[str]:
        problems = []
        children: dict[BlockKey, int] = {}
        for key, block in self._by_key.items():
            children[block.parent] = children.get(block.parent, 0) + 1
            if self._by_slot.get(block.slot) is not block or block.key != key:
                problems.append(f"block {key.hex()} and slot {block.slot} disagree")
            if (block.pins == 0) != (key in self._evictable):
                problems.append(f"block {key.hex()} has {block.pins} pins but is listed wrongly")
            if block.pins < 0:
                problems.append(f"block {key.hex()} has {block.pins} pins")
            parent = self._by_key.get(block.parent)
            if block.parent and parent is None:
                problems.append(f"block {key.hex()} has lost its parent")
            if parent is not None and block.pins and not parent.pins:
                problems.append(f"block {key.hex()} is pinned but its parent is not")
        for key, block in self._by_key.items():
            if block.children != children.get(key, 0):
                problems.append(f"block {key.hex()} counts {block.children} children wrongly")
        return problems

    # ------------------------------------------------------------ inside

    def _pin(self, block: CachedBlock) -> None:
        if not block.pins:
            del self._evictable[block.key]
        block.pins += 1

    def _evict_one(self) -> None:
        for block in self._evictable.values():
            # always the first one, unless blocks of one chain were released out of order
            if not block.children:
                self._evict(block)
                return
        raise AssertionError("every evictable block has a cached child")

    def _evict(self, block: CachedBlock) -> None:
        del self._by_key[block.key], self._by_slot[block.slot], self._evictable[block.key]
        if block.parent:
            self._by_key[block.parent].children -= 1
        self._state[block.slot] = SlotState.PRIVATE
        self._free_slot(block.slot)
        self._evicted.append(block.key)

    def _free_slot(self, slot: Slot) -> None:
        self._state[slot] = SlotState.FREE
        self._free.append(slot)

    def _require(self, slot: Slot, state: SlotState) -> None:
        if self._state[slot] is not state:
            raise ValueError(f"slot {slot} is {self._state[slot].name}, not {state.name}")
