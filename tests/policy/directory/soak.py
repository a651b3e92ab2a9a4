"""Many random steps: python -m tests.policy.directory.soak --steps 500000 [--seed N].

Exits with 1 at the first difference between the directory and the block model, and if a row of
the rule table got less than 1 % of the steps.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.policy.directory.driver import ROWS, Driver

LEAST_SHARE = 0.01
TOLD_EVERY = 25_000


def soak(steps: int, seed: int) -> Counter[str]:
    """Rows that came up; half of the steps with the relabel switch. Raises AssertionError."""
    rows: Counter[str] = Counter()
    for part, relabel in enumerate((False, True)):
        driver = Driver(seed * 2 + part, relabel=relabel)
        try:
            for step in range(steps // 2):
                driver.step()
                if step % TOLD_EVERY == TOLD_EVERY - 1:
                    print(f"seed {seed}, relabel {relabel}: {step + 1} steps agree", flush=True)
        except Exception:
            print(f"seed {seed}, relabel {relabel}, step {driver.steps}", file=sys.stderr)
            for entry in driver.log[-8:]:
                print("  ", *entry, file=sys.stderr)
            raise
        rows += driver.rows
    return rows


def starved(rows: Counter[str], steps: int) -> list[str]:
    """Rows of the table that came up too rarely to mean anything."""
    return [row for row in ROWS if rows[row] < LEAST_SHARE * steps]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--any-share", action="store_true", help="accept rare rows")
    options = parser.parse_args()
    rows = soak(options.steps, options.seed)
    for row, count in rows.most_common():
        print(f"{row:20} {count:8}  {100 * count / options.steps:5.1f} %")
    rare = [] if options.any_share else starved(rows, options.steps)
    if rare:
        print("too rare:", ", ".join(rare))
    return 1 if rare else 0


if __name__ == "__main__":
    sys.exit(main())
