"""Blocks whose bytes were summed up while they were copied: their headers decide."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from evengine.pool.arrivals import Arrivals
from evengine.pool.copier import Checked
from evengine.pool.headers import boot_digest
from tests.pool.copier_bench import KEY, OTHER, Bench, checksum_of, data_of
from tests.pool.test_copier import WRONG, theirs

BOOT, GENERATION = boot_digest("peer"), 5


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def landed(bench: Bench, *keys: bytes) -> list[int]:
    slots = bench.pool.take(len(keys), 0.0) or []
    for slot, key in zip(slots, keys, strict=True):
        bench.land(slot, key, theirs()._replace(key=key, checksum=checksum_of(key)))
    return slots


def test_blocks_get_our_headers(bench: Bench) -> None:
    keys = [KEY, OTHER]
    slots = landed(bench, *keys)
    sums = [checksum_of(key) for key in keys]
    arrivals = Arrivals(slots, keys, BOOT, [GENERATION] * 2)
    assert arrivals.take_over(bench.pool, sums) == [Checked(checksum, "") for checksum in sums]
    for slot, key in zip(slots, keys, strict=True):
        bench.pool.hold(slot, key, b"", 0, checksum_of(key))
    assert bench.pool.check_integrity(verify_bytes=True) == []


@pytest.mark.parametrize("field", WRONG)
def test_one_that_was_not_asked_for_is_refused_alone(bench: Bench, field: str) -> None:
    """The header stays as it came: nobody takes the slot for one of ours."""
    changes, why = WRONG[field]
    slots = landed(bench, OTHER, KEY)
    bench.land(slots[1], KEY, theirs()._replace(**changes))
    before = bench.found(slots[1])
    arrivals = Arrivals(slots, [OTHER, KEY], BOOT, [GENERATION] * 2)
    good, bad = arrivals.take_over(bench.pool, [checksum_of(OTHER), checksum_of(KEY)])
    assert good == Checked(checksum_of(OTHER), "")
    assert why in bad.fault
    assert bench.found(slots[1]) == before


@pytest.mark.parametrize("generation", [-1, 1 << 64, 6])
def test_what_a_peer_calls_its_generation_may_be_anything(bench: Bench, generation: int) -> None:
    slots = landed(bench, KEY)
    arrivals = Arrivals(slots, [KEY], BOOT, [generation])
    (result,) = arrivals.take_over(bench.pool, [checksum_of(KEY)])
    assert "generation" in result.fault


def test_bytes_that_changed_on_the_way_are_refused(bench: Bench) -> None:
    slots = landed(bench, KEY)
    arrivals = Arrivals(slots, [KEY], BOOT, [GENERATION])
    (result,) = arrivals.take_over(bench.pool, [checksum_of(KEY) ^ 1])
    assert "checksum" in result.fault


def test_the_copier_gets_the_same_blocks(bench: Bench) -> None:
    slots = landed(bench, KEY)
    (item,) = Arrivals(slots, [KEY], BOOT, [GENERATION]).items(bench.pool)
    assert bench.run(item) == Checked(checksum_of(KEY), "")
    assert bytes(bench.pool.data(slots[0])) == data_of(KEY)
