"""Rows of what the engine's side measured."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

from evctl.bench.measurement import Row

LEAST_SHARE = {"shm": 0.6, "mooncake": 0.85}
"""Of the plain way's speed that ours has to reach, verification included."""
PLAIN = {"shm": "memcpy", "mooncake": "its library's own batch read"}
MOST_COST = 0.03
"""Of decode's time that copying into L2 may cost."""
CONFIDENCE = 0.95
GIB = 1 << 30


class Runs(msgspec.Struct, frozen=True):
    """Seconds of every run of one shape, ours and the plain way's in turn."""

    shape: str
    ours_s: list[float]
    ours_cpu_s: list[float]
    plain_s: list[float]
    plain_cpu_s: list[float]


class Pair(msgspec.Struct, frozen=True):
    """Seconds for so many tokens with an L2 and without one."""

    tokens: int
    on_s: float
    off_s: float
    on_cpu_s: float
    off_cpu_s: float


class Interval(msgspec.Struct, frozen=True):
    """A mean, and how far from it the true one lies at most (CONFIDENCE)."""

    mean: float
    within: float


def copy_rows(backend: str, runs: Runs, moved_bytes: int) -> list[Row]:
    """Speed of medians against the plain way's, and how the ratio of single runs spreads."""
    least = LEAST_SHARE[backend]
    ours, plain = (moved_bytes / statistics.median(s) / GIB for s in (runs.ours_s, runs.plain_s))
    name = f"{backend}, {runs.shape}"
    shares = [p / o for o, p in zip(runs.ours_s, runs.plain_s, strict=True)]
    low, _, high = statistics.quantiles(shares, n=4)
    cpu = [statistics.median(s) * 1e3 for s in (runs.ours_cpu_s, runs.plain_cpu_s)]
    return [
        Row(
            name=f"{name}: verified in L2, against {PLAIN[backend]}",
            value=ours,
            unit="GiB/s",
            peer=plain,
            ratio=ours / plain,
            goal=f"ratio >= {least:g}",
            ok=ours / plain >= least,
        ),
        Row(
            name=f"{name}: ratio of single runs, quarter and three quarters",
            value=low,
            unit=f"to {high:.3g}",
        ),
        Row(
            name=f"{name}: CPU",
            value=cpu[0],
            unit="ms",
            peer=cpu[1],
            ratio=cpu[0] / cpu[1] if cpu[1] else None,
        ),
    ]


def damage_row(backend: str, noticed: int, damaged: int) -> Row:
    """Blocks whose bytes were changed at their source, behind their header."""
    return Row(
        name=f"{backend}: damaged blocks that were refused",
        value=noticed,
        unit=f"of {damaged}",
        goal="all",
        ok=noticed == damaged,
    )


def cost_rows(pairs: Sequence[Pair]) -> list[Row]:
    """Decode with an L2 against decode without one, from the differences of pairs."""
    cpu = interval([pair.on_cpu_s / pair.off_cpu_s - 1 for pair in pairs])
    wall = interval([pair.on_s / pair.off_s - 1 for pair in pairs])
    tokens = sum(pair.tokens for pair in pairs)
    return [
        _cost_row("CPU seconds a token", cpu),
        _cost_row("seconds a token", wall),
        Row(
            name="decode with write-through, against without",
            value=tokens / sum(pair.on_s for pair in pairs),
            unit="tok/s",
            peer=tokens / sum(pair.off_s for pair in pairs),
            ratio=sum(pair.off_s for pair in pairs) / sum(pair.on_s for pair in pairs),
        ),
    ]


def interval(values: Sequence[float]) -> Interval:
    """By Student's t, for at least two values that do not depend on each other."""
    from scipy.stats import t  # slow to import

    count = len(values)
    spread = statistics.stdev(values) / count**0.5
    return Interval(
        statistics.fmean(values), spread * float(t.ppf((1 + CONFIDENCE) / 2, count - 1))
    )


def _cost_row(what: str, cost: Interval) -> Row:
    """Judged where the interval says something: one wider than the goal decides nothing."""
    ok: bool | UnsetType = cost.mean < MOST_COST
    if cost.within > MOST_COST and abs(cost.mean - MOST_COST) < cost.within:
        ok = UNSET
    return Row(
        name=f"write-through: cost to decode in {what}",
        value=100 * cost.mean,
        unit=f"% +- {100 * cost.within:.2g} ({CONFIDENCE:.0%})",
        goal=f"< {100 * MOST_COST:g} %",
        ok=ok,
    )
