"""How times grow with blocks, branches, nodes and runs: measured points, and a drawing of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from evctl.bench.directory import inputs
from evctl.bench.directory.cases import ASKED, DEPTH, SHARED, Case, Size
from evctl.bench.directory.inputs import Input
from evctl.bench.directory.interleave import OURS, Figures, Side, interleave
from evctl.bench.drawing import write_data
from evctl.bench.measurement import Row

FILE: Final = "directory-growth.svg"
AXES: Final = {
    "blocks": "blocks in the tree (2,048 a path, 9 nodes)",
    "branches": "live branches (64 blocks each, 9 nodes)",
    "nodes": "nodes (each begins with the same 32 blocks)",
    "runs": "runs on the path (9 nodes hold nearly all of it)",
}
COLD: Final = "cold match"
KNOWN: Final = "known branch: match + count + place"
TURN: Final = "known branch: a whole request"
# Okabe-Ito, as the screens have it.
COLOURS: Final = {COLD: "#0072B2", KNOWN: "#009E73", TURN: "#CC79A7", "peer": "#E69F00"}


class Point(msgspec.Struct, frozen=True):
    """One measured time. line: what was measured; side: who; at: place on the axis. cpu_p99_us:
    slowest hundredth in CPU time of the thread; None for a peer, which works in another thread.
    """

    axis: str
    at: int
    side: str
    line: str
    p50_us: float
    p99_us: float
    cpu_p99_us: float | None


class Growth(msgspec.Struct, frozen=True):
    """The data behind the drawing."""

    kind: str
    peer: str
    repeats: int
    machine: str
    points: list[Point]


class Scale(msgspec.Struct, frozen=True):
    """Places on the axes."""

    blocks: tuple[int, ...] = (8, 64, 512, 2048)
    """In paths of 2,048 blocks."""
    branches: tuple[int, ...] = (100, 1000, 10_000, 100_000)
    nodes: tuple[int, ...] = (1, 9, 96, 768)
    runs: tuple[int, ...] = (1, 8, 64, 256, 1024)
    rounds: int = 50
    sampled: int = 2000


def plan(scale: Scale) -> Iterator[tuple[str, int, Case]]:
    """(axis, place, case) of every point."""
    asking = {"rounds": scale.rounds}
    for count in scale.blocks:
        yield (
            "blocks",
            count * DEPTH,
            _case("match", asking, partial(inputs.sequences, 9, count, DEPTH, SHARED)),
        )
    for count in scale.branches:
        options = {"context": 64, "added": 20, "turns": 2, "sampled": scale.sampled}
        yield (
            "branches",
            count,
            _case("turns", options, partial(inputs.agents, 9, count, 64, turns=3)),
        )
    for nodes in scale.nodes:
        yield (
            "nodes",
            nodes,
            _case(
                "match",
                asking,
                partial(inputs.sequences, nodes, max(64, nodes), DEPTH, SHARED),
            ),
        )
    for runs in scale.runs:
        yield (
            "runs",
            runs,
            _case("match", asking, partial(inputs.fragmented, 9, ASKED, runs)),
        )


def _case(task: str, options: dict[str, Any], make: Callable[[], Input]) -> Case:
    return Case("growth", task, make, (), options)


def grow(
    scale: Scale,
    *,
    peer: Side | None = None,
    ours: Side = OURS,
    repeats: int = 3,
    told: Callable[[str], None] | None = None,
) -> list[Point]:
    """Measure every point. Raises EvctlError."""
    points: list[Point] = []
    sides = [ours] if peer is None else [ours, peer]
    for axis, at, case in plan(scale):
        named = msgspec.structs.replace(case, name=f"{axis} {at:,}")
        figures, _ = interleave(named, sides, repeats, told=told)
        for side, found in figures.items():
            points += [
                Point(
                    axis,
                    at,
                    side,
                    line,
                    found[f"{label}p50"],
                    found[f"{label}p99"],
                    found.get(f"cpu_{label}p99"),
                )
                for line, label in _lines(found, ours=side == ours.name)
            ]
    return points


def _lines(found: Figures, *, ours: bool) -> list[tuple[str, str]]:
    if "p50" in found:
        return [(COLD, "")]
    if not ours:
        return [(COLD, "match_")]
    return [(COLD, "cold_"), (KNOWN, "arrive_"), (TURN, "turn_")]


def rows(points: list[Point], peer: str) -> list[Row]:
    """The points of ours as rows, the peer's beside them."""
    theirs = {(p.axis, p.at, p.line): p for p in points if p.side == peer}
    found: list[Row] = []
    for point in points:
        if point.side == peer:
            continue
        other = theirs.get((point.axis, point.at, point.line))
        for label in ("p50", "p99"):
            value = getattr(point, f"{label}_us")
            beside = getattr(other, f"{label}_us") if other else None
            found.append(
                Row(
                    name=f"{point.line}, {point.at:,} {point.axis}, {label}",
                    value=value,
                    unit="us",
                    peer=beside,
                    ratio=value / beside if beside else None,
                )
            )
    return found


# ---------------------------------------------------------------- files


def write(file: Path, growth: Growth) -> Path:
    """The drawing, and its data beside it as JSON; returns the path of the data."""
    data = write_data(file, growth)
    _draw(file, growth)
    return data


def _draw(file: Path, growth: Growth) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    # Equal data give an equal file: no date, fixed ids; text stays text.
    with mpl.rc_context({"svg.hashsalt": "evctl", "svg.fonttype": "none", "font.size": 9}):
        figure, panels = pyplot.subplots(2, 2, figsize=(10, 7.5), layout="constrained")
        for panel, (axis, label) in zip(panels.flat, AXES.items(), strict=True):
            _panel(panel, axis, label, growth)
        named = panels.flat[1].get_legend_handles_labels()
        figure.legend(*named, fontsize=8, loc="outside lower center", ncols=2)
        figure.suptitle("Time of one question (solid: median; dotted: p99 of CPU time, ours)")
        figure.savefig(file, metadata={"Date": None})
        pyplot.close(figure)


def _panel(panel: Any, axis: str, label: str, growth: Growth) -> None:
    lines: dict[tuple[str, str], list[Point]] = {}
    for point in growth.points:
        if point.axis == axis:
            lines.setdefault((point.side, point.line), []).append(point)
    for (side, line), points in lines.items():
        theirs = side == growth.peer
        colour = COLOURS["peer" if theirs else line]
        shape = "s" if theirs else "o"
        at = [point.at for point in points]
        name = f"{side}: {line}" if growth.peer else line
        p50 = [point.p50_us for point in points]
        panel.plot(at, p50, color=colour, marker=shape, markersize=4, label=name)
        p99 = [point.cpu_p99_us for point in points if point.cpu_p99_us is not None]
        if len(p99) == len(at):
            panel.plot(at, p99, color=colour, marker=shape, markersize=3, linestyle=":")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel(label)
    panel.set_ylabel("µs")
    panel.set_ylim(bottom=1)
    panel.grid(visible=True, which="major", alpha=0.3)


def scale_of(size: Size) -> Scale:
    """Places that fit the size."""
    if size.rounds >= Size().rounds:
        return Scale()
    return Scale((8, 64), (100, 1000), (1, 9, 96), (1, 8, 64), size.rounds, 200)
