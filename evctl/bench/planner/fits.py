"""What a warm-up would learn of the world's nodes: Eq. 1 and 2, fitted to noisy samples of laws
that have another form."""

from __future__ import annotations

import math
from random import Random

import msgspec
import numpy as np

from evctl.bench.planner.world.laws import Laws
from evctl.core.costs import TERMS, Coefficients
from evctl.core.workload import attention_pairs

SAMPLES = 240
EXPERTS, PER_TOKEN, FORWARDED = 256, 8, 4.0


def fit(laws: Laws, node: int, random: Random) -> Coefficients:
    """Coefficients of one node with their standard errors."""
    rows, times = [], []
    for _ in range(SAMPLES):
        uncached = min(150_000.0, 5000.0 * math.exp(random.gauss(-1.0, 1.4)))
        cached = random.uniform(20_000.0, 220_000.0)
        rows.append([1.0, uncached, attention_pairs(uncached, cached)])
        times.append(laws.prefill_s(node, uncached, cached, random))
    prefill = _least_squares(rows, times)
    shape = Coefficients(0, 0, 0, 0, 0, 0, 0, EXPERTS, PER_TOKEN, FORWARDED)
    rows, times = [], []
    for _ in range(SAMPLES):
        batch = random.randint(1, 24)
        noise = math.exp(random.gauss(0.0, laws.noise / 2.0))
        context = batch * random.uniform(60_000.0, 180_000.0)
        rows.append([1.0, shape.phi(batch), float(batch)])
        times.append(laws.iteration_s(node, batch, context) * noise)
    decode = _least_squares(rows, times)
    found = dict(zip(("c0", "c1", "c2", "d0", "d1", "d2"), prefill + decode, strict=True))
    # Restores and the context of decode: the world has both, this fit neither.
    found["c3"] = found["d3"] = (0.0, 0.0)
    return msgspec.structs.replace(
        shape,
        **{f"{term}_s": found[term][0] for term in TERMS},
        errors=tuple(found[term][1] for term in TERMS),
    )


def _least_squares(rows: list[list[float]], times: list[float]) -> list[tuple[float, float]]:
    """Value and standard error of each column's coefficient, none below 0; errors are relative,
    so rows are weighed by their time."""
    weights = 1.0 / np.array(times)
    matrix, target = np.array(rows) * weights[:, None], np.ones(len(times))
    kept = list(range(matrix.shape[1]))
    while True:
        part = matrix[:, kept]
        found = np.linalg.lstsq(part, target, rcond=None)[0]
        if found.min() >= 0.0:
            break
        kept.pop(int(found.argmin()))
    residual = target - part @ found
    spread = float(residual @ residual) / (len(times) - len(kept))
    covariance = np.linalg.inv(part.T @ part) * spread
    result = [(0.0, 0.0)] * matrix.shape[1]
    for place, column in enumerate(kept):
        result[column] = (float(found[place]), float(math.sqrt(covariance[place, place])))
    return result
