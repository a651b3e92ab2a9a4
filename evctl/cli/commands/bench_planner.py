"""evctl bench planner"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evctl.cli.measured import answer, circumstances
from evctl.cli.output import DocumentOption, Form, chosen, table
from evctl.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from evctl.bench.measurement import Measurement

SUMMARY: Final = "Measure how often the planner moves when it should, and when not."
QUICK_WINDOWS: Final = 6


def planner(
    windows: Annotated[int, typer.Option(min=4, help="Of each case and autocorrelation.")] = 40,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look: too few windows for the goals.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Processes at once.")] = 2,
    live: Annotated[
        bool, typer.Option("--live", help="On engines that are started for it, for 23 minutes.")
    ] = False,
    window_s: Annotated[
        float | None,
        typer.Option(min=10, help="With --live: of a window, 45; the longer, the less is chance."),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg|FOLDER", help="With --live: draw its timelines, data beside."
        ),
    ] = None,
    output: DocumentOption = None,
) -> ExitCode:
    """Measure how often the planner moves when it should, and when not; exit 1 for a goal
    missed."""
    import msgspec

    from evctl.bench.planner.report import measure
    from evctl.bench.planner.run import Plan

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    if live:
        return _live(form, seed, figure, quick=quick, window_s=window_s)
    if figure is not None or window_s is not None:
        given = "--figure" if figure is not None else "--window-s"
        raise UsageError(
            what=f"{given} is nothing without --live",
            why="it is about what live engines do over time",
            next_step=f"add --live, or leave {given} out",
            code="EV-1648",
        )
    plan = Plan(windows=windows, seed=seed, jobs=min(jobs, os.cpu_count() or 1))
    if quick:
        plan = msgspec.structs.replace(plan, windows=QUICK_WINDOWS, truth_windows=QUICK_WINDOWS)
    return _print(form, measure(plan, _Progress()))


def _live(
    form: Form, seed: int, figure: Path | None, *, quick: bool, window_s: float | None
) -> ExitCode:
    import msgspec

    from evctl.bench.drawing import check_drawing, place, write_data
    from evctl.bench.live.figures import FILE, draw
    from evctl.bench.live.planned import LivePlan, measure
    from evctl.cli.telling import Telling

    if figure is not None and quick:
        raise UsageError(
            what="there is no figure with --quick",
            why="it shows what the planner does by itself, which takes minutes",
            next_step="leave out --quick, or --figure",
            code="EV-1648",
        )
    file = None
    if figure is not None:
        check_drawing()
        file = place(figure, FILE)
    plan = LivePlan(seed=seed)
    if window_s is not None:
        plan = msgspec.structs.replace(plan, window_s=window_s)
    if quick:
        plan = msgspec.structs.replace(plan, path=plan.path[:2], adapt=False)
    found = measure(plan, Telling())
    if file is not None:
        write_data(file, found)
        draw(found.adaptations, file)
    return _print(form, found)


def _print(form: Form, found: Measurement) -> ExitCode:

    def show() -> None:
        head, lines = found.table()
        numbers = [i for i, name in enumerate(head) if name not in ("WHAT", "UNIT", "GOAL")]
        print(table(head, lines, right=numbers))
        print(f"\n{found.input}; {circumstances(found)}")

    return answer(form, found, show)


class _Progress:
    """A line on stderr now and then."""

    EVERY_S = 10.0

    def __init__(self) -> None:
        self._began_s = self._told_s = time.monotonic()

    def __call__(self, done: int, of: int) -> None:
        now_s = time.monotonic()
        if done == of or now_s - self._told_s >= self.EVERY_S:
            self._told_s = now_s
            sys.stderr.write(f"{done}/{of} runs, {now_s - self._began_s:.0f} s\n")
            sys.stderr.flush()
