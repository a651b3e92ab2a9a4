"""`evctl bench router`, without the command line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from evctl.bench.measurement import Measurement, Row, machine
from evctl.bench.router.decisions import Times, decide
from evctl.bench.router.stage import Shape

Told = Callable[[str], None]
LIMITS_US: Final = {9: 60.0, 96: 150.0}
"""Nodes -> what the median decision may take."""
SPLITS: Final = {9: "6P3D", 96: "64P32D"}
PLUS: Final[dict[str, Any]] = {"shortest_first": True, "append_tokens": 1024}


class Size(msgspec.Struct, frozen=True):
    """How much is measured; see Shape. repeats: runs, of which the median one is told."""

    conversations: int = 120
    prompts: int = 6000
    measured: int = 2000
    repeats: int = 3


FULL = Size()
QUICK = Size(conversations=20, prompts=1000, measured=400, repeats=1)


class Case(msgspec.Struct, frozen=True):
    """One shape of cluster and clients; goal_us: for the median decision."""

    name: str
    shape: Shape
    goal_us: float | None = None


def cases(size: Size) -> Iterator[Case]:
    """In the order in which they are reported."""
    for nodes, split in SPLITS.items():
        common: dict[str, Any] = {
            "nodes": nodes,
            "split": split,
            "conversations": size.conversations,
            "prompts": size.prompts,
            "measured": size.measured,
        }
        goal_us = LIMITS_US[nodes]
        yield Case(f"{nodes} nodes", Shape(**common), goal_us)
        plus = Shape(**common, options=PLUS)
        yield Case(f"{nodes} nodes, shortest first and append on decode", plus)
        yield Case(f"{nodes} nodes, clients that name no branch", Shape(**common, known=False))


def measure(size: Size, trace: str, told: Told = lambda _: None) -> Measurement:
    """Run it all. Raises EvctlError."""
    began_s, load = time.monotonic(), os.getloadavg()[0]
    rows: list[Row] = []
    about = ""
    for case in cases(size):
        told(case.name)
        runs = [decide(case.shape, trace) for _ in range(size.repeats)]
        median = sorted(runs, key=lambda times: part(times.decision_ns, 0.5))[len(runs) // 2]
        rows += rows_of(case, median)
        about = median.about
    return Measurement(
        subject="router",
        peer="",
        input=about,
        repeats=size.repeats,
        wall_s=round(time.monotonic() - began_s, 1),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        machine=machine(),
        rows=rows,
    )


def rows_of(case: Case, times: Times) -> Iterator[Row]:
    """What one run says."""
    decision = f"{case.name}: decision (match, every node's terms, explanation kept)"
    p50 = part(times.decision_ns, 0.5)
    if case.goal_us is None:
        yield Row(name=f"{decision}, p50", value=p50, unit="us")
    else:
        goal = f"<= {case.goal_us:g}"
        ok = p50 <= case.goal_us
        yield Row(name=f"{decision}, p50", value=p50, unit="us", goal=goal, ok=ok)
    yield Row(name=f"{decision}, p99", value=part(times.decision_ns, 0.99), unit="us")
    yield Row(
        name=f"{decision}, CPU time, p99", value=part(times.decision_cpu_ns, 0.99), unit="us"
    )
    yield Row(
        name=f"{case.name}: of that, match and books, p50",
        value=part(times.match_ns, 0.5),
        unit="us",
    )
    yield Row(
        name=f"{case.name}: whole step of an arrival, p50",
        value=part(times.step_ns, 0.5),
        unit="us",
    )
    yield Row(
        name=f"{case.name}: reading an explanation, p50", value=part(times.read_ns, 0.5), unit="us"
    )
    count = len(times.decision_ns)
    yield Row(name=f"{case.name}: decisions timed", value=count, unit="decisions")
    for what, number in (
        ("that fetch from peers", times.fetching),
        ("away from the longest prefix", times.elsewhere),
        ("appended on decode", times.appended),
    ):
        yield Row(name=f"{case.name}: decisions {what}", value=number / count, unit="share")


def part(times_ns: list[int], share: float) -> float:
    """That quantile, in µs."""
    ordered = sorted(times_ns)
    return ordered[round((len(ordered) - 1) * share)] / 1000
