"""evctl bench exact"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Final

import typer

from evctl.cli.measured import answer, circumstances
from evctl.cli.output import DocumentOption, Form, chosen, table
from evctl.cli.telling import Telling
from evctl.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from evctl.bench.exact.report import ExactMeasurement

SUMMARY: Final = "Compare tokens and KV over every path that KV can take."


def exact(
    prompts: Annotated[int, typer.Option(min=2, help="Prompts of mixed length a path.")] = 60,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Again for several; a grouped-query and a latent one otherwise."),
    ] = None,
    ranks: Annotated[str, typer.Option(help="Ranks of every node; several by commas.")] = "1,2,4",
    path: Annotated[
        list[str] | None, typer.Option(help="Only this path; again for several.")
    ] = None,
    transfer: Annotated[str, typer.Option(help="Backend that moves KV.")] = "shm",
    engine: Annotated[
        str, typer.Option(help="Arguments of Python that start an engine.", metavar="ARGUMENTS")
    ] = "-m evengine",
    output: DocumentOption = None,
) -> ExitCode:
    """Compare greedy tokens and page checksums over every path; exit 1 where they differ."""

    from evctl.bench.exact.run import MODELS, Plan, measure

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    plan = Plan(
        models=tuple(model or MODELS),
        prompts=prompts,
        ranks=_counts(ranks),
        paths=tuple(path or ()),
        transfer=transfer,
        entry=tuple(shlex.split(engine)),
    )
    found = measure(plan, Telling())
    return answer(form, found, lambda: _print(found))


def _print(found: ExactMeasurement) -> None:
    import msgspec

    from evctl.bench.exact.report import HEAD, RIGHT

    print(table(HEAD, [path.cells() for path in found.paths], right=RIGHT))
    of_paths = {path.name for path in found.paths}
    rest = [row for row in found.rows if row.name.rpartition(": ")[0] not in of_paths]
    head, cells = msgspec.structs.replace(found, rows=rest).table()
    print(f"\n{table(head, cells)}")
    for path in found.paths:
        for fault in path.faults:
            print(f"{path.name}: {fault}")
    verdict = "all the same" if found.ok else "NOT the same"
    print(f"\n{verdict}: {found.input}; {circumstances(found)}")


def _counts(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in text.split(","))
        if min(found) < 1:
            raise ValueError("a node has at least one rank")
        return found
    except ValueError as error:
        raise UsageError(
            what=f"--ranks {text} is no list of numbers",
            why=str(error),
            next_step="give numbers with commas between, such as --ranks 1,2",
            code="EV-1606",
        ) from error
