"""The learned pauses against the plain definition: mean of (pause - idle) over longer pauses."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evctl.policy.eviction import Ending, GapModel, GapSnapshot, GapTable, Habit
from evctl.policy.eviction.gaps import BINS, BINS_PER_OCTAVE, EDGES_S, FIRST_EDGE_S, TOP_LEVEL

SPREAD = 2 ** (1 / BINS_PER_OCTAVE)
GAPS = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)


def table_of(gaps_s: list[float], half_life: float = 1e9) -> GapTable:
    table = GapTable(half_life)
    for gap_s in gaps_s:
        table.observe(gap_s)
    return table


@settings(max_examples=200, deadline=None)
@given(GAPS, st.floats(0, 1e6))
def test_the_residual_is_that_of_the_pauses_up_to_the_width_of_a_bin(
    gaps_s: list[float], idle_s: float
) -> None:
    table = table_of(gaps_s)
    # What is certain: pauses beyond idle_s's bin count whole, those before it not at all.
    place = max(i for i, edge_s in enumerate(EDGES_S) if edge_s <= idle_s)
    beyond = [g for g in gaps_s if place + 1 < BINS and g >= EDGES_S[place + 1]]
    inside = [g for g in gaps_s if EDGES_S[place] <= g and g not in beyond]
    found = table.weight_above(idle_s)
    assert len(beyond) - 1e-6 <= found <= len(beyond) + len(inside) + 1e-6
    if not inside:
        exact_s = (sum(g - idle_s for g in beyond) + idle_s) / (len(beyond) + 1)
        assert table.residual_s(idle_s) == pytest.approx(exact_s, rel=1e-6, abs=1e-6)


def test_within_a_bin_pauses_are_spread_evenly() -> None:
    low_s, high_s = EDGES_S[40], EDGES_S[41]
    table = table_of([low_s] * 1000)
    for share in (0.0, 0.25, 0.9):
        idle_s = low_s + share * (high_s - low_s)
        assert table.weight_above(idle_s) == pytest.approx(1000 * (1 - share), rel=1e-3)
        expected_s = (high_s - idle_s) / 2
        assert table.residual_s(idle_s, guess_weight=0.0) == pytest.approx(expected_s, rel=1e-3)


@settings(max_examples=100, deadline=None)
@given(st.floats(FIRST_EDGE_S, 1e6), st.floats(0.0, 0.8))
def test_one_kind_of_pause_is_met_within_a_bins_width(gap_s: float, share: float) -> None:
    idle_s = share * gap_s
    found_s = table_of([gap_s] * 100).residual_s(idle_s, guess_weight=0.0)
    assert abs(found_s - (gap_s - idle_s)) <= gap_s * (SPREAD - 1) + 1e-6


def test_with_nothing_on_record_it_lasts_as_long_again() -> None:
    assert GapTable().residual_s(40.0) == 40.0
    assert table_of([5.0] * 50).residual_s(4000.0) == 4000.0
    assert GapTable().residual_s(40.0, guess_s=7.0, guess_weight=3.0) == 7.0


def test_old_pauses_fade_by_half_in_a_half_life() -> None:
    table = GapTable(half_life=10)
    for gap_s in [1000.0] * 50 + [1.0] * 10:
        table.observe(gap_s)
    kept = GapTable(half_life=10)
    for gap_s in [1000.0] * 50:
        kept.observe(gap_s)
    assert table.weight_above(100.0) == pytest.approx(kept.weight_above(100.0) / 2)


def test_the_unit_never_overflows() -> None:
    table = GapTable(half_life=1)
    for _ in range(5000):
        table.observe(3.0)
    assert table.observations == pytest.approx(2.0)
    assert 0 < table.residual_s(1.0) < 3.0


@settings(max_examples=60, deadline=None)
@given(GAPS, GAPS, st.floats(0, 1e5))
def test_merging_is_as_if_one_had_seen_both(
    left: list[float], right: list[float], idle_s: float
) -> None:
    merged = table_of(left)
    encoded = msgspec.msgpack.encode(table_of(right).snapshot())
    merged.merge(msgspec.msgpack.decode(encoded, type=GapSnapshot))
    both = table_of(left + right)
    assert merged.residual_s(idle_s) == pytest.approx(both.residual_s(idle_s), rel=1e-5)
    assert merged.observations == pytest.approx(both.observations, rel=1e-5)


@pytest.mark.parametrize("wrong", [-1.0, float("inf"), float("nan")])
def test_a_pause_is_a_length_of_time(wrong: float) -> None:
    with pytest.raises(ValueError):
        GapTable().observe(wrong)


def test_a_habit_follows_the_last_pauses_and_stays_bounded() -> None:
    habit = Habit()
    assert habit.level == -1
    habit.paused(7.0)
    assert habit.level == 3
    habit.paused(1e9)
    habit.paused(1e9)
    habit.paused(1e9)
    assert habit.level == TOP_LEVEL


def test_a_thin_table_leans_on_the_more_general_one() -> None:
    model = GapModel()
    for _ in range(500):
        model.paused(Ending.TOOL_CALL, Habit(), 10.0)
    alone_s = model.idle_residual_s(Ending.TURN, None, 0.0)
    assert alone_s == pytest.approx(10.0, rel=0.1)  # nothing known of turns: what all do
    model.paused(Ending.TURN, Habit(), 1000.0)
    once_s = model.idle_residual_s(Ending.TURN, None, 0.0)
    for _ in range(500):
        model.paused(Ending.TURN, Habit(), 1000.0)
    assert alone_s < once_s < 100.0
    assert model.idle_residual_s(Ending.TURN, None, 0.0) == pytest.approx(1000.0, rel=0.15)


def test_branches_with_one_habit_are_told_from_the_others() -> None:
    model = GapModel()
    slow, quick = Habit(), Habit()
    for _ in range(200):
        model.paused(Ending.TURN, slow, 1000.0)
        model.paused(Ending.TURN, quick, 3.0)
    assert model.idle_residual_s(Ending.TURN, quick, 0.0) < 60
    assert model.idle_residual_s(Ending.TURN, slow, 0.0) > 900


def test_a_model_travels_and_unknown_names_do_not_matter() -> None:
    model, other = GapModel(), GapModel()
    habit = Habit()
    for gap_s in (3.0, 50.0, 700.0) * 20:
        model.paused(Ending.TOOL_CALL, habit, gap_s)
        model.served(gap_s / 10)
    other.merge({**model.snapshot(), "of-tomorrow": GapSnapshot((1,), (1.0,), (1.0,))})
    for idle_s in (0.0, 20.0, 300.0):
        for ending in Ending:
            assert other.idle_residual_s(ending, habit, idle_s) == pytest.approx(
                model.idle_residual_s(ending, habit, idle_s)
            )
        assert other.flight_residual_s(idle_s) == pytest.approx(model.flight_residual_s(idle_s))


def test_what_is_merged_in_weighs_as_much_as_fresh_observations() -> None:
    table, other = GapTable(half_life=10), GapTable(half_life=1e9)
    for _ in range(50):
        table.observe(10.0)
    for _ in range(5):
        other.observe(100.0)
    table.merge(other.snapshot())
    assert table.weight_above(50.0) == pytest.approx(5.0, rel=1e-3)


def test_a_pause_counts_for_the_habit_that_was_known_before_it() -> None:
    """Else a table would be asked about pauses of a kind that it never saw."""
    model, habit = GapModel(), Habit()
    model.paused(Ending.TURN, habit, 1000.0)
    model.paused(Ending.TURN, habit, 3.0)
    assert set(model.by_habit) == {(Ending.TURN, -1), (Ending.TURN, 9)}
    assert model.by_habit[Ending.TURN, 9].weight_above(100.0) == pytest.approx(0.0)
