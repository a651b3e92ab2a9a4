"""Non-negative least squares with error bars, and what the data cannot tell."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MAX_INFLATION = 1_000.0
"""Of the variance of a term by the others. Beyond, it is not identified: less than 3 % of its
regressor's size varies apart from the others."""
PASSES = 6
HUBER = 1.5
"""Residuals beyond so many times their typical size count less and less: another process on the
machine makes an iteration longer, none makes it shorter."""
LEAST_SHARE = 0.1
"""Of what was measured that a prediction weighs as at least, while a pass is far off."""


class Identification(msgspec.Struct, frozen=True):
    """What one regression could tell. terms: its names, in the order of the tuples. rank,
    condition: of the weighted regressors, each scaled to length 1. spread: coefficient of
    variation of each regressor, an iteration. inflation: of the variance of each coefficient,
    by what the regressors have in common; infinite where one is a sum of others, or always 0."""

    terms: tuple[str, ...]
    rows: int
    rank: int
    condition: float
    spread: tuple[float, ...]
    inflation: tuple[float, ...]
    unidentified: tuple[str, ...]


class Solution(msgspec.Struct, frozen=True):
    """Seconds a unit of each term, with their standard errors, and the share by which the median
    row is off."""

    values: tuple[float, ...]
    errors: tuple[float, ...]
    residual: float
    report: Identification


def solve(terms: tuple[str, ...], sums: Array, busy_s: Array, iterations: Array) -> Solution:
    """Fit busy_s ~ sums @ values, values >= 0. One row for each group of iterations, one column
    for each term.

    Weighted by relative error, for that is what a prediction is judged by, and a plain fit would
    serve long iterations only. An iteration's noise is a share of its time, so a sum of n is
    known to within that share over sqrt(n). The weights come from the prediction of the pass
    before: by what was measured, rows that happened to be short would pull.
    """
    from scipy.optimize import nnls  # heavy, and only fits need it

    predicted_s, doubt = busy_s.copy(), np.ones_like(busy_s)
    for _ in range(PASSES):
        weight = np.sqrt(iterations * doubt) / predicted_s
        weighted = sums * weight[:, None]
        scale = np.linalg.norm(weighted, axis=0)
        scale[scale == 0.0] = 1.0
        values = nnls(weighted / scale, busy_s * weight, maxiter=50 * len(terms))[0] / scale
        predicted_s = np.maximum(sums @ values, LEAST_SHARE * busy_s)
        doubt = _doubt((busy_s - sums @ values) * np.sqrt(iterations) / predicted_s)
    report = identify(terms, weighted, sums / iterations[:, None])
    off = (busy_s - sums @ values) * weight
    freedom = max(1, len(busy_s) - len(terms))
    variance = float(off @ off) / freedom
    errors = tuple(
        math.inf if name in report.unidentified else math.sqrt(variance * inflation) / length
        for name, inflation, length in zip(terms, report.inflation, scale.tolist(), strict=True)
    )
    residual = float(np.median(np.abs(sums @ values - busy_s) / busy_s))
    return Solution(tuple(values.tolist()), errors, residual, report)


def identify(terms: tuple[str, ...], weighted: Array, each: Array) -> Identification:
    """What the regressors can tell apart. each: regressors of one iteration, by row."""
    length = np.linalg.norm(weighted, axis=0)
    there = length > 0.0
    unit = weighted[:, there] / length[there]
    inflation = np.full(len(terms), math.inf)
    rank, condition = 0, math.inf
    if there.any():
        _, singular, right = np.linalg.svd(unit, full_matrices=False)
        rank = int((singular > singular[0] * 1e-9).sum())
        least = max(float(singular[-1]), 1e-300)
        condition = float(singular[0]) / least if len(singular) == there.sum() else math.inf
        floor = np.maximum(singular, singular[0] * 1e-9)
        inflation[there] = ((right / floor[:, None]) ** 2).sum(axis=0)
        if len(singular) < there.sum():  # fewer rows than terms
            inflation[there] = math.inf
    mean = each.mean(axis=0)
    spread = np.divide(each.std(axis=0), mean, out=np.zeros(len(terms)), where=mean > 0.0)
    return Identification(
        terms=terms,
        rows=len(weighted),
        rank=rank,
        condition=condition,
        spread=tuple(spread.tolist()),
        inflation=tuple(inflation.tolist()),
        unidentified=tuple(
            name
            for name, factor in zip(terms, inflation.tolist(), strict=True)
            if factor > MAX_INFLATION
        ),
    )


def _doubt(off: Array) -> Array:
    """Weight of each row by how far off it is (Huber), 1 for most."""
    typical = 1.4826 * float(np.median(np.abs(off)))
    if typical <= 0.0:
        return np.ones_like(off)
    return np.minimum(1.0, HUBER * typical / np.maximum(np.abs(off), 1e-300))
