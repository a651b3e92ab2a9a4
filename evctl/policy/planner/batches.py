"""The sound test: is the mean of an autocorrelated series above zero? (design, section 5, plus)

Neighbouring slices resemble each other, so that the plain standard error is too small. Means of
batches of slices resemble each other less; Student's t pays for how few there are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

LEAST_BATCHES = 3
MOST_BATCHES = 6
LEAST_BATCH = 2
"""Slices."""


class Mean(msgspec.Struct, frozen=True):
    """value: of all batches. error: its standard error; degrees: of freedom of that, 0 where
    there are too few batches to tell."""

    value: float
    error: float
    degrees: int


def batch_means(series: Sequence[float]) -> list[float]:
    """Means of equal stretches of the series; the oldest values that fill no batch are left
    out."""
    size = max(LEAST_BATCH, len(series) // MOST_BATCHES)
    count = len(series) // size
    first = len(series) - count * size
    return [math.fsum(series[i : i + size]) / size for i in range(first, len(series), size)]


def mean_of(series: Sequence[float]) -> Mean:
    """Mean of a series with the error that its batches show."""
    means = batch_means(series)
    count = len(means)
    if count < LEAST_BATCHES:
        value = math.fsum(series) / len(series) if series else 0.0
        return Mean(value, math.inf, 0)
    value = math.fsum(means) / count
    squares = math.fsum((one - value) ** 2 for one in means)
    return Mean(value, math.sqrt(squares / (count - 1) / count), count - 1)


def with_error(mean: Mean, more: float) -> Mean:
    """Add an independent standard error that is known well: degrees after Welch and
    Satterthwaite, rounded down."""
    if not more or not mean.degrees:
        return mean
    own, total = mean.error**2, mean.error**2 + more**2
    degrees = 10**6 if own == 0.0 else min(10**6, int(mean.degrees * (total / own) ** 2))
    return Mean(mean.value, math.sqrt(total), degrees)


def plain_mean(series: Sequence[float]) -> Mean:
    """Mean and standard error as if the values were independent (the paper's rule)."""
    count = len(series)
    value = math.fsum(series) / count
    if count < 2:
        return Mean(value, math.inf, 0)
    squares = math.fsum((one - value) ** 2 for one in series)
    return Mean(value, math.sqrt(squares / (count - 1) / count), count - 1)


def effective_tests(columns: Sequence[Sequence[float]]) -> float:
    """How many independent tests these series amount to (Nyholt 2004): as many as there are where
    nothing correlates, 1 where all say the same. From the squared correlations alone, which
    are the variance of the matrix's eigenvalues."""
    scaled = [one for one in map(_scaled, columns) if one is not None]
    count = len(scaled)
    if count < 2:
        return 1.0
    squares = 0.0
    for i in range(count):
        for j in range(i):
            r = math.fsum(a * b for a, b in zip(scaled[i], scaled[j], strict=True))
            squares += 2.0 * r * r
    return 1.0 + (count - 1) * (1.0 - squares / (count - 1) / count)


def _scaled(column: Sequence[float]) -> list[float] | None:
    mean = math.fsum(column) / len(column)
    norm = math.sqrt(math.fsum((value - mean) ** 2 for value in column))
    return [(value - mean) / norm for value in column] if norm > 1e-12 else None
