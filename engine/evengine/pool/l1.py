"""L1: who owns each slot of KV memory, and which cached block lies where.

A slot is free, private (one request fills it), cached (findable under its key, pinned or
evictable) or quarantined (somebody may still write to it). Keys are chained hashes, so the
prefix tree needs no edges: a block is reachable if its ancestors are cached, and eviction keeps
that so. An eviction order of policy.eviction says what goes first, by the class that the control
plane gave (references), then by last use, deeper blocks first. A block without its ancestors is
of no use here, so an ancestor's class is at least that of every cached descendant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import NamedTuple

from evctl.core.blocks import BlockKey
from evctl.policy.eviction import EvictionOrder, RefClass, make_order
from evengine.ports import Slot


class SlotState(IntEnum):
    FREE = 0
    PRIVATE = 1
    CACHED = 2
    QUARANTINED = 3


class ClassWord(NamedTuple):
    """The control plane's word on who needs a block. epoch: 0 for one that it has not given."""

    epoch: int
    told: RefClass


NO_WORD = ClassWord(0, RefClass.LIVE)


class CachedBlock:
    """One findable block; pins: requests that use it now. told: its own class by the control
    plane, as of `epoch`; ref_class: the highest among it and its descendants; below: children
    by their ref_class."""

    __slots__ = (
        "below",
        "checksum",
        "depth",
        "epoch",
        "key",
        "parent",
        "pins",
        "ref_class",
        "slot",
        "told",
    )

    def __init__(
        self,
        key: BlockKey,
        parent: BlockKey,
        slot: Slot,
        checksum: int,
        depth: int,
        word: ClassWord,
    ) -> None:
        self.key = key
        self.parent = parent
        self.slot = slot
        self.checksum = checksum
        self.depth = depth
        self.pins = 1
        self.below = [0] * len(RefClass)
        self.epoch, self.told = word
        self.ref_class = self.told

    @property
    def children(self) -> int:
        return sum(self.below)


