"""Iterations that take as long as hardware that is not here."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import msgspec
import pytest

from evctl.core.kv import KvLayout
from evctl.core.sampling import SamplingParams
from evengine.ports import Batch, DecodeRow, Draw, PrefillChunk, Sampled
from evengine.runner.paced import Pace, PacedExecutor


class Inner:
    """Takes `own_s` of the time that it is given."""

    layout = KvLayout(1, 2, 8, "float32", 4)
    context_tokens = 64
    vocab_size = 10

    def __init__(self, spend: Callable[[float], None], own_s: float) -> None:
        self._spend, self._own_s = spend, own_s

    def run(self, batch: Batch) -> Sampled:
        self._spend(self._own_s)
        return Sampled([7] * len(batch.draws), [None] * len(batch.draws))


class World:
    """A clock that stands still but for sleeping."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def spend(self, seconds: float) -> None:
        self.now_s += seconds

    def executor(self, pace: Pace, own_s: float = 0.0) -> PacedExecutor:
        return PacedExecutor(
            Inner(self.spend, own_s), pace, 1, now_s=lambda: self.now_s, sleep=self.spend
        )


def chunk(tokens: int, start: int = 0) -> PrefillChunk:
    return PrefillChunk("r", [1] * tokens, start, [], sample=True)


def batch(chunks: list[PrefillChunk], decodes: int, position: int = 0) -> Batch:
    rows = [DecodeRow(f"d{i}", 1, position, []) for i in range(decodes)]
    draws = [Draw(SamplingParams(max_tokens=1), 0)] * (len(chunks) + decodes)
    return Batch(chunks, rows, draws)


PACE = Pace(prefill_s=0.1, token_s=0.001, pair_s=1e-5, decode_s=0.02, request_s=0.003)


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (batch([chunk(10)], 0), 0.1 + 0.010 + 55e-5),
        (batch([chunk(10, 20)], 0), 0.1 + 0.010 + (200 + 55) * 1e-5),
        (batch([chunk(10), chunk(5)], 0), 0.1 + 0.015 + (55 + 15) * 1e-5),
        (batch([], 4), 0.02 + 0.012),
        (batch([chunk(10)], 4), 0.1 + 0.010 + 55e-5 + 0.012),
    ],
    ids=["prompt", "suffix", "two prompts", "decode", "mixed"],
)
def test_an_iteration_takes_its_time(work: Batch, seconds: float) -> None:
    world = World()
    sampled = world.executor(PACE).run(work)
    assert world.now_s - 100 == pytest.approx(seconds)
    assert sampled.busy_s == pytest.approx(seconds)
    assert list(sampled.token_ids) == [7] * len(work.draws)


def test_the_context_and_small_chunks_cost_too() -> None:
    world = World()
    pace = Pace(token_s=0.001, half_tokens=30, context_s=0.5)
    executor = world.executor(pace)
    executor.run(batch([], 2, position=999))
    assert world.now_s == pytest.approx(101.0)
    executor.run(batch([chunk(30)], 0))
    assert world.now_s == pytest.approx(101.06)


def test_an_inner_executor_that_is_slower_is_not_hurried() -> None:
    world = World()
    sampled = world.executor(Pace(decode_s=0.02), own_s=0.5).run(batch([], 1))
    assert sampled.busy_s == pytest.approx(0.5)
    assert world.now_s == pytest.approx(100.5)


def test_noise_has_the_pace_as_its_mean() -> None:
    world = World()
    executor = world.executor(Pace(decode_s=0.02, noise=0.5))
    times = []
    for _ in range(4000):
        before = world.now_s
        executor.run(batch([], 1))
        times.append(world.now_s - before)
    assert statistics.fmean(times) == pytest.approx(0.02, rel=0.03)
    assert statistics.stdev(times) == pytest.approx(0.02 * 0.533, rel=0.1)


def test_a_pace_below_zero_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="below 0"):
        msgspec.json.decode(b'{"token_s": -1}', type=Pace)
