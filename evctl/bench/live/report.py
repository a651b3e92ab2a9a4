"""Rows of a live comparison: each policy beside ours, means over the same seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET

from evctl.bench.measurement import Measurement, Row
from evctl.bench.report import BenchRun

Reading = Callable[[BenchRun], float | None]

FIGURES: tuple[tuple[str, str, Reading], ...] = (
    ("mean E2E", "s", lambda run: run.e2e_s.mean),
    ("P95 E2E", "s", lambda run: run.e2e_s.p95),
    ("mean TTFT", "s", lambda run: run.ttft_s.mean),
    ("P95 TTFT", "s", lambda run: run.ttft_s.p95),
    ("uncached tokens a request", "tokens", lambda run: run.uncached_tokens_per_request),
    ("most loaded over average wait", "", lambda run: run.most_loaded_over_average),
    ("throughput", "req/s", lambda run: run.throughput_rps),
    ("failed", "requests", lambda run: float(run.failed)),
)


class LiveMeasurement(Measurement, frozen=True, kw_only=True):
    """runs: every replay, with its policy and seed."""

    runs: list[BenchRun]


def rows(runs: Sequence[BenchRun], ours: str) -> list[Row]:
    """ratio: over ours, of the same seeds. The goal: no other plain policy has a lower mean E2E,
    and nothing failed."""
    policies = list(dict.fromkeys(run.policy for run in runs))
    found = []
    for name, unit, read in FIGURES:
        peer = _mean(runs, ours, read)
        for policy in policies:
            value = _mean(runs, policy, read)
            if value is None:
                continue
            row = Row(
                name=f"{name}, {policy}",
                value=value,
                unit=unit,
                peer=peer,
                ratio=value / peer if peer else None,
            )
            found.append(_judged(row, name, policy, ours))
    return found


def spread(runs: Sequence[BenchRun], policy: str, read: Reading) -> float | None:
    """Standard deviation over the seeds."""
    values = _values(runs, policy, read)
    return statistics.stdev(values) if len(values) > 1 else None


def _judged(row: Row, name: str, policy: str, ours: str) -> Row:
    if name == "failed":
        return msgspec.structs.replace(row, goal="none", ok=row.value == 0)
    if name != "mean E2E" or policy == ours or policy.startswith(f"{ours}+"):
        return row
    if row.ratio is None:
        return msgspec.structs.replace(row, ok=UNSET)
    return msgspec.structs.replace(row, goal=f"no less than {ours}", ok=row.ratio >= 1.0)


def _mean(runs: Sequence[BenchRun], policy: str, read: Reading) -> float | None:
    values = _values(runs, policy, read)
    return statistics.fmean(values) if values else None


def _values(runs: Sequence[BenchRun], policy: str, read: Reading) -> list[float]:
    read_of = (read(run) for run in runs if run.policy == policy)
    return [value for value in read_of if value is not None]
