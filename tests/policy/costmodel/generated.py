"""Iterations from a generator that knows the coefficients, and noise."""

from __future__ import annotations

import random
from collections.abc import Iterator

from evctl.core.costs import Coefficients
from evctl.core.events import IterationSample
from evctl.core.split import Phase
from evctl.core.workload import attention_pairs
from evctl.policy.costmodel.windows import WindowRow, Windows

TRUTH = Coefficients(0.010, 3e-4, 1.5e-7, 2e-5, 0.009, 0.0, 1e-3)
MOE = Coefficients(0.010, 3e-4, 1.5e-7, 2e-5, 0.009, 0.030, 1e-3, experts=256, experts_per_token=8)


def prefill(truth: Coefficients, rng: random.Random, noise: float) -> IterationSample:
    tokens = rng.choice((rng.randint(16, 512), 512))
    pairs = attention_pairs(tokens, rng.choice((0, rng.randint(0, 4000))))
    restored = rng.choice((0, 0, rng.randint(16, 2000)))
    busy_s = truth.prefill_s(tokens, pairs, restored) * (1 + rng.uniform(-noise, noise))
    return IterationSample(Phase.PREFILL, busy_s, tokens, pairs, restored, 0)


def decode(truth: Coefficients, rng: random.Random, noise: float) -> IterationSample:
    batch = rng.randint(1, 48)
    context = float(sum(rng.randint(16, 4000) for _ in range(batch)))
    busy_s = truth.decode_s(batch, context) * (1 + rng.uniform(-noise, noise))
    return IterationSample(Phase.DECODE, busy_s, 0, context, 0, batch)


def samples(
    truth: Coefficients, seed: int, seconds: float = 120.0, noise: float = 0.1
) -> Iterator[tuple[float, IterationSample]]:
    """(time, iteration): prefill-only and decode-only in turn, one after the other."""
    rng = random.Random(seed)
    now_s, turn = 0.0, 0
    while now_s < seconds:
        sample = (prefill, decode)[turn](truth, rng, noise)
        turn = 1 - turn
        now_s += sample.busy_s
        yield now_s, sample


def rows_of(truth: Coefficients, seed: int, **how: float) -> list[WindowRow]:
    windows = Windows()
    for now_s, sample in samples(truth, seed, **how):
        windows.observe(now_s, sample)
    windows.close()
    return list(windows.closed)
