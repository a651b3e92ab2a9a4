"""evctl bench directory"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evctl.cli.commands.trace import complete_trace
from evctl.cli.measured import answer, circumstances
from evctl.cli.output import DocumentOption, Form, chosen, table
from evctl.cli.telling import Telling
from evctl.core.errors import ExitCode

if TYPE_CHECKING:
    from evctl.bench.directory.cases import Size
    from evctl.bench.directory.interleave import Side
    from evctl.bench.measurement import Measurement

SUMMARY: Final = "Measure the KV directory on this machine, a peer's beside it."


def directory(
    vs: Annotated[
        str | None, typer.Option(help="Peer to measure in turn with ours: dynamo.", metavar="PEER")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One run, smaller inputs.")] = False,
    trace: Annotated[
        str,
        typer.Option(
            help="A file, a folder, or `sample` (20 conversations only).",
            autocompletion=complete_trace,
        ),
    ] = "sample",
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Runs of each side; 3, or 1 with --quick.")
    ] = None,
    only: Annotated[str, typer.Option(help="Cases whose name starts so, such as cold.")] = "",
    growth: Annotated[
        Path | None,
        typer.Option(
            help="Measure how times grow instead; an SVG file or a folder for it, data beside.",
            metavar="FILE.svg|FOLDER",
        ),
    ] = None,
    output: DocumentOption = None,
) -> ExitCode:
    """Measure the KV directory on this machine, a peer's beside it; exit 1 for a goal missed."""

    from evctl.bench.directory.cases import FULL, QUICK
    from evctl.bench.directory.interleave import peer_side
    from evctl.bench.directory.run import measure

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    size, times = (QUICK, repeats or 1) if quick else (FULL, repeats or 3)
    peer = peer_side(vs) if vs else None
    told = Telling()
    if growth is not None:
        found = _grow(growth, size, peer, times, told)
    else:
        found = measure(size, trace, peer=peer, repeats=times, only=only, told=told)

    def show() -> None:
        head, rows = found.table()
        numbers = [i for i, name in enumerate(head) if name not in ("WHAT", "UNIT", "GOAL")]
        print(table(head, rows, right=numbers))
        print(f"\n{found.input}\nmedian of {found.repeats} runs a side, {circumstances(found)}")

    return answer(form, found, show)


def _grow(wanted: Path, size: Size, peer: Side | None, repeats: int, told: Telling) -> Measurement:
    from evctl.bench.directory import growth
    from evctl.bench.drawing import check_drawing, place
    from evctl.bench.measurement import Measurement, machine

    check_drawing()
    file = place(wanted, growth.FILE)
    began_s, load = time.monotonic(), os.getloadavg()[0]
    points = growth.grow(growth.scale_of(size), peer=peer, repeats=repeats, told=told)
    name = peer.name if peer is not None else ""
    growth.write(file, growth.Growth("DirectoryGrowth", name, repeats, machine(), points))
    return Measurement(
        subject="directory",
        peer=name,
        input=f"made up; drawn in {file}",
        repeats=repeats,
        wall_s=round(time.monotonic() - began_s, 1),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        machine=machine(),
        rows=growth.rows(points, name),
    )
