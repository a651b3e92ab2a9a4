"""What is chosen of all splits, by the paper's rule and beyond it."""

from __future__ import annotations

import math
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evctl.core.costs import Coefficients
from evctl.core.planning import Candidate, SliceRecord
from evctl.core.split import Split
from evctl.policy.capacity import NodeCapacity, theta
from evctl.policy.planner import PAPER, PlannerConfig, plus
from evctl.policy.planner.batches import (
    batch_means,
    effective_tests,
    mean_of,
    plain_mean,
    with_error,
)
from evctl.policy.planner.fleet import Fleet
from evctl.policy.planner.weigh import Weighed, judge, weigh
from tests.policy.planner.workloads import (
    CODING_90,
    CODING_126,
    GLM,
    OSWORLD_128,
    PUTNAM_288,
    Workload,
    fleet,
    window,
)

PLUS = plus()
SOUND = PlannerConfig(sound=True)


def of(weighed: Weighed, split: str) -> Candidate:
    return next(c for c in weighed.candidates if c.split == split)


def chosen(weighed: Weighed) -> str:
    assert [c.split for c in weighed.candidates if c.verdict == "chosen"] == (
        [str(weighed.chosen)] if weighed.chosen else []
    )
    return str(weighed.chosen)


@pytest.mark.parametrize(
    ("work", "goes_to"),
    [(OSWORLD_128, "8P1D"), (CODING_126, "4P5D"), (CODING_90, "3P6D"), (PUTNAM_288, "2P7D")],
)
def test_the_papers_rule_goes_where_the_paper_went(work: Workload, goes_to: str) -> None:
    weighed = weigh(fleet(work, 6), window(work, 6), PAPER)
    assert chosen(weighed) == goes_to
    assert [c.split for c in weighed.candidates] == [f"{p}P{9 - p}D" for p in range(1, 9)]
    assert of(weighed, "6P3D").verdict == "current"


@pytest.mark.parametrize("work", [OSWORLD_128, CODING_126, CODING_90, PUTNAM_288])
def test_where_it_went_it_stays(work: Workload) -> None:
    there = weigh(fleet(work, 6), window(work, 6), PAPER).chosen
    assert there is not None
    prefill = there.prefill_nodes
    assert weigh(fleet(work, prefill), window(work, prefill), PAPER).chosen is None


def test_what_decode_holds_now_would_never_add_a_prefill_node() -> None:
    """Why N counts both phases: under a full prefill queue decode holds little, and by Little's
    law seems able to do no more than it does."""
    slices = [
        msgspec.structs.replace(
            s, in_flight=s.completions / 60.0 * GLM.decode_s(1.0) * s.output_tokens / 2.3
        )
        for s in window(OSWORLD_128, 6)
    ]
    assert weigh(fleet(OSWORLD_128, 6), slices, PAPER).chosen is None


@pytest.mark.parametrize(("work", "better"), [(CODING_126, "5P4D"), (CODING_90, "4P5D")])
def test_the_closed_network_takes_one_prefill_node_more_for_a_shorter_queue(
    work: Workload, better: str
) -> None:
    """The paper's rule settles one short (notes on Eq. 5): throughput is flat, the queue not."""
    short = weigh(fleet(work, 6), window(work, 6), PAPER).chosen
    assert short is not None
    prefill = short.prefill_nodes
    weighed = weigh(fleet(work, prefill), window(work, prefill), PLUS)
    assert chosen(weighed) == better
    forecast, now = of(weighed, better).forecast, of(weighed, str(short)).forecast
    assert forecast.ttft_s is not None
    assert now.ttft_s is not None
    assert forecast.ttft_s < now.ttft_s
    there = weigh(fleet(work, prefill + 1), window(work, prefill + 1), PLUS)
    assert there.chosen is None, "no way back"


def test_offered_load_caps_what_a_split_can_gain() -> None:
    """Twelve branches that pause for a minute ask for 0.2 a second, on any split. Eq. 5 sees
    requests that are faster served as more requests."""
    work = msgspec.structs.replace(OSWORLD_128, branches=12.0, pause_s=60.0)
    weighed = weigh(fleet(work, 4), window(work, 4), PLUS)
    assert all(c.forecast.throughput_rps <= 0.2 for c in weighed.candidates)
    assert all(abs(c.gain) < 0.1 for c in weighed.candidates if c.measure == "throughput")


def test_without_pauses_measured_the_closed_network_is_not_used() -> None:
    slices = [msgspec.structs.replace(s, branches=0.0) for s in window(CODING_90, 6)]
    weighed = weigh(fleet(CODING_90, 6), slices, PLUS)
    assert not weighed.closed
    assert chosen(weighed) == "3P6D"


