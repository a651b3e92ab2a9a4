"""What this world's agents ask for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Work:
    """agents: that work at once. uncached_tokens, output_tokens: means of a request; tail: sigma
    of their log-normal laws (1.5: the top 5 % carry half). spawn: share of requests after which
    an agent starts `children` sub-agents on average, each for `child_requests`, and waits for
    all. drift: standard deviation of the logarithm of a slice's mean tokens, each of the two, and
    autocorrelation: of that from slice to slice.
    """

    agents: int
    uncached_tokens: float = 5200.0
    output_tokens: float = 900.0
    context_tokens: float = 140_000.0
    pause_s: float = 11.0
    uncached_tail: float = 1.4
    output_tail: float = 1.1
    spawn: float = 0.03
    children: float = 3.0
    child_requests: int = 4
    drift: float = 0.15
    autocorrelation: float = 0.0
    slice_s: float = 60.0


class Mix:
    """The mix of the moment: two autocorrelated numbers that change every slice."""

    def __init__(self, work: Work, random: Random) -> None:
        self._work = work
        self._random = random
        self._slice = -1
        self._at = [0.0, 0.0]

    def at(self, now_s: float) -> tuple[float, float]:
        """Factors of uncached and output tokens."""
        work = self._work
        while self._slice < int(now_s / work.slice_s):
            kept = work.autocorrelation if self._slice >= 0 else 0.0
            fresh = work.drift * math.sqrt(1.0 - kept * kept)
            self._at = [kept * z + self._random.gauss(0.0, fresh) for z in self._at]
            self._slice += 1
        return math.exp(self._at[0]), math.exp(self._at[1])


def tailed(random: Random, mean: float, sigma: float) -> float:
    """Log-normal with that mean."""
    return mean * math.exp(random.gauss(0.0, sigma) - sigma * sigma / 2.0)
