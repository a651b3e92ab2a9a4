"""L2: which block lies in which slot of this node's host memory, and what goes first.

The index and the slots' states change on the engine's thread only; bytes are moved by the copier
and by peers' reads. A block is findable once its bytes and header are in place, and stays in
place while anybody has it pinned. Equal keys have equal bytes, so a block is kept once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum

from evctl.core.blocks import BlockKey
from evctl.policy.eviction import EvictionOrder, RefClass, make_order
from evengine.pool.headers import (
    EMPTY,
    HEADER_BYTES,
    Header,
    boot_digest,
    bytes_fault,
    header_fault,
    read_header,
    slot_stride,
)
from evengine.ports import Slot


class SlotState(IntEnum):
    FREE = 0
    FILLING = 1
    """Somebody writes to it: the copier, or a read from a peer."""
    HELD = 2
    RESTING = 3
    """A read that failed may still write to it."""


class HeldBlock:
    """One findable block. told: its class by the control plane, as of `epoch`. parent: the key
    before it, or the root key. pins: reads under way, of ours and of peers."""

    __slots__ = ("checksum", "depth", "epoch", "key", "parent", "pins", "slot", "told")

    def __init__(
        self, key: BlockKey, parent: BlockKey, depth: int, slot: Slot, checksum: int
    ) -> None:
        self.key = key
        self.parent = parent
        self.depth = depth
        self.slot = slot
        self.checksum = checksum
        self.pins = 0
        self.told = RefClass.LIVE
        self.epoch = 0


class HostPool:
    """ports.HostPool over a part of the node's registered memory."""

    def __init__(
        self,
        boot_id: str,
        view: memoryview,
        total_blocks: int,
        block_bytes: int,
        *,
        offset: int = 0,
        order: EvictionOrder | None = None,
    ) -> None:
        """view: at least total_blocks strides. offset: where it begins in the node's memory.
        order: one of policy.eviction; the paper's where none is given."""
        self.stride = slot_stride(block_bytes)
        if total_blocks < 1 or view.nbytes < total_blocks * self.stride:
            raise ValueError(f"{total_blocks} blocks do not fit into {view.nbytes} bytes")
        self.total_blocks = total_blocks
        self.block_bytes = block_bytes
        self.offset = offset
        self.view = view
        self.boot = boot_digest(boot_id)
        # not `order or`: one that holds nothing yet is false
        self.order = make_order("paper", total_blocks) if order is None else order
        self.evicted_by_class = [0] * len(RefClass)
        self.dropped_corrupt = 0
        self.pins = 0
        self._state = [SlotState.FREE] * total_blocks
        self._generation = [0] * total_blocks
        self._free = list(range(total_blocks - 1, -1, -1))
        """A stack: what was freed deepest first is handed out ancestors first, side by side."""
        self._by_key: dict[BlockKey, HeldBlock] = {}
        self._dropped: dict[Slot, HeldBlock] = {}
        """Not findable any more, but read to the end by who had pinned them."""
        self._evictable = [0] * len(RefClass)
        self._classes = [0] * len(RefClass)
        self._resting = 0
        self._turn = 0
        self._evicted: list[BlockKey] = []

    # ------------------------------------------------------------ what is where

    @property
    def used_blocks(self) -> int:
        """Slots that are not free."""
        return self.total_blocks - len(self._free)

    @property
    def held_blocks(self) -> int:
        return len(self._by_key)

    @property
    def resting_blocks(self) -> int:
        return self._resting

    def contains(self, keys: Sequence[BlockKey]) -> int:
        """How many leading `keys` are held; changes no recency."""
        for count, key in enumerate(keys):
            if key not in self._by_key:
                return count
        return len(keys)

    def find(self, key: BlockKey) -> HeldBlock | None:
        return self._by_key.get(key)

    def blocks(self) -> list[HeldBlock]:
        """All held blocks, in no particular order."""
        return list(self._by_key.values())

    def classes(self) -> list[int]:
        """Held blocks by class."""
        return list(self._classes)

    def slot_offset(self, slot: Slot) -> int:
        """Where a slot begins in the node's memory."""
        return self.offset + slot * self.stride

    def data(self, slot: Slot) -> memoryview:
        """The bytes of the block in a slot."""
        start = slot * self.stride + HEADER_BYTES
        return self.view[start : start + self.block_bytes]

    def header(self, slot: Slot, key: BlockKey, checksum: int = 0) -> Header:
        """What a slot's header must say in its present use."""
        return Header(self.boot, key, self._generation[slot], self.block_bytes, checksum)

    def generation(self, slot: Slot) -> int:
        """How often the slot was handed out."""
        return self._generation[slot]

    # ------------------------------------------------------------ filling

    def room(self, at_most: RefClass = RefClass.LIVE) -> int:
        """Slots that can be had if only blocks up to that class may go for them: free ones alone
        where the order of eviction does not go by class."""
        if at_most < RefClass.LIVE and not self.order.by_class:
            return len(self._free)
        return len(self._free) + sum(self._evictable[: at_most + 1])

    def take(
        self, count: int, now_s: float, at_most: RefClass = RefClass.LIVE
    ) -> list[Slot] | None:
        """`count` slots to be filled, blocks evicted for them if need be; None, and no change,
        if there is no such room."""
        if count > self.room(at_most):
            return None
        if count > len(self._free):
            for key in self.order.victims(count - len(self._free), now_s):
                self._evict(self._by_key[key])  # type: ignore[index]
        slots = [self._free.pop() for _ in range(count)]
        for slot in slots:
            self._state[slot] = SlotState.FILLING
            self._generation[slot] += 1
        return slots

    def hold(self, slot: Slot, key: BlockKey, parent: BlockKey, depth: int, checksum: int) -> bool:
        """A filled slot is findable from now on. False if the key is held already: then the slot
        is free again."""
        self._require(slot, SlotState.FILLING)
        if key in self._by_key:
            self.give_back([slot])
            return False
        block = HeldBlock(key, parent, depth, slot, checksum)
        self._by_key[key] = block
        self._state[slot] = SlotState.HELD
        self.order.insert(key, depth)
        self._evictable[block.told] += 1
        self._classes[block.told] += 1
        return True

    def give_back(self, slots: Iterable[Slot]) -> None:
        """Slots that were not filled, or wrongly."""
        for slot in slots:
            self._require(slot, SlotState.FILLING)
            self._free_slot(slot)

    def rest(self, slots: Iterable[Slot]) -> None:
        """Slots that a failed read may still write to: nobody gets them until lift()."""
        for slot in slots:
            self._require(slot, SlotState.FILLING)
            self._state[slot] = SlotState.RESTING
            self._resting += 1

    def lift(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self._require(slot, SlotState.RESTING)
            self._resting -= 1
            self._free_slot(slot)

    # ------------------------------------------------------------ using

    def pin(self, key: BlockKey) -> HeldBlock | None:
        """Keep a block where it is until as many unpin(); None if it is not held."""
        block = self._by_key.get(key)
        if block is None:
            return None
        if not block.pins:
            self.order.pin(key)
            self._evictable[block.told] -= 1
        block.pins += 1
        self.pins += 1
        return block

    def unpin(self, block: HeldBlock) -> None:
        """Take one pin back. ValueError without one."""
        if block.pins < 1:
            raise ValueError(f"block {block.key.hex()} has no pin")
        block.pins -= 1
        self.pins -= 1
        if block.pins:
            return
        if self._by_key.get(block.key) is block:
            self.order.unpin(block.key)
            self._evictable[block.told] += 1
        else:  # dropped while it was read
            del self._dropped[block.slot]
            self._free_slot(block.slot)

    def drop(self, block: HeldBlock) -> None:
        """Its bytes are not what they should be. A slot that is being read is free after that."""
        if self._by_key.get(block.key) is not block:
            return
        self.order.remove(block.key)
        del self._by_key[block.key]
        self._classes[block.told] -= 1
        self.dropped_corrupt += 1
        self._evicted.append(block.key)
        if block.pins:
            self._dropped[block.slot] = block
            return
        self._evictable[block.told] -= 1
        self._free_slot(block.slot)

    def take_evicted(self) -> list[BlockKey]:
        """Keys that left since the last call."""
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
            block.epoch = epoch
            applied += 1
            self._set_class(block, ref_class)
        return applied

    def forget_classes(self) -> None:
        """Another life of the control plane speaks from now on, and counts epochs from 0."""
        for block in self._by_key.values():
            block.epoch = 0
            self._set_class(block, RefClass.LIVE)

    # ------------------------------------------------------------ invariants

    def check_integrity(self, verify_bytes: bool = False) -> list[str]:
        """Violations; verify_bytes also computes every checksum (about 0.1 s per GiB)."""
        problems = [*self._check_slots(), *self.order.check()]
        for key, block in self._by_key.items():
            found = read_header(self.view, block.slot * self.stride)
            fault = header_fault(found, self.header(block.slot, key))
            if not fault and verify_bytes:
                fault = bytes_fault(self.data(block.slot), found.checksum)
            if fault:
                problems.append(f"L2 slot {block.slot}, block {key.hex()}: {fault}")
        return problems

    def _check_slots(self) -> list[str]:
        problems = []
        owners = [*self._by_key.values(), *self._dropped.values()]
        holders = {block.slot for block in owners}
        free = set(self._free)
        if len(holders) != len(owners) or len(free) != len(self._free):
            problems.append("an L2 slot is listed twice")
        if self.pins != sum(block.pins for block in owners):
            problems.append(f"{self.pins} L2 pins are counted wrongly")
        for slot, block in self._dropped.items():
            if block.slot != slot or block.pins < 1:
                problems.append(f"L2 slot {slot} was dropped, and nobody reads it")
        for slot, state in enumerate(self._state):
            claims = (slot in free, slot in holders)
            expected = (state is SlotState.FREE, state is SlotState.HELD)
            if claims != expected:
                problems.append(f"L2 slot {slot} is {state.name} but its lists say otherwise")
        evictable, classes = [0] * len(RefClass), [0] * len(RefClass)
        for block in self._by_key.values():
            evictable[block.told] += not block.pins
            classes[block.told] += 1
            if block.pins < 0 or block.key not in self.order:
                problems.append(f"L2 block {block.key.hex()} has {block.pins} pins or no order")
        if evictable != self._evictable or classes != self._classes:
            counted = f"{self._evictable} of {self._classes}"
            problems.append(
                f"L2 counts {counted} evictable by class, not {evictable} of {classes}"
            )
        if self.order.total_blocks != len(self._by_key):
            problems.append("the order of eviction holds other blocks than L2 does")
        if self._resting != sum(state is SlotState.RESTING for state in self._state):
            problems.append(f"{self._resting} L2 slots are counted as resting wrongly")
        return problems

    # ------------------------------------------------------------ inside

    def _set_class(self, block: HeldBlock, ref_class: RefClass) -> None:
        if block.told is ref_class:
            return
        if not block.pins:
            self._evictable[block.told] -= 1
            self._evictable[ref_class] += 1
        self._classes[block.told] -= 1
        self._classes[ref_class] += 1
        block.told = ref_class
        self._turn += 1
        self.order.classify(self._turn, (block.key,), ref_class)

    def _evict(self, block: HeldBlock) -> None:
        """The order has let it go already."""
        del self._by_key[block.key]
        self._evictable[block.told] -= 1
        self._classes[block.told] -= 1
        self.evicted_by_class[block.told] += 1
        self._evicted.append(block.key)
        self._free_slot(block.slot)

    def _free_slot(self, slot: Slot) -> None:
        start = slot * self.stride
        self.view[start : start + HEADER_BYTES] = EMPTY  # a peer's late read must not match
        self._state[slot] = SlotState.FREE
        self._free.append(slot)

    def _require(self, slot: Slot, state: SlotState) -> None:
        if self._state[slot] is not state:
            raise ValueError(f"L2 slot {slot} is {self._state[slot].name}, not {state.name}")
