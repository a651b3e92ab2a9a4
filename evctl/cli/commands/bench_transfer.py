"""evctl bench transfer"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from evctl.cli.measured import answer, circumstances
from evctl.cli.output import DocumentOption, Form, chosen, table
from evctl.cli.telling import Telling
from evctl.core.errors import ExitCode, UsageError

SUMMARY: Final = "Measure moving KV against plain copies, and write-through."


def transfer(
    backend: Annotated[
        str, typer.Option(help="shm, mooncake (as root), or both by commas.")
    ] = "shm,mooncake",
    blocks: Annotated[int, typer.Option(min=2, help="Of 64 KiB.")] = 256,
    repeats: Annotated[int, typer.Option(min=2, help="Runs of each side.")] = 31,
    pairs: Annotated[
        int, typer.Option(min=0, help="Of turns with and without write-through; 0: leave it out.")
    ] = 60,
    model: Annotated[str, typer.Option(help="That decodes meanwhile.")] = "random-4l256",
    output: DocumentOption = None,
) -> ExitCode:
    """Measure moving KV against plain copies, and what write-through costs decode; exit 1 for a
    goal missed."""

    from evctl.bench.transfer.run import BACKENDS, Plan, measure

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    backends = tuple(part.strip() for part in backend.split(","))
    unknown = [name for name in backends if name not in BACKENDS]
    if unknown or pairs == 1:
        raise UsageError(
            what=f"there is no backend {unknown[0]!r}" if unknown else "one pair has no interval",
            why=f"the backends are {', '.join(BACKENDS)}" if unknown else "it takes two at least",
            next_step="give --backend shm" if unknown else "give --pairs 2, or 0 for none",
            code="EV-1639",
        )
    plan = Plan(backends=backends, blocks=blocks, repeats=repeats, pairs=pairs, model=model)
    found = measure(plan, Telling())

    def show() -> None:
        head, rows = found.table()
        numbers = [i for i, name in enumerate(head) if name in ("VALUE", "PLAIN", "RATIO")]
        print(table(head, rows, right=numbers))
        print(f"\n{found.input}; medians of {found.repeats} runs a side, {circumstances(found)}")

    return answer(form, found, show)
