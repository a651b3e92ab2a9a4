"""evctl bench model"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evctl.cli.measured import answer, circumstances
from evctl.cli.output import DocumentOption, Form, chosen, table
from evctl.cli.telling import Telling
from evctl.core.errors import ExitCode

if TYPE_CHECKING:
    from evctl.bench.model.report import ModelMeasurement

SUMMARY: Final = "Fit a node's execution-time model, and try it on another mix."


def model(
    name: Annotated[str, typer.Option("--model", help="What the engine serves.")] = "random-6l384",
    warm_up: Annotated[float, typer.Option(min=1, help="Seconds of warm-up traffic.")] = 120.0,
    held_out: Annotated[float, typer.Option(min=1, help="Seconds of the other mix.")] = 60.0,
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's terms only, no context of decode.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Seconds instead of minutes.")] = False,
    engine: Annotated[
        str, typer.Option(help="Arguments of Python that start an engine.", metavar="ARGUMENTS")
    ] = "-m evengine",
    output: DocumentOption = None,
) -> ExitCode:
    """Errors of predicted iterations and requests beside a constant and a predictor by total
    input length; exit 1 where ours misses its goal."""

    from evctl.bench.model.run import Plan, measure

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    plan = Plan(
        model=name,
        warm_up_s=warm_up,
        held_out_s=held_out,
        context_term=not paper,
        entry=tuple(shlex.split(engine)),
    )
    found = measure(plan.quick() if quick else plan, Telling())
    return answer(form, found, lambda: _print(found))


def _print(found: ModelMeasurement) -> None:
    print(table(*found.table()))
    if found.why_not:
        print(f"\nnothing was fitted: {found.why_not}")
    print(f"\n{found.input}; {circumstances(found)}")
