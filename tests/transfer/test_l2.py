"""L2 against a dictionary: eviction order, pins, corruption; headers against the index."""

from __future__ import annotations

from collections import Counter, OrderedDict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evctl.core.errors import IntegrityError, RefusedError
from evengine.pool import l2
from evengine.pool.l2 import HEADER_BYTES, LocalHostPool
from evengine.ports import HostPool
from evengine.transfer.protocol import block_checksum

TOTAL = 4
BLOCK = 100
KEYS = [bytes([i]) * 16 for i in range(9)]


def data_of(key: bytes, length: int = BLOCK) -> bytes:
    return bytes((key[0] * 31 + i) % 256 for i in range(length))


def put(pool: LocalHostPool, key: bytes, length: int = BLOCK) -> list[bytes] | None:
    data = memoryview(data_of(key, length))
    return pool.put(key, data, block_checksum(data))


def slot_start(pool: LocalHostPool, key: bytes) -> int:
    slot = pool._slot(key)
    assert slot is not None
    return slot * pool._stride


class PoolMachine(RuleBasedStateMachine):
    """The model: an ordered dict of lengths, oldest first, and a count of pins a key."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = LocalHostPool("boot", TOTAL, BLOCK)
        self.model: OrderedDict[bytes, int] = OrderedDict()
        self.pins: Counter[bytes] = Counter()
        self.corrupt: set[bytes] = set()

    @rule(key=st.sampled_from(KEYS), length=st.integers(1, BLOCK))
    def put(self, key: bytes, length: int) -> None:
        expected: list[bytes] | None = []
        if key in self.model:
            self.model.move_to_end(key)
        elif len(self.model) < TOTAL:
            self.model[key] = length
        else:
            victims = [held for held in self.model if not self.pins[held]]
            expected = victims[:1] or None
            if expected:
                del self.model[expected[0]]
                self.corrupt.discard(expected[0])
                self.model[key] = length
        assert put(self.pool, key, length) == expected

    @rule(key=st.sampled_from(KEYS))
    def read(self, key: bytes) -> None:
        into = bytearray(b"\xee" * (BLOCK + 5))
        if key not in self.model:
            with pytest.raises(KeyError):
                self.pool.read(key, memoryview(into))
        elif key in self.corrupt:
            before = self.pool.dropped_corrupt
            with pytest.raises(IntegrityError) as caught:
                self.pool.read(key, memoryview(into))
            assert caught.value.code == "EV-4301"
            assert self.pool.dropped_corrupt == before + 1
            self.corrupt.discard(key)
            del self.model[key]
        else:
            data = data_of(key, self.model[key])
            assert self.pool.read(key, memoryview(into)) == block_checksum(memoryview(data))
            assert into == data + b"\xee" * (BLOCK + 5 - len(data))
            self.model.move_to_end(key)

    @rule(key=st.sampled_from(KEYS))
    def pin(self, key: bytes) -> None:
        assert self.pool.pin(key) == (key in self.model)
        if key in self.model:
            self.pins[key] += 1

    @rule(key=st.sampled_from(KEYS))
    def unpin(self, key: bytes) -> None:
        if not self.pins[key]:
            with pytest.raises(KeyError):
                self.pool.unpin(key)
            return
        self.pool.unpin(key)
        self.pins[key] -= 1
        if not self.pins[key] and key in self.model:
            self.model.move_to_end(key)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), bit=st.integers(0, 7))
    def corrupt_a_byte(self, data: st.DataObject, bit: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.model)))
        if key not in self.corrupt:
            offset = data.draw(st.integers(0, self.model[key] - 1))
            self.pool._view[slot_start(self.pool, key) + HEADER_BYTES + offset] ^= 1 << bit
            self.corrupt.add(key)

    @rule(count=st.integers(0, 5))
    def contains(self, count: int) -> None:
        keys = KEYS[:count]
        leading = next((i for i, key in enumerate(keys) if key not in self.model), count)
        assert self.pool.contains(keys) == leading

    @invariant()
    def sound(self) -> None:
        assert self.pool.check_integrity() == []
        assert len(self.pool.check_integrity(verify_bytes=True)) == len(self.corrupt)
        assert self.pool.used_blocks == len(self.model)
        assert set(self.pool.held_keys()) == set(self.model)

    def teardown(self) -> None:
        self.pool.close()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.fixture
def pool() -> LocalHostPool:
    return LocalHostPool("boot", TOTAL, BLOCK)


def test_it_is_a_host_pool(pool: LocalHostPool) -> None:
    port: HostPool = pool
    assert (port.total_blocks, port.used_blocks) == (TOTAL, 0)


def test_swapped_slots_are_noticed_by_their_headers(pool: LocalHostPool) -> None:
    """Both blocks are whole and their checksums hold; only the header knows whose they are."""
    put(pool, KEYS[0])
    put(pool, KEYS[1])
    first, second = slot_start(pool, KEYS[0]), slot_start(pool, KEYS[1])
    size = HEADER_BYTES + BLOCK
    one, two = bytes(pool._view[first : first + size]), bytes(pool._view[second : second + size])
    pool._view[first : first + size], pool._view[second : second + size] = two, one
    assert len(pool.check_integrity()) == 2
    for key in KEYS[:2]:
        with pytest.raises(IntegrityError):
            pool.read(key, memoryview(bytearray(BLOCK)))
    assert pool.used_blocks == 0


def test_an_older_use_of_the_slot_is_noticed_by_its_generation(pool: LocalHostPool) -> None:
    """The same block, put twice into one slot: bytes, key and checksum of the old use fit."""
    put(pool, KEYS[0])
    start = slot_start(pool, KEYS[0])
    old = bytes(pool._view[start : start + HEADER_BYTES])
    for key in KEYS[1:5]:
        put(pool, key)
    assert slot_start(pool, KEYS[4]) == start
    pool._remove(KEYS[4])
    put(pool, KEYS[0])
    assert slot_start(pool, KEYS[0]) == start
    pool._view[start : start + HEADER_BYTES] = old
    with pytest.raises(IntegrityError, match="generation"):
        pool.read(KEYS[0], memoryview(bytearray(BLOCK)))


def test_a_wrong_claim_at_put_is_found_at_read(pool: LocalHostPool) -> None:
    pool.put(KEYS[0], memoryview(data_of(KEYS[0])), 1)
    with pytest.raises(IntegrityError, match="checksum"):
        pool.read(KEYS[0], memoryview(bytearray(BLOCK)))


def test_bad_arguments_change_nothing(pool: LocalHostPool) -> None:
    put(pool, KEYS[0])
    with pytest.raises(ValueError):
        pool.read(KEYS[0], memoryview(bytearray(BLOCK - 1)))
    assert pool.contains([KEYS[0]]) == 1
    for key, size in ((b"short", BLOCK), (KEYS[1], BLOCK + 1), (KEYS[1], 0)):
        with pytest.raises(ValueError):
            pool.put(key, memoryview(bytes(size)), 0)
    assert pool.check_integrity(verify_bytes=True) == []


def test_views_of_other_element_types_are_bytes_here(pool: LocalHostPool) -> None:
    """A tensor's buffer has items of four bytes; lengths count bytes all the same."""
    integers = memoryview(data_of(KEYS[0])).cast("i")
    pool.put(KEYS[0], integers, block_checksum(memoryview(data_of(KEYS[0]))))
    into = memoryview(bytearray(BLOCK)).cast("i")
    pool.read(KEYS[0], into)
    assert into.tobytes() == data_of(KEYS[0])


def test_a_pool_that_does_not_fit_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(l2, "available_bytes", lambda: (256 << 20) + 1_000)
    with pytest.raises(RefusedError) as caught:
        LocalHostPool("boot", 10, 64)
    assert caught.value.code == "EV-4110"
    assert "1280 bytes" in caught.value.why
    assert "1000" in caught.value.why
    LocalHostPool("boot", 7, 64).close()
