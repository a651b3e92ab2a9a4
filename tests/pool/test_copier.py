"""The copier: every block it moves is checked, jobs end in order on the thread that polls."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator, Sequence

import pytest

from evengine.pool.copier import Accept, Checked, Keep, Restore
from evengine.pool.headers import Header, boot_digest, write_header
from tests.pool.copier_bench import (
    BLOCK,
    KEY,
    L1,
    LIMIT_S,
    OTHER,
    STRIDE,
    Bench,
    checksum_of,
    data_of,
)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def kept(bench: Bench, key: bytes = KEY) -> int:
    """An L2 slot that the copier filled with a block."""
    (slot,) = bench.pool.take(1, 0.0) or ()
    bench.fill(0, key)
    header = bench.pool.header(slot, key, checksum_of(key))
    assert bench.run(Keep(0, slot, header)) == Checked(checksum_of(key), "")
    assert bench.pool.hold(slot, key, b"", 0, checksum_of(key))
    return slot


def test_a_kept_block_comes_back(bench: Bench) -> None:
    slot = kept(bench)
    assert bytes(bench.pool.data(slot)) == data_of(KEY)
    assert bench.pool.check_integrity(verify_bytes=True) == []
    bench.fill(1, OTHER)
    result = bench.run(Restore(slot, 1, bench.pool.header(slot, KEY)))
    assert result == Checked(checksum_of(KEY), "")
    assert bytes(bench.memory.block(1)) == data_of(KEY)
    assert bytes(bench.memory.block(2)) == bytes(BLOCK), "a neighbour was written to"


WRONG = {
    "boot": ({"boot": boot_digest("another")}, "another life"),
    "key": ({"key": OTHER}, "header of block"),
    "generation": ({"generation": 7}, "generation"),
    "length": ({"length_bytes": BLOCK - 4}, "length"),
    "checksum": ({"checksum": 1}, "checksum"),
}


@pytest.mark.parametrize("field", WRONG)
def test_restore_refuses_a_header_that_does_not_fit(bench: Bench, field: str) -> None:
    """And leaves L1 alone unless only the bytes can tell."""
    changes, why = WRONG[field]
    slot = kept(bench)
    expected = bench.pool.header(slot, KEY)
    write_header(bench.pool.view, slot * STRIDE, bench.found(slot)._replace(**changes))
    bench.fill(1, OTHER)
    result = bench.run(Restore(slot, 1, expected))
    assert why in result.fault
    if field != "checksum":
        assert bytes(bench.memory.block(1)) == data_of(OTHER)


@pytest.mark.parametrize("at", [0, BLOCK // 2, BLOCK - 1])
def test_restore_finds_a_flipped_bit(bench: Bench, at: int) -> None:
    slot = kept(bench)
    bench.pool.data(slot)[at] ^= 0x10
    assert "checksum" in bench.run(Restore(slot, 1, bench.pool.header(slot, KEY))).fault


def test_restore_finds_swapped_slots(bench: Bench) -> None:
    slots = {KEY: kept(bench), OTHER: kept(bench, OTHER)}
    one, two = (slice(slot * STRIDE, (slot + 1) * STRIDE) for slot in slots.values())
    view = bench.pool.view
    view[one], view[two] = bytes(view[two]), bytes(view[one])
    for key, slot in slots.items():
        assert "header of block" in bench.run(Restore(slot, 1, bench.pool.header(slot, key))).fault


def theirs(slot: int = 0) -> Header:
    return Header(boot_digest("peer"), KEY, 5 + slot, BLOCK, checksum_of(KEY))


def test_an_accepted_block_gets_our_header(bench: Bench) -> None:
    (slot,) = bench.pool.take(1, 0.0) or ()
    bench.land(slot, KEY, theirs())
    ours = bench.pool.header(slot, KEY)
    result = bench.run(Accept(slot, theirs()._replace(checksum=0), ours))
    assert result == Checked(checksum_of(KEY), "")
    assert bench.found(slot) == ours._replace(checksum=checksum_of(KEY))
    bench.pool.hold(slot, KEY, b"", 0, result.checksum)
    assert bench.pool.check_integrity(verify_bytes=True) == []


@pytest.mark.parametrize("field", [*WRONG, "nothing landed", "a flipped bit"])
def test_accept_refuses_what_was_not_asked_for(bench: Bench, field: str) -> None:
    """The header stays as it came: nobody takes the slot for one of ours."""
    (slot,) = bench.pool.take(1, 0.0) or ()
    why = "another life"
    if field in WRONG:
        changes, why = WRONG[field]
        bench.land(slot, KEY, theirs()._replace(**changes))
    elif field == "a flipped bit":
        bench.land(slot, KEY, theirs())
        bench.pool.data(slot)[BLOCK - 1] ^= 1
        why = "checksum"
    before = bench.found(slot)
    result = bench.run(Accept(slot, theirs(), bench.pool.header(slot, KEY)))
    assert why in result.fault
    assert bench.found(slot) == before


def test_swapped_arrivals_are_refused_both(bench: Bench) -> None:
    """Two whole blocks, each in the other's place."""
    slots = bench.pool.take(2, 0.0) or []
    keys = [KEY, OTHER]
    headers = [theirs()._replace(key=key, checksum=checksum_of(key)) for key in keys]
    for slot, key, header in zip(slots, reversed(keys), reversed(headers), strict=True):
        bench.land(slot, key, header)
    items = [
        Accept(slot, header, bench.pool.header(slot, key))
        for slot, header, key in zip(slots, headers, keys, strict=True)
    ]
    bench.submit("both", items)
    bench.until(1)
    assert ["header of block" in result.fault for result in bench.ended[0][1]] == [True, True]


