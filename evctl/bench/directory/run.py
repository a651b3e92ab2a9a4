"""`evctl bench directory`: all cases on both sides, told as a Measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import UNSET, UnsetType

from evctl.bench.directory.cases import Case, Size, Wanted, cases
from evctl.bench.directory.interleave import OURS, Figures, Side, interleave
from evctl.bench.measurement import Measurement, Row, machine

OURS_ONLY = frozenset({"tokenising"})
"""Cases that a peer has no part in."""
Told = Callable[[str], None]


def measure(
    size: Size,
    trace: str | Path,
    *,
    peer: Side | None = None,
    ours: Side = OURS,
    repeats: int = 3,
    only: str = "",
    told: Told | None = None,
) -> Measurement:
    """Measure every case whose name starts with `only`. Raises EvctlError."""
    began_s, load = time.monotonic(), os.getloadavg()[0]
    rows: list[Row] = []
    abouts: list[str] = []
    known: dict[int, Figures] = {}
    for case in cases(size, trace):
        if not case.name.startswith(only):
            continue
        sides = [ours] if peer is None or case.name in OURS_ONLY else [ours, peer]
        figures, about = interleave(case, sides, repeats, told=told)
        theirs = figures.get(peer.name) if peer is not None else None
        rows += rows_of(case, figures[ours.name], theirs)
        if case.task == "turns":
            known[case.options["context"]] = figures[ours.name]
        if about and about not in abouts:
            abouts.append(about)
    rows += flatness(known)
    return Measurement(
        subject="directory",
        peer=peer.name if peer is not None else "",
        input="; ".join(abouts) or "made up",
        repeats=repeats,
        wall_s=round(time.monotonic() - began_s, 1),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        machine=machine(),
        rows=rows,
    )


def rows_of(case: Case, ours: Figures, theirs: Figures | None) -> list[Row]:
    """The rows of a case, from what both sides found; None: no peer."""
    return [_row(wanted, ours, theirs or {}) for wanted in case.rows]


def flatness(known: dict[int, Figures]) -> list[Row]:
    """How much more a request of a known branch costs with the longest context than with the
    shortest; known: figures by blocks of context."""
    if len(known) < 2:
        return []
    short, long = min(known), max(known)
    return [
        Row(
            name=f"known branch, {what}, {long:,} over {short:,} blocks of context, p50",
            value=known[long][figure] / known[short][figure],
            unit="times",
            orientation=1.0,
        )
        for what, figure in (("match + count + place", "arrive_p50"), ("all", "turn_p50"))
    ]


def _row(wanted: Wanted, ours: Figures, theirs: Figures) -> Row:
    value, peer = ours[wanted.figure], theirs.get(wanted.peer)
    ratio = value / peer if peer else None
    ok: bool | UnsetType = UNSET
    goal: str | UnsetType = UNSET
    if wanted.at_most is not None:
        goal = f"ratio <= {wanted.at_most:g}"
        ok = UNSET if ratio is None else ratio <= wanted.at_most
    elif wanted.at_least is not None:
        goal = f"ratio >= {wanted.at_least:g}"
        ok = UNSET if ratio is None else ratio >= wanted.at_least
    about = UNSET if wanted.orientation is None else wanted.orientation
    return Row(
        name=wanted.name,
        value=value,
        unit=wanted.unit,
        peer=peer,
        ratio=ratio,
        ok=ok,
        goal=goal,
        orientation=about,
    )
