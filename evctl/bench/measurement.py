"""Measurement: rows measured on this machine, in the form that scripts rely on."""

from __future__ import annotations

import os
import platform

import msgspec
from msgspec import UNSET, UnsetType

KIND = "Measurement"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. ratio: value / peer, null without a peer.

    ok: whether it meets its goal, absent where it has none. goal: that goal in words.
    orientation: an absolute figure to compare `value` with, which decides nothing.
    """

    name: str
    value: float
    unit: str
    peer: float | None = None
    ratio: float | None = None
    ok: bool | UnsetType = UNSET
    goal: str | UnsetType = UNSET
    orientation: float | UnsetType = UNSET

    def cells(self) -> tuple[str, ...]:
        """name, value, unit, peer, ratio, goal and verdict, orientation."""
        verdict = "" if self.ok is UNSET else ("ok  " if self.ok else "FAIL")
        goal = "" if self.goal is UNSET else f"{verdict} {self.goal}".strip()
        about = "" if self.orientation is UNSET else short(self.orientation)
        return (
            self.name,
            short(self.value),
            self.unit,
            "" if self.peer is None else short(self.peer),
            "" if self.ratio is None else f"{self.ratio:.3g}",
            goal,
            about,
        )


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of one command, and the circumstances.

    peer: what the peer's column is of, "" for none. repeats: runs of each side whose median a
    value is. load: of this machine before and after, tasks that ran or waited. wall_s: seconds
    that it took.
    """

    kind: str = KIND
    subject: str
    peer: str
    input: str
    repeats: int
    wall_s: float
    load: tuple[float, float]
    machine: str
    rows: list[Row]

    @property
    def ok(self) -> bool:
        """No row misses its goal."""
        return all(row.ok is not False for row in self.rows)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Head and cells; columns that are empty throughout are left out."""
        head = ("WHAT", "VALUE", "UNIT", self.peer.upper() or "PEER", "RATIO", "GOAL", "ABOUT")
        cells = [row.cells() for row in self.rows]
        used = [i for i in range(len(head)) if i < 3 or any(row[i] for row in cells)]
        return tuple(head[i] for i in used), [tuple(row[i] for i in used) for row in cells]


def machine() -> str:
    """What all this was measured on."""
    return f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"


def short(value: float) -> str:
    """Three significant digits, thousands with commas."""
    if value and abs(value) < 999.5:
        return f"{value:.3g}"
    return f"{value:,.0f}"
