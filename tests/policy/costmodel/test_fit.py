"""The fit: it finds what a generator hid, says how sure it is, and what it cannot know."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evctl.core.costs import TERMS, Coefficients
from evctl.core.events import CoefficientsFitted, IterationSample
from evctl.core.split import Phase
from evctl.core.workload import attention_pairs
from evctl.policy.costmodel.fit import Fitted, ModelShape, NotYet, fit
from evctl.policy.costmodel.windows import WindowRow, Windows, added

from .generated import MOE, TRUTH, decode, prefill, rows_of, samples

DENSE = ModelShape()
EXPERTS = ModelShape(experts=256, experts_per_token=8)


def fitted(rows: list[WindowRow], shape: ModelShape = DENSE) -> Coefficients:
    found = fit(rows, shape)
    assert isinstance(found, Fitted), found
    return found.coefficients


def value(model: Coefficients, term: str) -> float:
    return float(getattr(model, f"{term}_s"))


def made(make: Callable[[random.Random], IterationSample], seed: int = 1) -> list[WindowRow]:
    """Windows of prefills of one's own, beside ordinary decodes."""
    rng = random.Random(seed)
    windows = Windows()
    for index in range(600):
        windows.observe(index * 0.2, make(rng))
        windows.observe(index * 0.2 + 0.1, decode(TRUTH, rng, 0.05))
    windows.close()
    return list(windows.closed)


@settings(deadline=None, max_examples=20)
@given(
    c0=st.floats(0.002, 0.05),
    c1=st.floats(1e-4, 1e-3),
    c2=st.floats(5e-8, 1e-6),
    c3=st.floats(5e-6, 1e-4),
    d0=st.floats(0.003, 0.05),
    d2=st.floats(3e-4, 3e-3),
    seed=st.integers(0, 1000),
)
def test_dense_coefficients_are_recovered(
    c0: float, c1: float, c2: float, c3: float, d0: float, d2: float, seed: int
) -> None:
    truth = Coefficients(c0, c1, c2, c3, d0, 0.0, d2)
    model = fitted(rows_of(truth, seed, seconds=240.0))
    assert model.unidentified == ()
    for term in ("c0", "c1", "c2", "c3", "d0", "d2"):
        error = model.errors[TERMS.index(term)]
        assert error < 0.5 * value(truth, term) + 0.003, term
        assert abs(value(model, term) - value(truth, term)) < 6 * error, term
    assert model.residual < 0.08


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1000))
def test_predictions_of_another_mix_are_close(seed: int) -> None:
    """What it is for: iterations unlike those it was fitted to, without noise."""
    model = fitted(rows_of(TRUTH, seed))
    for tokens, cached in ((32, 0), (64, 12_000), (512, 9_000), (256, 100)):
        pairs = attention_pairs(tokens, cached)
        assert model.prefill_s(tokens, pairs, 0) == pytest.approx(
            TRUTH.prefill_s(tokens, pairs, 0), rel=0.10
        )
    for batch in (1, 7, 64):
        assert model.decode_s(batch) == pytest.approx(TRUTH.decode_s(batch), rel=0.05)


def test_experts_have_a_term_of_their_own() -> None:
    model = fitted(rows_of(MOE, 3, seconds=600.0, noise=0.03), EXPERTS)
    for term in ("d0", "d1", "d2"):
        error = model.errors[TERMS.index(term)]
        assert abs(value(model, term) - value(MOE, term)) < 5 * error
    assert model.decode_s(4) == pytest.approx(MOE.decode_s(4), rel=0.03)
    # a dense form cannot bend
    line = fitted(rows_of(MOE, 3, seconds=600.0, noise=0.03))
    assert worst(line, MOE) > 2 * worst(model, MOE)
    assert worst(line, MOE) > 0.08


def worst(model: Coefficients, truth: Coefficients) -> float:
    """Relative error over all batches."""
    return max(abs(model.decode_s(b) / truth.decode_s(b) - 1) for b in range(1, 49))


def test_speculative_tokens_touch_more_experts() -> None:
    """t_fwd 4: without it the fit would take a batch of 4 for one that touches a quarter."""
    truth = msgspec.structs.replace(MOE, forwarded_tokens=4.0)
    shape = msgspec.structs.replace(EXPERTS, forwarded_tokens=4.0)
    rows = rows_of(truth, 3, seconds=600.0, noise=0.02)
    assert fitted(rows, shape).decode_s(2) == pytest.approx(truth.decode_s(2), rel=0.03)
    assert fitted(rows, shape).forwarded_tokens == 4.0


def test_context_is_fitted_only_where_asked() -> None:
    truth = msgspec.structs.replace(TRUTH, d3_s=2e-6)
    rows = rows_of(truth, 5)
    with_term = fitted(rows, msgspec.structs.replace(DENSE, context_term=True))
    assert with_term.d3_s == pytest.approx(2e-6, rel=0.1)
    assert with_term.decode_s(8, 40_000) == pytest.approx(truth.decode_s(8, 40_000), rel=0.05)
    # whoever does not know the context gets that of the windows: 8 of about 2,000 tokens each
    assert with_term.context_tokens == pytest.approx(2000, rel=0.1)
    assert with_term.decode_s(8) == pytest.approx(truth.decode_s(8, 16_000), rel=0.06)
    assert fitted(rows).d3_s == 0.0
    assert fitted(rows).residual > with_term.residual


