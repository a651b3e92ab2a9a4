"""How long calls took, in memory that does not grow with their number."""

from __future__ import annotations

import math
from collections.abc import Iterator

STEP = 1.1
FIRST_S = 1e-6
BUCKETS = 200


class Spread:
    """Counts by length, each bucket a tenth longer than the one before."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.calls = 0
        self.longest_s = 0.0
        self.longest_cpu_s = 0.0

    def add(self, wall_s: float, cpu_s: float) -> None:
        bucket = math.ceil(math.log(max(wall_s, FIRST_S) / FIRST_S, STEP))
        self.counts[min(bucket, BUCKETS - 1)] += 1
        self.calls += 1
        self.longest_s = max(self.longest_s, wall_s)
        self.longest_cpu_s = max(self.longest_cpu_s, cpu_s)

    def quantile_s(self, part: float) -> float:
        """The upper edge of the bucket that it falls into."""
        left = part * self.calls
        for bucket, number in enumerate(self.counts):
            left -= number
            if left <= 0:
                return float(FIRST_S * STEP**bucket)
        return self.longest_s


class Pauses:
    """By name of the call."""

    def __init__(self) -> None:
        self.by_name: dict[str, Spread] = {}
        self.all = Spread()

    def add(self, name: str, wall_s: float, cpu_s: float) -> None:
        for spread in (self.all, self.by_name.setdefault(name, Spread())):
            spread.add(wall_s, cpu_s)

    def lines(self) -> Iterator[str]:
        """A table in milliseconds. CPU: what the call itself took, whoever else had the core."""
        yield f"{'ms':22}{'calls':>9}{'p50':>8}{'p99':>8}{'max':>8}{'max CPU':>9}"
        for name, spread in [*sorted(self.by_name.items()), ("all", self.all)]:
            yield (
                f"{name:22}{spread.calls:>9}{spread.quantile_s(0.5) * 1e3:>8.3f}"
                f"{spread.quantile_s(0.99) * 1e3:>8.3f}{spread.longest_s * 1e3:>8.3f}"
                f"{spread.longest_cpu_s * 1e3:>9.3f}"
            )
