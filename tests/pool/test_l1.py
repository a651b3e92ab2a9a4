"""The L1 cache against a naive model that keeps every block in plain sets."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from evctl.policy.eviction import RefClass, make_order
from evengine.pool.l1 import ClassWord, L1Cache

TOTAL = 12


def chain(path: tuple[int, ...]) -> list[bytes]:
    """Keys of the blocks along `path`; equal prefixes give equal keys."""
    return [
        blake2b(bytes(path[: depth + 1]), digest_size=16).digest() for depth in range(len(path))
    ]


class Request:
    def __init__(self, keys: list[bytes], slots: list[int], cached: int) -> None:
        self.keys = keys
        self.slots = slots
        self.published = cached


class CacheMachine(RuleBasedStateMachine):
    """Requests match, allocate, publish block by block and leave, in any order."""

    requests: Bundle[Request] = Bundle("requests")
    resting: Bundle[str] = Bundle("resting")

    def __init__(self) -> None:
        super().__init__()
        self.l1 = L1Cache(TOTAL)
        self.running: list[Request] = []
        self.contents: dict[int, bytes] = {}
        self.cached: dict[bytes, int] = {}
        self.quarantined: dict[str, list[int]] = {}
        self.count = 0
        self.told: dict[bytes, tuple[int, int]] = {}
        self.paths: dict[bytes, list[bytes]] = {}

    def needed(self, key: bytes) -> int:
        """Class of a cached block: the highest told about it and what hangs from it."""
        return max(
            self.told.get(other, (0, 2))[1] for other in self.cached if key in self.paths[other]
        )

    @rule(
        path=st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple),
        first=st.integers(0, 5),
        epoch=st.integers(1, 50),
        ref_class=st.sampled_from(RefClass),
    )
    def classify(self, path: tuple[int, ...], first: int, epoch: int, ref_class: RefClass) -> None:
        """Words about blocks that are there or not, newer than the last one or not."""
        keys = chain(path)[first:]
        fresh = [k for k in keys if k in self.cached and epoch > self.told.get(k, (0, 2))[0]]
        assert self.l1.classify(epoch, keys, ref_class) == len(fresh)
        self.told.update((key, (epoch, ref_class)) for key in fresh)

    @rule()
    def another_control_plane(self) -> None:
        self.l1.forget_classes()
        self.told.clear()

    @rule(target=requests, path=st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple))
    def start(self, path: tuple[int, ...]) -> Request:
        keys = chain(path)
        expected = 0
        while expected < len(keys) and keys[expected] in self.cached:
            expected += 1
        assert self.l1.peek(keys) == expected
        held = self.l1.match(keys)
        assert [self.contents[slot] for slot in held] == keys[:expected]
        before = self.l1.available_blocks
        for depth, key in enumerate(keys):
            self.paths[key] = keys[: depth + 1]
        busy = {slot for request in self.running for slot in request.slots} | set(held)
        classes = {k: self.needed(k) for k, slot in self.cached.items() if slot not in busy}
        slots = self.l1.allocate(len(keys) - len(held))
        if slots is None:
            assert before < len(keys) - len(held)
            assert self.l1.available_blocks == before
            self.l1.release(held)
            return Request([], [], 0)
        in_use = [slot for request in self.running for slot in request.slots]
        in_use += [slot for rest in self.quarantined.values() for slot in rest]
        assert not set(slots) & set(in_use), "a slot in use was handed out"
        gone = self.forget_evicted()
        kept = [ref_class for key, ref_class in classes.items() if key not in gone]
        assert max((classes[key] for key in gone), default=0) <= min(kept, default=2), (
            "a block that is needed more went before one that is needed less"
        )
        for slot in slots:
            self.contents[slot] = b"being written"
        request = Request(keys, held + slots, len(held))
        self.running.append(request)
        return request

    @rule(request=requests)
    def publish(self, request: Request) -> None:
        if request not in self.running or request.published == len(request.keys):
            return
        block = request.published
        key, slot = request.keys[block], request.slots[block]
        parent = request.keys[block - 1] if block else b""
        known = self.cached.get(key)
        got = self.l1.publish(slot, key, parent, checksum=block)
        assert got == (slot if known is None else known)
        if known is None:
            self.contents[slot] = key
            self.cached[key] = slot
        request.slots[block] = got
        request.published += 1

    @rule(request=consumes(requests))
    def leave(self, request: Request) -> None:
        if request in self.running:
            self.running.remove(request)
            self.l1.release(request.slots)

    @rule(target=resting, request=consumes(requests))
    def fail(self, request: Request) -> str:
        """Its private slots may still be written to."""
        self.count += 1
        owner = f"owner {self.count}"
        if request in self.running:
            self.running.remove(request)
            private = request.slots[request.published :]
            self.l1.release(request.slots[: request.published])
            self.l1.quarantine(private, owner)
            self.quarantined[owner] = private
        return owner

    @rule(owner=consumes(resting))
    def settle(self, owner: str) -> None:
        assert self.l1.lift_quarantine(owner) == len(self.quarantined.pop(owner, []))

    def forget_evicted(self) -> list[bytes]:
        gone = self.l1.take_evicted()
        for key in gone:
            slot = self.cached.pop(key)
            self.told.pop(key, None)
            pinned = any(
                slot in request.slots and self.contents.get(slot) == key
                for request in self.running
            )
            assert not pinned, "a block in use was evicted"
        return gone

    @invariant()
    def sound(self) -> None:
        assert self.l1.check_integrity() == []

    @invariant()
    def counts_agree(self) -> None:
        self.forget_evicted()
        assert self.l1.cached_blocks == len(self.cached)
        held = {slot for request in self.running for slot in request.slots}
        resting = sum(map(len, self.quarantined.values()))
        assert self.l1.used_blocks == len(held) + resting
        assert self.l1.quarantined_blocks == resting

    @invariant()
    def every_cached_block_is_reachable(self) -> None:
        for block in self.l1.blocks():
            assert not block.parent or block.parent in self.cached


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_eviction_takes_the_oldest_branch_from_its_end() -> None:
    l1 = L1Cache(6)
    old, new = chain((0, 0, 0)), chain((0, 1, 1))
    fill(l1, old)
    fill(l1, new)
    assert l1.allocate(2) is not None
    assert l1.take_evicted() == [old[2]]
    assert l1.allocate(1) is not None
    assert l1.take_evicted() == [old[1]]
    assert l1.peek(new) == 3


def test_history_that_nobody_refers_to_goes_before_what_a_waiting_branch_needs() -> None:
    """The paper's point: the waiting branch was used longest ago."""
    l1 = L1Cache(6)
    waiting, replaced = chain((0, 0, 0)), chain((1, 1, 1))
    fill(l1, waiting)
    fill(l1, replaced)
    assert l1.classify(1, replaced, RefClass.UNREFERENCED) == 3
    assert l1.allocate(2) is not None
    assert l1.take_evicted() == [replaced[2], replaced[1]]
    assert l1.evicted_by_class == [2, 0, 0]
    assert l1.allocate(2) is not None
    assert l1.take_evicted() == [replaced[0], waiting[2]]