def test_a_gain_within_two_standard_errors_is_not_enough() -> None:
    """One node's gain is sure, its size is not: mean 10 %, each slice another."""
    slices = window(CODING_126, 6)
    weighed = weigh(fleet(CODING_126, 6), slices, PAPER)
    best = of(weighed, "4P5D")
    gains = [
        theta(*fleet(CODING_126, 6).under(Split(4, 5)), s)
        / theta(*fleet(CODING_126, 6).under(Split(6, 3)), s)
        - 1
        for s in slices
    ]
    mean = sum(gains) / 10
    error = math.sqrt(sum((g - mean) ** 2 for g in gains) / 9 / 10)
    assert (best.gain, best.error) == (pytest.approx(mean), pytest.approx(error))
    wild = window(CODING_126, 6, spread=0.45, seed=4)
    unsure = of(weigh(fleet(CODING_126, 6), wild, PAPER), "4P5D")
    assert 0 < unsure.gain <= 2 * unsure.error
    assert unsure.verdict == "unsure"


@pytest.mark.parametrize("config", [PAPER, SOUND, PLUS])
@pytest.mark.parametrize("work", [OSWORLD_128, CODING_126, PUTNAM_288])
def test_bounds_are_never_crossed(config: PlannerConfig, work: Workload) -> None:
    bounded = msgspec.structs.replace(config, least_prefill=5, least_decode=3)
    weighed = weigh(fleet(work, 6), window(work, 6), bounded)
    assert chosen(weighed) in ("5P4D", "6P3D", "None")
    outside = {c.split for c in weighed.candidates if c.verdict == "bounded"}
    assert outside == {"1P8D", "2P7D", "3P6D", "4P5D", "7P2D", "8P1D"}


def test_a_split_without_an_alive_node_in_a_phase_is_no_candidate() -> None:
    whole = fleet(OSWORLD_128, 6)
    crippled = Fleet(whole.split, whole.prefill[:2], whole.decode)
    weighed = weigh(crippled, window(OSWORLD_128, 6), PAPER)
    bounded = {c.split for c in weighed.candidates if c.verdict == "bounded"}
    # Of six prefill nodes two are alive; the cheapest to move, which are those, go first.
    assert bounded == {"1P8D", "2P7D", "3P6D", "4P5D"}


def test_the_cheapest_to_move_are_the_first_of_their_phase() -> None:
    whole = fleet(CODING_90, 6)

    def names(split: Split) -> list[str]:
        return ["".join(n.name[1:] for n in nodes) for nodes in whole.under(split)]

    assert names(Split(6, 3)) == ["012345", "678"]
    assert names(Split(4, 5)) == ["2345", "67801"]
    assert names(Split(8, 1)) == ["01234567", "8"]


def test_faster_nodes_count_for_more() -> None:
    """Decode nodes of four times the speed: fewer of them are needed."""
    equal = fleet(CODING_90, 6)

    def quick(of: Fleet) -> Fleet:
        fast = [
            msgspec.structs.replace(
                n,
                coefficients=msgspec.structs.replace(
                    n.coefficients, d0_s=0.00025, d1_s=0.005, d2_s=0.0001
                ),
            )
            for n in of.decode
        ]
        return Fleet(of.split, of.prefill, tuple(fast))

    slices = window(CODING_90, 6)
    assert weigh(equal, slices, PAPER).chosen == Split(3, 6)
    assert weigh(quick(equal), slices, PAPER).chosen != Split(3, 6)


def test_nodes_of_other_names_give_the_same_decision() -> None:
    one = fleet(CODING_126, 6)
    renamed = Fleet(
        one.split,
        tuple(msgspec.structs.replace(n, name=f"z{i}") for i, n in enumerate(one.prefill[::-1])),
        tuple(msgspec.structs.replace(n, name=f"a{i}") for i, n in enumerate(one.decode[::-1])),
    )
    for config in (PAPER, PLUS):
        slices = window(CODING_126, 6)
        assert weigh(one, slices, config) == weigh(renamed, slices, config)


def test_a_target_that_a_split_would_miss_guards_against_it() -> None:
    slices = window(PUTNAM_288, 4)
    free = weigh(fleet(PUTNAM_288, 4), slices, PLUS)
    assert free.chosen is not None
    wait_s = of(free, "1P8D").forecast.prefill_wait_p95_s
    assert wait_s is not None
    assert wait_s > 1.0
    target = msgspec.structs.replace(PLUS, ttft_target_s=wait_s / 2)
    guarded = weigh(fleet(PUTNAM_288, 4), slices, target)
    assert of(guarded, "1P8D").verdict == "guarded"
    # From a split with a longer wait yet, the same one is a step out of it.
    worse = window(CODING_126, 3)
    strict = msgspec.structs.replace(PLUS, ttft_target_s=0.01)
    assert chosen(weigh(fleet(CODING_126, 3), worse, strict)) == "5P4D"