def test_a_regressor_that_never_moves_is_named() -> None:
    """Every chunk has 512 tokens: the fixed cost and that of tokens cannot be told apart. What
    they cost together is known all the same."""

    def whole(rng: random.Random) -> IterationSample:
        pairs = attention_pairs(512, rng.randint(0, 4000))
        restored = rng.randint(0, 900)
        busy_s = TRUTH.prefill_s(512, pairs, restored) * rng.uniform(0.95, 1.05)
        return IterationSample(Phase.PREFILL, busy_s, 512, pairs, restored, 0)

    model = fitted(made(whole))
    assert model.unidentified == ("c0", "c1")
    assert math.isinf(model.errors[0])
    assert math.isinf(model.errors[1])
    assert math.isfinite(model.errors[2])
    assert math.isfinite(model.errors[3])
    pairs = attention_pairs(512, 2000)
    expected_s = TRUTH.prefill_s(512, pairs, 0)
    assert model.prefill_s(512, pairs, 0) == pytest.approx(expected_s, rel=0.03)


def test_what_never_happened_is_named_and_not_free() -> None:
    def bare(rng: random.Random) -> IterationSample:
        return msgspec.structs.replace(prefill(TRUTH, rng, 0.05), restored_tokens=0)

    model = fitted(made(bare))
    assert model.unidentified == ("c3",)
    assert math.isinf(model.errors[TERMS.index("c3")])


def test_restores_in_step_with_tokens_are_named() -> None:
    def tied(rng: random.Random) -> IterationSample:
        sample = prefill(TRUTH, rng, 0.0)
        restored = sample.prefill_tokens * 3
        busy_s = TRUTH.prefill_s(sample.prefill_tokens, sample.attention_pairs, restored)
        return msgspec.structs.replace(sample, restored_tokens=restored, busy_s=busy_s)

    assert fitted(made(tied)).unidentified == ("c1", "c3")


def test_a_term_that_is_truly_zero_is_known_to_be() -> None:
    """NNLS leaves it at 0, and that is a finding: it has an error bar and is not unidentified."""
    free = msgspec.structs.replace(TRUTH, c3_s=0.0)
    model = fitted(rows_of(free, 4))
    assert model.unidentified == ()
    assert model.c3_s <= 4 * model.errors[3]
    assert model.errors[3] < 1e-5


def test_a_busy_machine_does_not_bend_the_fit() -> None:
    """One iteration in twelve takes thrice as long."""
    rng = random.Random(9)
    windows = Windows()
    for now_s, sample in samples(TRUTH, 9, noise=0.03):
        slowed = 3.0 if rng.random() < 1 / 12 else 1.0
        windows.observe(now_s, msgspec.structs.replace(sample, busy_s=sample.busy_s * slowed))
    model = fitted(list(windows.closed))
    pairs = attention_pairs(512, 2000)
    expected_s = TRUTH.prefill_s(512, pairs, 0)
    assert model.prefill_s(512, pairs, 0) == pytest.approx(expected_s, rel=0.25)


def test_sums_by_size_keep_the_spread_that_a_window_hides() -> None:
    """Error bars from one row a window, beside those from the same iterations by their size."""
    rows = [row for row in rows_of(TRUTH, 1) if row.phase is Phase.PREFILL]
    whole: dict[float, WindowRow] = {}
    for row in rows:
        known = whole.get(row.start_s)
        whole[row.start_s] = row if known is None else added(known, row)
    decodes = [row for row in rows_of(TRUTH, 1) if row.phase is Phase.DECODE]
    by_size, by_window = fitted([*rows, *decodes]), fitted([*whole.values(), *decodes])
    for sized, windowed in zip(by_size.errors[:4], by_window.errors[:4], strict=True):
        assert windowed > 3 * sized


def test_too_little_is_not_yet() -> None:
    rows = rows_of(TRUTH, 1)
    only = [row for row in rows if row.phase is Phase.PREFILL]
    answer = fit(only, DENSE)
    assert isinstance(answer, NotYet)
    assert answer.why == "decode: 0 of 24 iterations"
    short = fit(rows_of(TRUTH, 1, seconds=4.0), DENSE)
    assert isinstance(short, NotYet)
    assert "prefill" in short.why
    assert isinstance(fit([], DENSE), NotYet)


def test_a_phase_without_rows_keeps_its_terms() -> None:
    before = fitted(rows_of(TRUTH, 1))
    slower = msgspec.structs.replace(TRUTH, c0_s=0.020, c1_s=6e-4, c2_s=3e-7, c3_s=4e-5)
    only = [row for row in rows_of(slower, 2) if row.phase is Phase.PREFILL]
    found = fit(only, DENSE, before)
    assert isinstance(found, Fitted)
    assert found.decode is None
    model = found.coefficients
    assert (model.d0_s, model.d2_s, model.errors[4:]) == (
        before.d0_s,
        before.d2_s,
        before.errors[4:],
    )
    assert model.c1_s == pytest.approx(6e-4, rel=0.1)


def test_the_report_tells_rank_condition_and_spread() -> None:
    found = fit(rows_of(TRUTH, 1), DENSE)
    assert isinstance(found, Fitted)
    assert found.prefill is not None
    assert found.prefill.rank == 4
    assert 1.0 < found.prefill.condition < 100.0
    assert found.prefill.spread[0] == 0.0 < min(found.prefill.spread[1:])


def test_coefficients_pass_through_a_journal_byte_by_byte() -> None:
    """Infinite errors and all digits included."""

    def bare(rng: random.Random) -> IterationSample:
        return msgspec.structs.replace(prefill(TRUTH, rng, 0.05), restored_tokens=0)

    event = CoefficientsFitted("n1", fitted(made(bare)), "fitted")
    encoded = msgspec.msgpack.encode(event)
    again = msgspec.msgpack.decode(encoded, type=CoefficientsFitted)
    assert again == event
    assert msgspec.msgpack.encode(again) == encoded