def test_one_bad_block_costs_the_others_of_its_job_nothing(bench: Bench) -> None:
    slots = [kept(bench, key) for key in (KEY, OTHER, b"x" * 16)]
    bench.pool.data(slots[1])[3] ^= 1
    items = [
        Restore(slot, 1 + i, bench.pool.header(slot, key))
        for i, (slot, key) in enumerate(zip(slots, (KEY, OTHER, b"x" * 16), strict=True))
    ]
    done = len(bench.ended)
    bench.submit("three", items)
    bench.until(done + 1)
    results = bench.ended[-1][1]
    assert [bool(r.fault) for r in results] == [False, True, False]
    assert bytes(bench.memory.block(3)) == data_of(b"x" * 16)


def test_jobs_end_in_their_order_on_the_polling_thread(bench: Bench) -> None:
    (slot,) = bench.pool.take(1, 0.0) or ()
    items = [Keep(0, slot, bench.pool.header(slot, KEY))]
    for number in range(20):
        bench.submit(str(number), items * (number % 3 + 1))
    assert bench.copier.blocks_under_way == sum(number % 3 + 1 for number in range(20))
    assert bench.ended == [], "a job ended outside poll()"
    bench.until(20)
    assert [name for name, _, _ in bench.ended] == [str(number) for number in range(20)]
    assert {thread for _, _, thread in bench.ended} == {threading.get_ident()}
    assert bench.copier.blocks_under_way == 0
    assert not bench.copier.poll()


def test_the_end_of_a_job_wakes_the_engine(bench: Bench) -> None:
    poller = select.poll()
    poller.register(bench.wake.descriptor, select.POLLIN)
    assert not poller.poll(0)
    (slot,) = bench.pool.take(1, 0.0) or ()
    bench.submit("one", [Keep(0, slot, bench.pool.header(slot, KEY))])
    assert poller.poll(LIMIT_S * 1e3)
    assert bench.copier.poll()


def test_what_a_job_raises_comes_out_of_every_poll(bench: Bench) -> None:
    """It is a fault of ours: nothing after it is to be believed."""
    bench.submit("wrong", [Keep(L1, 0, bench.pool.header(0, KEY))])
    poller = select.poll()
    poller.register(bench.wake.descriptor, select.POLLIN)
    assert poller.poll(LIMIT_S * 1e3), "nobody was woken"
    for _ in range(2):
        with pytest.raises(IndexError):
            bench.copier.poll()
    assert bench.ended == []