def test_a_split_that_was_taken_back_is_not_chosen() -> None:
    slices = window(CODING_90, 6)
    barred = weigh(fleet(CODING_90, 6), slices, PAPER, barred=Split(3, 6))
    assert of(barred, "3P6D").verdict == "guarded"
    assert chosen(barred) == "4P5D"


def test_an_uncertain_model_makes_the_sound_test_hesitate_and_says_by_how_much() -> None:
    sure = weigh(fleet(CODING_126, 6), window(CODING_126, 6), SOUND)
    errors = (0.0, 0.5e-4, 0.0, 0.0, 0.0, 0.008, 0.0)
    unsure = weigh(fleet(CODING_126, 6, errors=errors), window(CODING_126, 6), SOUND)
    assert chosen(sure) != "None"
    assert of(unsure, chosen(sure)).error > of(sure, chosen(sure)).error
    assert chosen(unsure) == "None"
    unknown = (0.0, math.inf, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert chosen(weigh(fleet(CODING_126, 6, errors=unknown), window(CODING_126, 6), SOUND))


def test_a_small_effect_is_not_worth_a_move() -> None:
    """5P over 4P is 0.2 % of throughput: Eq. 5 may call that sure, the sound test leaves it."""
    slices = window(CODING_126, 5, spread=0.0)
    gain = of(weigh(fleet(CODING_126, 5), slices, PAPER), "4P5D").gain
    assert gain > 0
    picky = msgspec.structs.replace(SOUND, least_effect=gain + 0.01)
    assert of(weigh(fleet(CODING_126, 5), slices, picky), "4P5D").verdict == "small"


def test_what_one_window_leaves_open_three_may_settle() -> None:
    """Noisy windows of a split that is short of decode nodes: with the slices of earlier ones
    it moves more often."""
    alone, together = 0, 0
    for seed in range(20):
        slices = window(CODING_126, 6, spread=0.2, slices=30, seed=seed)
        alone += judge(fleet(CODING_126, 6), slices[20:], slices[20:], SOUND).chosen is not None
        judged = judge(fleet(CODING_126, 6), slices[20:], slices, SOUND)
        together += judged.chosen is not None
        assert judged.slices in (10, 30)
        assert judged.slices == 30 or judged.chosen is not None
    assert 10 <= alone < together


def test_a_look_before_the_end_needs_more() -> None:
    """A tenth of the error rate over five looks: what the same slices would pass at the end of a
    window seldom passes."""
    at_end = early = 0
    for seed in range(20):
        slices = window(CODING_126, 3, spread=0.2, slices=6, seed=seed)
        model = fleet(CODING_126, 3)
        at_end += judge(model, slices, slices, SOUND).chosen is not None
        early += judge(model, slices, slices, SOUND, looks=5).chosen is not None
    assert at_end >= 15
    assert early < at_end / 2
    sure = window(OSWORLD_128, 6, spread=0.0, slices=6)
    assert judge(fleet(OSWORLD_128, 6), sure, sure, SOUND, looks=5).chosen == Split(8, 1)


# ---------------------------------------------------------------- the statistics


def test_batch_means_of_an_autocorrelated_series_are_wider_than_its_plain_error() -> None:
    """AR(1) with 0.6, 30 values: the error of the mean is 2.0 / sqrt(30) = 0.36 of its spread;
    the plain rule says half of that."""
    random = Random(3)
    plain, batched, means = [], [], []
    for _ in range(2000):
        value, series = random.gauss(0, 1), []
        for _ in range(30):
            value = 0.6 * value + random.gauss(0, 0.8)
            series.append(value)
        plain.append(plain_mean(series).error ** 2)
        batched.append(mean_of(series).error ** 2)
        means.append(mean_of(series).value ** 2)
    true = sum(means) / 2000
    assert sum(plain) / 2000 < 0.35 * true
    assert 0.6 * true < sum(batched) / 2000 < 1.1 * true


def test_batches_are_equal_and_leave_out_the_oldest() -> None:
    assert batch_means([9.0, 1.0, 3.0, 5.0, 7.0, 2.0, 4.0]) == [2.0, 6.0, 3.0]
    assert len(batch_means([0.0] * 10)) == 5
    assert [len(batch_means([0.0] * n)) for n in (12, 20, 30)] == [6, 6, 6]
    few = mean_of([1.0, 2.0, 3.0])
    assert few.degrees == 0
    assert few.error == math.inf


def test_a_known_error_adds_degrees_of_freedom() -> None:
    mean = mean_of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0])
    assert with_error(mean, 0.0) == mean
    wider = with_error(mean, mean.error)
    assert wider.error == pytest.approx(mean.error * math.sqrt(2))
    assert wider.degrees == 4 * mean.degrees