class L1Cache:
    """ports.PrefixCache over `total_blocks` slots. `parent` of a first block is b""."""

    def __init__(
        self, total_blocks: int, *, reuse: bool = True, order: EvictionOrder | None = None
    ) -> None:
        """reuse: off, nothing is ever found, as if every request were the first. order: one of
        policy.eviction; the paper's where none is given."""
        if total_blocks < 1:
            raise ValueError(f"L1 needs at least one block, not {total_blocks}")
        self.total_blocks = total_blocks
        self._reuse = reuse
        self._state = [SlotState.FREE] * total_blocks
        self._generation = [0] * total_blocks
        self._free = deque(range(total_blocks))
        self._by_key: dict[BlockKey, CachedBlock] = {}
        self._by_slot: dict[Slot, CachedBlock] = {}
        # not `order or`: one that holds nothing yet is false
        self._order = make_order("paper", total_blocks) if order is None else order
        self._evictable = 0
        self._classes = [0] * len(RefClass)
        self._turn = 0
        """Rises with each change of class: the epoch of the order."""
        self.evicted_by_class = [0] * len(RefClass)
        """Blocks evicted so far."""
        self.now_s = 0.0
        """For the order; whoever has a clock sets it."""
        self._quarantine: dict[str, list[Slot]] = {}
        self._evicted: list[BlockKey] = []

    # ------------------------------------------------------------ what is where

    @property
    def used_blocks(self) -> int:
        """Slots that a request holds or that are quarantined: all but free and evictable."""
        return self.total_blocks - self.available_blocks

    @property
    def available_blocks(self) -> int:
        return len(self._free) + self._evictable

    @property
    def cached_blocks(self) -> int:
        return len(self._by_key)

    @property
    def quarantined_blocks(self) -> int:
        return sum(map(len, self._quarantine.values()))

    def blocks(self) -> list[CachedBlock]:
        """All cached blocks, in no particular order."""
        return list(self._by_key.values())

    def find(self, key: BlockKey) -> CachedBlock | None:
        return self._by_key.get(key)

    def classes(self) -> list[int]:
        """Cached blocks by class."""
        return list(self._classes)

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
        self._order.access(None, keys[: len(slots)], self.now_s)
        return slots

    def allocate(self, count: int) -> list[Slot] | None:
        if count > self.available_blocks:
            return None
        if count > len(self._free):
            short = count - len(self._free)
            for key in self._order.victims(short, self.now_s):
                self._evict(self._by_key[key])  # type: ignore[index]
        slots = [self._free.popleft() for _ in range(count)]
        for slot in slots:
            self._state[slot] = SlotState.PRIVATE
            self._generation[slot] += 1
        return slots

    def publish(
        self,
        slot: Slot,
        key: BlockKey,
        parent: BlockKey,
        checksum: int,
        word: ClassWord = NO_WORD,
    ) -> Slot:
        """word: what L2 knows already. Told afterwards, each block of a context that comes back
        would change the class of all its ancestors twice."""
        self._require(slot, SlotState.PRIVATE)
        known = self._by_key.get(key)
        if known is not None:
            self._free_slot(slot)
            self._pin(known)
            return known.slot
        above = self._by_key.get(parent)
        if parent and above is None:
            raise ValueError(f"the parent of block {key.hex()} is not cached")
        depth = above.depth + 1 if above else 0
        block = CachedBlock(key, parent, slot, checksum, depth, word)
        self._by_key[key] = block
        self._by_slot[slot] = block
        self._classes[block.ref_class] += 1
        self._state[slot] = SlotState.CACHED
        self._order.insert(key, depth)
        self._order.pin(key)
        if block.ref_class is not RefClass.LIVE:
            self._turn += 1
            self._order.classify(self._turn, (key,), block.ref_class)
        if above is not None:
            above.below[block.ref_class] += 1
            self._weigh(above)
        return slot

    def release(self, slots: Sequence[Slot]) -> None:
        left = [b.key for slot in slots if (b := self._by_slot.get(slot)) is not None]
        self._order.access(None, left, self.now_s)
        # deepest first, so that no pinned block ever has an unpinned ancestor
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
                self._order.unpin(block.key)
                self._evictable += 1

    def take_evicted(self) -> list[BlockKey]:
        """Keys evicted since the last call, to be announced before their slots are read."""
        evicted, self._evicted = self._evicted, []
        return evicted

    # ------------------------------------------------------------ who needs what

    def classify(self, epoch: int, keys: Iterable[BlockKey], ref_class: RefClass) -> int:
        """The control plane's word; returns to how many blocks it applied. Not to those that are
        not here, nor where a newer word came before."""
        applied = 0
        for key in keys:
            block = self._by_key.get(key)
            if block is None or epoch <= block.epoch:
                continue
            block.epoch, block.told = epoch, ref_class
            applied += 1
            self._weigh(block)
        return applied

    def forget_classes(self) -> None:
        """Another life of the control plane speaks from now on, and counts epochs from 0."""
        for block in self._by_key.values():
            block.epoch, block.told = 0, RefClass.LIVE
        for block in list(self._by_key.values()):
            self._weigh(block)

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
        highest: dict[BlockKey, int] = {}
        for block in self._by_key.values():
            children[block.parent] = children.get(block.parent, 0) + 1
            highest[block.parent] = max(highest.get(block.parent, 0), block.ref_class)
        for key, block in self._by_key.items():
            if self._by_slot.get(block.slot) is not block or block.key != key:
                problems.append(f"block {key.hex()} and slot {block.slot} disagree")
            if key not in self._order:
                problems.append(f"block {key.hex()} has no place in the order of eviction")
            if block.ref_class != block.told and not block.below[block.ref_class]:
                problems.append(f"block {key.hex()} has class {block.ref_class} without a reason")
            if block.ref_class < max(block.told, highest.get(key, 0)):
                problems.append(f"block {key.hex()} has a lower class than what depends on it")
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
        classes = [0] * len(RefClass)
        for block in self._by_key.values():
            classes[block.ref_class] += 1
        if classes != self._classes:
            problems.append(f"{self._classes} blocks are counted by class, not {classes}")
        if sum(not block.pins for block in self._by_key.values()) != self._evictable:
            problems.append(f"{self._evictable} blocks are counted as evictable wrongly")
        if self._order.total_blocks != len(self._by_key):
            problems.append("the order of eviction holds other blocks than are cached")
        return problems + self._order.check()

    # ------------------------------------------------------------ inside

    def _pin(self, block: CachedBlock) -> None:
        if not block.pins:
            self._order.pin(block.key)
            self._evictable -= 1
        block.pins += 1

    def _weigh(self, block: CachedBlock | None) -> None:
        """A block's own word or that of a child has changed: so may its class and those above."""
        while block is not None:
            before = block.ref_class
            lowest = RefClass.SUSPECT if block.below[RefClass.SUSPECT] else RefClass.UNREFERENCED
            below = RefClass.LIVE if block.below[RefClass.LIVE] else lowest
            block.ref_class = max(block.told, below)
            if block.ref_class is before:
                return
            self._classes[before] -= 1
            self._classes[block.ref_class] += 1
            self._turn += 1
            self._order.classify(self._turn, (block.key,), block.ref_class)
            above = self._by_key.get(block.parent)
            if above is not None:
                above.below[before] -= 1
                above.below[block.ref_class] += 1
            block = above

    def _evict(self, block: CachedBlock) -> None:
        """The order has let it go already."""
        assert not block.children, "an ancestor is evicted before its descendant"
        del self._by_key[block.key], self._by_slot[block.slot]
        self._evictable -= 1
        self._classes[block.ref_class] -= 1
        self.evicted_by_class[block.ref_class] += 1
        above = self._by_key.get(block.parent)
        if above is not None:
            above.below[block.ref_class] -= 1
            self._weigh(above)
        self._state[block.slot] = SlotState.PRIVATE
        self._free_slot(block.slot)
        self._evicted.append(block.key)

    def _free_slot(self, slot: Slot) -> None:
        self._state[slot] = SlotState.FREE
        self._free.append(slot)

    def _require(self, slot: Slot, state: SlotState) -> None:
        if self._state[slot] is not state:
            raise ValueError(f"slot {slot} is {self._state[slot].name}, not {state.name}")