def test_an_equal_block_is_kept_once() -> None:
    l1 = L1Cache(4)
    keys = chain((1, 2))
    first = fill(l1, keys)
    slots = l1.allocate(1) or []
    assert l1.publish(slots[0], keys[0], b"", 0) == first[0]
    assert l1.cached_blocks == 2
    assert l1.available_blocks == 3


def test_misuse_is_an_error() -> None:
    l1 = L1Cache(4)
    keys = chain((1, 2))
    slots = fill(l1, keys)
    with pytest.raises(ValueError, match="more often"):
        l1.release(slots)
    with pytest.raises(ValueError, match="FREE"):
        l1.publish(3, keys[0], b"", 0)
    private = l1.allocate(1) or []
    with pytest.raises(ValueError, match="parent"):
        l1.publish(private[0], chain((9, 9))[1], chain((9, 9))[0], 0)


def fill(l1: L1Cache, keys: list[bytes]) -> list[int]:
    """A request that computes what is not cached of `keys`, and leaves."""
    slots = l1.match(keys)
    slots += l1.allocate(len(keys) - len(slots)) or []
    for block, key in enumerate(keys):
        if l1.peek(keys) <= block:
            parent = keys[block - 1] if block else b""
            slots[block] = l1.publish(slots[block], key, parent, block)
    l1.release(slots)
    return slots


def test_the_order_that_is_handed_in_is_the_one_in_use() -> None:
    """An order that holds nothing yet is false, like every empty container."""
    l1 = L1Cache(2, order=make_order("lru", 2))
    for key in (b"a" * 16, b"b" * 16):
        (slot,) = l1.allocate(1) or ()
        l1.release([l1.publish(slot, key, b"", 0)])
    l1.classify(1, [b"b" * 16], RefClass.UNREFERENCED)
    l1.allocate(1)
    assert l1.take_evicted() == [b"a" * 16], "by last use, whoever needs it"


def test_a_context_that_comes_back_is_weighed_once_a_block() -> None:
    """Not each block with all of its ancestors: that would be hundreds of thousands of steps."""

    keys = chain((1,) * 300)
    order = make_order("paper", len(keys))
    words, classify = [], order.classify

    def counted(epoch: int, keys: Iterable[object], ref_class: RefClass) -> int:
        words.append(epoch)
        return classify(epoch, keys, ref_class)

    order.classify = counted  # type: ignore[method-assign]
    l1 = L1Cache(len(keys), order=order)
    slots = l1.allocate(len(keys)) or []
    word = ClassWord(7, RefClass.UNREFERENCED)
    for block, key in enumerate(keys):
        parent = keys[block - 1] if block else b""
        slots[block] = l1.publish(slots[block], key, parent, block, word)
    assert len(words) <= len(keys)
    assert l1.classes() == [300, 0, 0]
    assert l1.classify(7, keys, RefClass.LIVE) == 0, "the word is as old as it was in L2"
    assert l1.check_integrity() == []
