"""evctl bench router"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from evctl.cli.commands.trace import complete_trace
from evctl.cli.measured import answer, circumstances
from evctl.cli.output import DocumentOption, Form, chosen, table
from evctl.cli.telling import Telling
from evctl.core.errors import ExitCode

SUMMARY: Final = "Measure routing decisions on a cluster amid its work."


def router(
    quick: Annotated[bool, typer.Option("--quick", help="One run, smaller inputs.")] = False,
    trace: Annotated[
        str,
        typer.Option(
            help="A file, a folder, or `sample` (20 conversations only).",
            autocompletion=complete_trace,
        ),
    ] = "sample",
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Runs of each case; 3, or 1 with --quick.")
    ] = None,
    output: DocumentOption = None,
) -> ExitCode:
    """Measure whole routing decisions over 9 and 96 nodes; exit 1 for a goal missed."""
    import msgspec

    from evctl.bench.router.run import FULL, QUICK, measure

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    size = QUICK if quick else FULL
    if repeats is not None:
        size = msgspec.structs.replace(size, repeats=repeats)
    found = measure(size, trace, Telling())

    def show() -> None:
        head, rows = found.table()
        numbers = [i for i, name in enumerate(head) if name == "VALUE"]
        print(table(head, rows, right=numbers))
        print(f"\n{found.input}\nmedian of {found.repeats} runs, {circumstances(found)}")

    return answer(form, found, show)