def test_nobody_waits_for_a_copier_that_has_failed(bench: Bench) -> None:
    """Whether it failed before the wait or in it."""
    bench.pages.may.clear()
    (slot,) = bench.pool.take(1, 0.0) or ()
    bench.submit("gated", [Keep(0, slot, bench.pool.header(slot, KEY)), Keep(L1, slot, theirs())])
    waiter = threading.Thread(target=bench.copier.wait, args=(3600.0,), daemon=True)
    waiter.start()
    assert bench.pages.reached.wait(LIMIT_S)
    bench.pages.may.set()
    waiter.join(LIMIT_S)
    assert not waiter.is_alive()
    again = threading.Thread(target=bench.copier.wait, args=(3600.0,), daemon=True)
    again.start()
    again.join(LIMIT_S)
    assert not again.is_alive()


def test_a_callback_that_raises_costs_the_next_job_nothing(bench: Bench) -> None:
    (slot,) = bench.pool.take(1, 0.0) or ()
    item = Keep(0, slot, bench.pool.header(slot, KEY))

    def wrong(results: Sequence[Checked]) -> None:
        raise RuntimeError("in a callback")

    bench.copier.submit([item], wrong)
    bench.submit("next", [item])
    with pytest.raises(RuntimeError, match="in a callback"):
        bench.until(1)
    bench.until(1)
    assert bench.copier.blocks_under_way == 0


def test_close_ends_the_job_under_way_and_drops_the_others(bench: Bench) -> None:
    slots = bench.pool.take(2, 0.0) or []
    bench.pages.may.clear()
    for number, slot in enumerate(slots):
        bench.fill(number, KEY)
        bench.submit(str(number), [Keep(number, slot, bench.pool.header(slot, KEY))])
    assert bench.pages.reached.wait(LIMIT_S)
    closing = threading.Thread(target=bench.copier.close, daemon=True)
    closing.start()
    while bench.copier._jobs:  # the queue is emptied before the job under way ends
        assert closing.is_alive()
    bench.pages.may.set()
    closing.join(LIMIT_S)
    assert not closing.is_alive()
    assert bench.found(slots[0]).key == KEY
    assert bench.found(slots[1]).key == bytes(16), "a queued job ran after close()"
    bench.until(1)
    assert [name for name, _, _ in bench.ended] == ["0"]
    assert not bench.copier.poll()
    bench.copier.close()


def test_what_somebody_waits_for_comes_before_what_is_to_be_kept(bench: Bench) -> None:
    slot = kept(bench)
    bench.ended.clear()
    bench.pages.may.clear()
    bench.pages.reached.clear()
    free = bench.pool.take(2, 0.0) or []
    for name, target in zip(("keep", "next keep"), free, strict=True):
        bench.submit(name, [Keep(0, target, bench.pool.header(target, KEY, checksum_of(KEY)))])
    assert bench.pages.reached.wait(LIMIT_S)
    bench.submit("restore", [Restore(slot, 1, bench.pool.header(slot, KEY))])
    bench.pages.may.set()
    bench.until(3)
    assert [name for name, _, _ in bench.ended] == ["keep", "restore", "next keep"]


def test_the_engine_hears_of_many_keeps_at_once(bench: Bench) -> None:
    """And of the last one in any case."""
    bench.fill(0, KEY)
    bench.pages.may.clear()
    slots = bench.pool.take(3, 0.0) or []
    for slot in slots:
        bench.submit("keep", [Keep(0, slot, bench.pool.header(slot, KEY, checksum_of(KEY)))])
    assert bench.pages.reached.wait(LIMIT_S)
    assert not select.select([bench.wake.descriptor], [], [], 0)[0]
    bench.pages.may.set()
    assert select.select([bench.wake.descriptor], [], [], LIMIT_S)[0]
    bench.copier.poll()
    assert len(bench.ended) == 3
