"""What L2's own check finds: swapped and recycled slots, lost readers, wrong counts; its room."""

from __future__ import annotations

import pytest

from evctl.policy.eviction import RefClass, make_order
from evengine.pool.l2 import HostPool
from tests.pool.l2_format import BLOCK, DEPTH, KEYS, LIVE, STRIDE, TOTAL, checksum_of, fill


def holding(pool: HostPool, keys: list[bytes]) -> None:
    slots = pool.take(len(keys), 0.0)
    assert slots is not None
    for slot, key in zip(slots, keys, strict=True):
        fill(pool.view, slot, key, pool.generation(slot))
        pool.hold(slot, key, b"", DEPTH[key], checksum_of(key))


@pytest.fixture
def pool() -> HostPool:
    return HostPool("boot", memoryview(bytearray(TOTAL * STRIDE)), TOTAL, BLOCK)


def test_swapped_slots_are_noticed(pool: HostPool) -> None:
    """Both blocks are whole and their checksums hold; only the headers know whose they are."""
    holding(pool, KEYS[:2])
    first, second = (pool.find(key).slot * STRIDE for key in KEYS[:2])  # type: ignore[union-attr]
    one, two = bytes(pool.view[first:][:STRIDE]), bytes(pool.view[second:][:STRIDE])
    pool.view[first : first + STRIDE], pool.view[second : second + STRIDE] = two, one
    assert len(pool.check_integrity()) == 2


def test_an_older_use_of_a_slot_is_noticed(pool: HostPool) -> None:
    """The same block in the same slot, twice: bytes, key and checksum of the first use fit."""
    holding(pool, KEYS[:TOTAL])
    block = pool.find(KEYS[0])
    assert block is not None
    start = block.slot * STRIDE
    old = bytes(pool.view[start : start + STRIDE])
    pool.drop(block)
    holding(pool, KEYS[:1])
    assert pool.check_integrity(verify_bytes=True) == []
    pool.view[start : start + STRIDE] = old
    (problem,) = pool.check_integrity()
    assert "generation 1, not 2" in problem


def test_a_slot_that_nobody_owns_is_noticed(pool: HostPool) -> None:
    """A block that was dropped while it was read is freed by its last reader, or reported."""
    holding(pool, KEYS[:1])
    block = pool.pin(KEYS[0])
    assert block is not None
    pool.drop(block)
    assert pool.check_integrity() == []
    block.pins = 0  # as if a reader had gone without a word
    assert len(pool.check_integrity()) >= 1


def test_pins_are_recounted(pool: HostPool) -> None:
    holding(pool, KEYS[:1])
    pool.pin(KEYS[0])
    pool.pins += 1
    (problem,) = pool.check_integrity()
    assert "pins" in problem


@pytest.mark.parametrize("name", ["lru", "expected"])
def test_an_order_without_classes_gives_free_slots_but_evicts_for_the_needed_alone(
    name: str,
) -> None:
    view = memoryview(bytearray(TOTAL * STRIDE))
    order = make_order(name, TOTAL)
    pool = HostPool("boot", view, TOTAL, BLOCK, order=order)
    holding(pool, KEYS[: TOTAL - 1])
    pool.classify(1, KEYS[1:2], RefClass.UNREFERENCED)
    by_class = name == "expected"
    assert pool.room(RefClass.UNREFERENCED) == 1 + by_class
    slots = pool.take(1 + by_class, 0.0, RefClass.UNREFERENCED)
    assert slots is not None
    assert pool.take(1, 0.0, RefClass.UNREFERENCED) is None
    assert pool.take_evicted() == KEYS[1:2] * by_class
    assert pool.room(LIVE) == TOTAL - 1 - by_class


def test_a_pool_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="fit"):
        HostPool("boot", memoryview(bytearray(TOTAL * STRIDE - 1)), TOTAL, BLOCK)
    with pytest.raises(ValueError, match="fit"):
        HostPool("boot", memoryview(bytearray(STRIDE)), 0, BLOCK)
