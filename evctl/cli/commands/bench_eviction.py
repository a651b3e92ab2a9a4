"""evctl bench eviction"""

from __future__ import annotations

import sys
import time
from typing import Annotated, Final

import typer

from evctl.cli.commands.trace import complete_trace
from evctl.cli.measured import answer
from evctl.cli.output import DocumentOption, Form, chosen, table
from evctl.core.errors import ExitCode, UsageError

SUMMARY: Final = "Measure what each eviction order loses on recorded conversations."


def eviction(
    trace: Annotated[
        str,
        typer.Option(
            help="A file, a folder, or `sample` (small: for a first look).",
            autocompletion=complete_trace,
        ),
    ] = "sample",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds.")] = 3,
    gap_cap_s: Annotated[
        str, typer.Option(help="Pauses: at most this; several by commas.")
    ] = "30,300,1800",
    pool: Annotated[
        str, typer.Option(help="Pool: this times the mean live working set; by commas.")
    ] = "0.6,0.8,1.0,1.1,1.25",
    policy: Annotated[str, typer.Option(help="Orders, by commas; all otherwise.")] = "",
    agents: Annotated[int, typer.Option(min=1, help="Agents at once.")] = 100,
    hours: Annotated[float, typer.Option(help="Simulated time.")] = 3.0,
    warm_up_s: Annotated[float, typer.Option(help="Not counted at the start.")] = 3600.0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = 1,
    output: DocumentOption = None,
) -> ExitCode:
    """Measure what each eviction order loses; exit 1 for a goal missed."""
    import msgspec

    from evctl.bench.eviction.grid import POLICIES, Grid
    from evctl.bench.eviction.report import side_by_side, told
    from evctl.bench.eviction.run import measure

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    grid = Grid(
        trace=trace,
        agents=agents,
        hours=hours,
        warm_up_s=warm_up_s,
        seeds=tuple(range(seeds)),
        gap_caps_s=_numbers("--gap-cap-s", gap_cap_s),
        pools=_numbers("--pool", pool),
        policies=tuple(policy.split(",")) if policy else POLICIES,
        jobs=jobs,
    )
    found = measure(grid, _Progress())

    def show() -> None:
        head, lines = side_by_side(found.rows, grid)
        print(f"Lost reuse, of reusable blocks. {found.input}\n")
        print(table(head, lines, right=range(2, len(head))))
        rest = msgspec.structs.replace(found, rows=told(found.rows))
        if rest.rows:
            print(f"\n{table(*rest.table())}")
        print(f"\n{found.wall_s:.0f} s, load {found.load[0]:.1f} to {found.load[1]:.1f}")

    return answer(form, found, show)


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(
            what=f"{option} {text} is no list of numbers",
            why=str(error),
            next_step=f"give numbers with commas between, such as {option} 30,300",
            code="EV-1606",
        ) from error


class _Progress:
    """A line on stderr for each load that is done."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        passed_s = time.monotonic() - self._began_s
        sys.stderr.write(f"{done}/{of} loads, {passed_s:.0f} s\n")
        sys.stderr.flush()
