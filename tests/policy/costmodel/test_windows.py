"""Windows: sums that do not depend on how the iterations are cut up."""

from __future__ import annotations

import random
from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.core.events import IterationSample
from evctl.core.split import Phase
from evctl.policy.costmodel.windows import MAX_ROWS, WindowRow, Windows, added, size_class

from .generated import TRUTH, decode, prefill, samples


def totals(rows: list[WindowRow]) -> dict[object, WindowRow]:
    found: dict[object, WindowRow] = {}
    for row in rows:
        key = size_class(row)
        found[key] = added(found[key], row) if key in found else row
    return found


def together(seen: list[tuple[float, IterationSample]], window_s: float = 5.0) -> list[WindowRow]:
    windows = Windows(window_s)
    for now_s, sample in seen:
        windows.observe(now_s, sample)
    windows.close()
    return list(windows.closed)


@given(st.integers(0, 10_000), st.lists(st.booleans(), min_size=1, max_size=8))
def test_sums_do_not_depend_on_how_samples_are_split(seed: int, where: list[bool]) -> None:
    """Two collectors that share the iterations of a window in any way hold what one would."""
    seen = list(samples(TRUTH, seed, seconds=4.0))
    one = totals(together(seen))
    parts: defaultdict[bool, list[tuple[float, IterationSample]]] = defaultdict(list)
    for index, item in enumerate(seen):
        parts[where[index % len(where)]].append(item)
    two = totals([row for part in parts.values() for row in together(part)])
    assert set(one) == set(two)
    for key, row in one.items():
        assert (row.iterations, row.tokens, row.restored, row.batch) == (
            two[key].iterations,
            two[key].tokens,
            two[key].restored,
            two[key].batch,
        )
        assert row.busy_s == pytest.approx(two[key].busy_s)
        assert row.pairs == pytest.approx(two[key].pairs)


@given(st.integers(0, 10_000), st.floats(0.1, 20.0))
def test_no_iteration_is_lost_whatever_the_window(seed: int, window_s: float) -> None:
    seen = list(samples(TRUTH, seed, seconds=6.0))
    rows = together(seen, window_s)
    assert sum(row.iterations for row in rows) == len(seen)
    assert sum(row.busy_s for row in rows) == pytest.approx(sum(s.busy_s for _, s in seen))
    assert sum(row.iterations * row.batch for row in rows) == sum(
        s.decode_requests for _, s in seen
    )


def test_mixed_iterations_are_counted_and_left_out() -> None:
    windows = Windows()
    windows.observe(0.0, IterationSample(Phase.PREFILL, 0.1, 64, 100.0, 0, 3))
    windows.observe(0.1, prefill(TRUTH, random.Random(1), 0.0))
    windows.close()
    assert windows.mixed == 1
    assert [row.iterations for row in windows.closed] == [1]


def test_iterations_that_took_no_time_or_did_nothing_are_left_out() -> None:
    windows = Windows()
    windows.observe(0.0, IterationSample(Phase.PREFILL, 0.0, 64, 100.0, 0, 0))
    windows.observe(0.0, IterationSample(Phase.PREFILL, 0.1, 0, 0.0, 0, 0))
    assert windows.close() == ()


def test_a_window_ends_with_the_first_iteration_after_it() -> None:
    windows, rng = Windows(5.0), random.Random(1)
    assert windows.observe(0.0, prefill(TRUTH, rng, 0.0)) == ()
    assert windows.observe(4.9, prefill(TRUTH, rng, 0.0)) == ()
    ended = windows.observe(7.0, prefill(TRUTH, rng, 0.0))
    assert sum(row.iterations for row in ended) == 2
    assert {row.start_s for row in ended} == {0.0}
    assert {row.start_s for row in windows.close()} == {7.0}


def test_what_is_kept_is_bounded() -> None:
    windows, rng = Windows(0.001), random.Random(1)
    for index in range(MAX_ROWS + 100):
        windows.observe(float(index), decode(TRUTH, rng, 0.0))
    assert len(windows.closed) == MAX_ROWS
    assert windows.closed[0].start_s > 0.0


def test_a_restore_beside_a_decode_is_not_a_regressor_of_it() -> None:
    windows = Windows()
    sample = msgspec.structs.replace(decode(TRUTH, random.Random(1), 0.0), restored_tokens=64)
    windows.observe(0.0, sample)
    assert windows.close()[0].restored == 0
