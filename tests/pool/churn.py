"""Both tiers under more blocks than they hold: python -m tests.pool.churn --operations 200000

Requests share prefixes, come back, are rewritten and leave; blocks change class, and peers borrow
them, some without a word at the end. Every block that comes back is compared with what it was.
Prints figures; exit status 1 if a check found something.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator

import msgspec
import psutil

from tests.pool.tiers import Tiers

AUDIT_EVERY = 10_000


class Figures(msgspec.Struct):
    """least_occupancy: of L2, and RSS, from the end of the warm-up on."""

    operations: int
    audits: int
    problems: list[str]
    least_occupancy: float
    rss_warm_bytes: int
    rss_end_bytes: int

    @property
    def grew_bytes(self) -> int:
        return self.rss_end_bytes - self.rss_warm_bytes

    @property
    def flat(self) -> bool:
        """Under 2 % or 2 MiB, whichever is more."""
        return self.grew_bytes < max(0.02 * self.rss_warm_bytes, 2 << 20)


def rss_bytes() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


def run(tiers: Tiers, operations: int) -> Figures:
    """A quarter is warm-up, or more until L2 is full; RSS and occupancy count from there."""
    figures = Figures(0, 0, [], 1.0, 0, 0)
    for _ in audits(tiers, operations):
        figures.audits += 1
        figures.problems += tiers.audit()
        full = tiers.pool.used_blocks / tiers.pool.total_blocks
        if figures.rss_warm_bytes:
            figures.least_occupancy = min(figures.least_occupancy, full)
        elif tiers.operations >= operations // 4 and full == 1.0:
            figures.rss_warm_bytes = rss_bytes()
    figures.rss_end_bytes = rss_bytes()
    figures.problems += tiers.quiesce() + tiers.problems
    figures.operations = tiers.operations
    return figures


def audits(tiers: Tiers, operations: int) -> Iterator[None]:
    """Steps, with a stop after every so many operations."""
    every = min(AUDIT_EVERY, operations // 4)
    for end in range(every, operations + 1, every):
        while tiers.operations < end:
            tiers.step()
        yield


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.pool.churn", description=__doc__)
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--l2-blocks", type=int, default=512)
    parser.add_argument("--eviction", default="paper")
    arguments = parser.parse_args()
    tiers = Tiers(arguments.seed, l2_blocks=arguments.l2_blocks, eviction=arguments.eviction)
    began_s = time.perf_counter()
    try:
        figures = run(tiers, arguments.operations)
    finally:
        tiers.close()
    print(f"{figures.operations} block operations in {time.perf_counter() - began_s:.1f} s")
    print(f"L2 at least {figures.least_occupancy:.1%} full after the warm-up")
    print(f"RSS {figures.rss_warm_bytes / 2**20:.1f} MiB warm, grew {figures.grew_bytes} bytes")
    counted = {name: int(count) for name, count in tiers.counters.items() if count}
    print(f"{counted}, {tiers.directory.facts} facts")
    print("\n".join(tiers.pauses.lines()))
    print(f"{figures.audits} audits, {len(figures.problems)} problems", *figures.problems[:20])
    return int(bool(figures.problems) or not figures.flat)


if __name__ == "__main__":
    sys.exit(main())