def test_equal_series_are_one_test_and_unlike_ones_as_many_as_they_are() -> None:
    one = [1.0, 3.0, 2.0, 5.0]
    assert effective_tests([one, [2 * v for v in one], [-v for v in one]]) == pytest.approx(1.0)
    apart = [[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, -1.0, -1.0], [1.0, -1.0, -1.0, 1.0]]
    assert effective_tests(apart) == pytest.approx(3.0)
    assert effective_tests([[0.0] * 4, one]) == 1.0


# ---------------------------------------------------------------- properties

SLICES = st.builds(
    SliceRecord,
    start_s=st.just(0.0),
    end_s=st.just(60.0),
    arrivals=st.integers(20, 500),
    completions=st.integers(20, 500),
    uncached_tokens=st.floats(1, 50_000),
    cached_tokens=st.floats(0, 200_000),
    attention_pairs=st.floats(0, 1e9),
    restored_tokens=st.floats(0, 1e5),
    output_tokens=st.floats(1, 5000),
    accepted_per_iteration=st.floats(1, 4),
    tokens_per_iteration=st.floats(1, 16_384),
    in_flight=st.floats(0.01, 500),
    decode_queue=st.floats(0, 50),
    prefill_queue=st.floats(0, 50),
    branches=st.floats(0.01, 1000),
    pause_s=st.floats(0, 300),
    squared_variation=st.floats(0, 20),
    service_s=st.floats(0.001, 10),
    prefill_running=st.floats(0, 9),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(SLICES, min_size=3, max_size=12),
    st.integers(1, 8),
    st.sampled_from([PAPER, SOUND, PLUS, msgspec.structs.replace(PAPER, closed=True)]),
)
def test_any_measured_window_gives_a_finite_decision(
    slices: list[SliceRecord], prefill: int, config: PlannerConfig
) -> None:
    errors = (1e-3, 1e-5, 0.0, 0.0, 1e-4, 1e-3, 1e-5)
    weighed = weigh(fleet(CODING_90, prefill, c0_s=0.01, errors=errors), slices, config)
    assert len(weighed.candidates) == 8
    for candidate in weighed.candidates:
        assert math.isfinite(candidate.gain)
        assert math.isfinite(candidate.error)
        assert math.isfinite(candidate.forecast.throughput_rps)
    if weighed.chosen is not None:
        assert of(weighed, str(weighed.chosen)).gain > 0


@settings(max_examples=60, deadline=None)
@given(SLICES, st.integers(1, 8), st.integers(1, 8))
def test_theta_rises_with_nodes_of_either_phase(
    slice_: SliceRecord, prefill: int, decode: int
) -> None:
    nodes = fleet(CODING_90, 1).decode
    value = theta(nodes[:prefill], nodes[:decode], slice_)
    assert theta(nodes[: prefill + 1], nodes[:decode], slice_) >= value * (1 - 1e-9)
    assert theta(nodes[:prefill], nodes[: decode + 1], slice_) >= value * (1 - 1e-9)


ODD = st.builds(
    Coefficients,
    c0_s=st.sampled_from([0.0, 1e-300, 1.0]),
    c1_s=st.sampled_from([0.0, 1e-3, 3600.0]),
    c2_s=st.sampled_from([0.0, 3600.0]),
    c3_s=st.sampled_from([0.0, 1.0]),
    d0_s=st.sampled_from([0.0, 1e-300, 1.0]),
    d1_s=st.just(0.0),
    d2_s=st.sampled_from([0.0, 3600.0]),
    errors=st.sampled_from([(), (3600.0,) * 8, (math.inf,) * 8]),
    d3_s=st.sampled_from([0.0, 3600.0]),
)


@settings(max_examples=100, deadline=None)
@given(
    SLICES,
    ODD,
    st.sampled_from([0.0, 1.0, 500.0]),
    st.sampled_from([(0, 0), (0, 100), (64, 0), (64, 10**6)]),
    st.sampled_from([PAPER, SOUND, PLUS]),
)
def test_models_and_nodes_that_can_do_nothing_or_everything_raise_nothing(
    slice_: SliceRecord,
    model: Coefficients,
    branches: float,
    room: tuple[int, int],
    config: PlannerConfig,
) -> None:
    nodes = tuple(NodeCapacity(f"n{i}", model, *room) for i in range(4))
    few = msgspec.structs.replace(slice_, branches=branches, restored_tokens=0.0)
    weighed = weigh(Fleet(Split(2, 2), nodes[:2], nodes[2:]), [few, slice_, slice_], config)
    assert len(weighed.candidates) == 3
    for candidate in weighed.candidates:
        assert math.isfinite(candidate.gain)
