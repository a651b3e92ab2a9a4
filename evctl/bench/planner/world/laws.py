"""How long this world's nodes take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

CHUNK_TOKENS = 8192


@dataclass(frozen=True)
class Laws:
    """Seconds, in the order of size of four GB300 under GLM-5.2 (paper, section 5; calibrated
    loosely). speeds: of each node, 1.0 the usual. noise: standard deviation of a logarithm."""

    speeds: tuple[float, ...]
    chunk_s: float = 0.020
    token_s: float = 75e-6
    short_s: float = 0.030
    pair_s: float = 8e-11
    base_s: float = 0.0015
    experts_s: float = 0.0190
    experts_batch: float = 6.5
    request_s: float = 0.00036
    context_s: float = 0.9e-9
    accepted: float = 2.3
    hand_over_s: float = 0.15
    noise: float = 0.08

    def prefill_s(self, node: int, uncached: float, cached: float, random: Random) -> float:
        """Of a whole prompt, alone: chunks' fixed costs, tokens, attention, and what a short one
        wastes of a kernel."""
        chunks = math.ceil(uncached / CHUNK_TOKENS)
        short_s = self.short_s / (1.0 + uncached / 1024.0)
        pairs = uncached * cached + uncached * uncached / 2.0
        total_s = chunks * self.chunk_s + self.token_s * uncached + short_s + self.pair_s * pairs
        return total_s * self.speeds[node] * math.exp(random.gauss(0.0, self.noise))

    def iteration_s(self, node: int, batch: int, context_tokens: float) -> float:
        """Of a decode batch; the experts' share saturates, context and requests add up."""
        experts_s = self.experts_s * (1.0 - math.exp(-batch / self.experts_batch))
        total_s = self.base_s + experts_s + self.request_s * batch
        return (total_s + self.context_s * context_tokens) * self.speeds[node]
