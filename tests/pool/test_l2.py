"""L2 against plain dictionaries: who goes first, pins, slots and generations, headers, bytes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evctl.policy.eviction import RefClass
from evengine.pool.l2 import HeldBlock, HostPool
from tests.pool.l2_format import (
    BLOCK,
    DEPTH,
    KEYS,
    LEVELS,
    LIVE,
    OFFSET,
    STRIDE,
    TOTAL,
    checksum_of,
    data_of,
    fill,
)


class Known:
    """The model's block. stamp: the visit that used it last; number: how late it came."""

    def __init__(self, held: HeldBlock, slot: int, stamp: int, number: int) -> None:
        self.held = held
        self.key = held.key
        self.slot = slot
        self.stamp = stamp
        self.number = number
        self.pins = 0
        self.ref_class = LIVE
        self.epoch = 0

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """The paper's order: class, last access, deeper first, then as they came."""
        return self.ref_class, self.stamp, -DEPTH[self.key], self.number


class PoolMachine(RuleBasedStateMachine):
    """Every slot is in exactly one of: free, filling, resting, a block's, a dropped block's."""

    def __init__(self) -> None:
        super().__init__()
        self.view = memoryview(bytearray(TOTAL * STRIDE))
        self.pool = HostPool("boot", self.view, TOTAL, BLOCK, offset=OFFSET)
        self.free = set(range(TOTAL))
        self.filling: list[int] = []
        self.resting: list[int] = []
        self.blocks: dict[bytes, Known] = {}
        self.dropped: list[Known] = []
        """Not findable any more, but still read by those who pinned them."""
        self.gone: list[bytes] = []
        self.generation = [0] * TOTAL
        self.evicted_by_class = [0, 0, 0]
        self.drops = 0
        self.visits = 0
        self.came = 0

    def evictable(self) -> list[Known]:
        """First to go first."""
        return sorted((b for b in self.blocks.values() if not b.pins), key=lambda b: b.rank)

    # ------------------------------------------------------------ slots

    @initialize(data=st.data(), keys=st.permutations(KEYS))
    def begin(self, data: st.DataObject, keys: list[bytes]) -> None:
        self.take(TOTAL, LIVE)
        self.hold(data, keys[:TOTAL])

    @rule(count=st.integers(0, TOTAL), at_most=st.sampled_from(RefClass))
    def take(self, count: int, at_most: RefClass) -> None:
        may_go = [block for block in self.evictable() if block.ref_class <= at_most]
        slots = self.pool.take(count, 0.0, at_most)
        if count > len(self.free) + len(may_go):
            assert slots is None
            return
        assert slots is not None
        for block in self.evictable()[: max(0, count - len(self.free))]:
            assert block.ref_class <= at_most
            self.evicted_by_class[block.ref_class] += 1
            del self.blocks[block.key]
            self.free.add(block.slot)
            self.gone.append(block.key)
        assert len(set(slots)) == len(slots) == count
        assert set(slots) <= self.free, "a slot in use was handed out"
        self.free -= set(slots)
        self.filling += slots
        for slot in slots:
            self.generation[slot] += 1

    @precondition(lambda self: self.filling)
    @rule(data=st.data(), keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=TOTAL))
    def hold(self, data: st.DataObject, keys: list[bytes]) -> None:
        """Blocks come into slots that were taken for them, whatever they are."""
        for key in keys[: len(self.filling)]:
            slot = data.draw(st.sampled_from(self.filling))
            self.filling.remove(slot)
            fill(self.view, slot, key, self.generation[slot])
            new = key not in self.blocks
            assert self.pool.hold(slot, key, b"parent", DEPTH[key], checksum_of(key)) is new
            if new:
                self.came += 1
                held = self.pool.find(key)
                assert held is not None
                assert (held.slot, held.parent, held.depth) == (slot, b"parent", DEPTH[key])
                assert held.checksum == checksum_of(key)
                self.blocks[key] = Known(held, slot, self.visits + 1, self.came)
            else:
                self.free.add(slot)

    @precondition(lambda self: self.filling)
    @rule(data=st.data(), may_write=st.booleans())
    def fail(self, data: st.DataObject, may_write: bool) -> None:
        """A slot is not filled after all: free at once, or once nobody can write to it."""
        slot = data.draw(st.sampled_from(self.filling))
        self.filling.remove(slot)
        if may_write:
            self.pool.rest([slot])
            self.resting.append(slot)
            fill(self.view, slot, KEYS[0], self.generation[slot])  # late, and it looks right
        else:
            self.pool.give_back([slot])
            self.free.add(slot)

    @precondition(lambda self: self.resting)
    @rule(data=st.data())
    def lift(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.resting))
        self.resting.remove(slot)
        self.pool.lift([slot])
        self.free.add(slot)

    @rule(slot=st.integers(0, TOTAL - 1), key=st.sampled_from(KEYS))
    def misuse(self, slot: int, key: bytes) -> None:
        """Slots of another state, and more unpins than pins, are refused without effect."""
        if slot not in self.filling:
            for wrong in (
                lambda: self.pool.hold(slot, key, b"", 0, 0),
                lambda: self.pool.give_back([slot]),
                lambda: self.pool.rest([slot]),
            ):
                with pytest.raises(ValueError):
                    wrong()
        if slot not in self.resting:
            with pytest.raises(ValueError):
                self.pool.lift([slot])
        block = self.blocks.get(key)
        if block is not None and not block.pins:
            with pytest.raises(ValueError):
                self.pool.unpin(block.held)

    # ------------------------------------------------------------ blocks

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4))
    def pin(self, keys: list[bytes]) -> None:
        for key in keys:
            known = self.blocks.get(key)
            assert self.pool.pin(key) is (known.held if known else None)
            if known:
                known.pins += 1

    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        pinned = [b for b in [*self.blocks.values(), *self.dropped] if b.pins]
        if not pinned:
            return
        block = data.draw(st.sampled_from(pinned))
        self.pool.unpin(block.held)
        block.pins -= 1
        if block in self.dropped and not block.pins:
            self.dropped.remove(block)
            self.free.add(block.slot)

    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """A second word about the same block changes nothing, nor does one about an old use."""
        known = [*self.blocks.values(), *self.dropped]
        if not known:
            return
        block = data.draw(st.sampled_from(known))
        self.pool.drop(block.held)
        if self.blocks.get(block.key) is not block:
            return
        del self.blocks[block.key]
        self.gone.append(block.key)
        self.drops += 1
        if block.pins:
            self.dropped.append(block)
        else:
            self.free.add(block.slot)

    @rule(path=st.tuples(*map(st.sampled_from, LEVELS)), length=st.integers(0, 4))
    def use(self, path: tuple[bytes, ...], length: int) -> None:
        """A request walks down its context."""
        self.pool.order.access(None, path[:length], 0.0)
        self.visits += 1
        for key in path[:length]:
            if key in self.blocks:
                self.blocks[key].stamp = self.visits

    @rule(
        epoch=st.integers(1, 5),
        keys=st.lists(st.sampled_from(KEYS), max_size=5),
        ref_class=st.sampled_from(RefClass),
    )
    def classify(self, epoch: int, keys: list[bytes], ref_class: RefClass) -> None:
        """Words about blocks that are there or not, newer than the last one or not."""
        fresh = {k for k in keys if k in self.blocks and epoch > self.blocks[k].epoch}
        assert self.pool.classify(epoch, keys, ref_class) == len(fresh)
        for key in fresh:
            self.blocks[key].epoch, self.blocks[key].ref_class = epoch, ref_class

    @rule()
    def another_control_plane(self) -> None:
        self.pool.forget_classes()
        for block in self.blocks.values():
            block.epoch, block.ref_class = 0, LIVE

    @rule()
    def tell(self) -> None:
        assert self.pool.take_evicted() == self.gone
        self.gone = []

    # ------------------------------------------------------------ what is wrong is found

    @precondition(lambda self: self.blocks)
    @rule(data=st.data(), bit=st.integers(0, 7))
    def spoil(self, data: st.DataObject, bit: int) -> None:
        """Any bit of a block's header or bytes; put right again."""
        block = self.blocks[data.draw(st.sampled_from(sorted(self.blocks)))]
        at = data.draw(st.one_of(st.integers(0, 55), st.integers(64, 64 + BLOCK - 1)))
        self.view[block.slot * STRIDE + at] ^= 1 << bit
        problems = self.pool.check_integrity(verify_bytes=True)
        assert len(problems) == 1
        assert f"slot {block.slot}," in problems[0]
        assert block.key.hex() in problems[0]
        # boot, key, generation and length are read without a look at the bytes
        assert self.pool.check_integrity() == (problems if at < 48 else [])
        self.view[block.slot * STRIDE + at] ^= 1 << bit

    @invariant()
    def sound(self) -> None:
        assert self.pool.check_integrity(verify_bytes=True) == []

    @invariant()
    def blocks_agree(self) -> None:
        assert {b.key for b in self.pool.blocks()} == set(self.blocks)
        for block in self.blocks.values():
            assert self.pool.find(block.key) is block.held
            assert bytes(self.pool.data(block.slot)) == data_of(block.key)
            assert self.pool.slot_offset(block.slot) == OFFSET + block.slot * STRIDE
        for block in [*self.blocks.values(), *self.dropped]:
            assert block.held.pins == block.pins
        held = [key in self.blocks for key in KEYS]
        assert self.pool.contains(KEYS) == (held.index(False) if False in held else len(KEYS))

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.used_blocks == TOTAL - len(self.free)
        assert self.pool.held_blocks == len(self.blocks)
        assert self.pool.resting_blocks == len(self.resting)
        assert self.pool.dropped_corrupt == self.drops
        assert self.pool.evicted_by_class == self.evicted_by_class
        pins = sum(b.pins for b in [*self.blocks.values(), *self.dropped])
        assert self.pool.pins == pins
        for ref_class in RefClass:
            of_class = [b for b in self.blocks.values() if b.ref_class == ref_class]
            assert self.pool.classes()[ref_class] == len(of_class)
            may_go = [b for b in self.evictable() if b.ref_class <= ref_class]
            assert self.pool.room(ref_class) == len(self.free) + len(may_go)

    @invariant()
    def slots_agree(self) -> None:
        assert [self.pool.generation(slot) for slot in range(TOTAL)] == self.generation
        for slot in self.free:  # a read that comes too late finds no header that fits
            assert bytes(self.view[slot * STRIDE : slot * STRIDE + 64]) == bytes(64)


TestPool = pytest.mark.timeout(600)(PoolMachine.TestCase)  # to shrink what it finds
TestPool.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
