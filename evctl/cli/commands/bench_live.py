"""evctl bench live"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from evctl.cli.measured import answer, circumstances
from evctl.cli.output import DocumentOption, Form, chosen, table
from evctl.cli.telling import Telling
from evctl.core.errors import ExitCode, UsageError

SUMMARY: Final = "Replay recorded agents on live engines, once for each way to route."


def live(
    policy: Annotated[str, typer.Option(help="Names by commas; all where none is given.")] = "",
    seeds: Annotated[
        int, typer.Option(min=1, help="Runs of each policy, with seeds 1, 2, ...")
    ] = 3,
    agents: Annotated[int, typer.Option(min=1, help="At once.")] = 12,
    requests: Annotated[int, typer.Option(min=1, help="Of a run.")] = 240,
    split: Annotated[str, typer.Option(help="Nodes that prefill and decode.")] = "3P1D",
    trace: Annotated[str, typer.Option(help="A trace, or sample.")] = "sample",
    model: Annotated[
        str, typer.Option(help="That the engines run; random-2l128 where they are paced.")
    ] = "",
    paced: Annotated[
        bool,
        typer.Option(
            "--paced/--unpaced",
            help="Iterations last as hardware of each node's own would take, or as this machine "
            "does.",
        ),
    ] = True,
    output: DocumentOption = None,
) -> ExitCode:
    """Replay recorded agents on live engines, once for each way to route; exit 1 for a goal
    missed."""

    from evctl.bench.live.run import ARMS, Plan, measure

    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    names = tuple(part.strip() for part in policy.split(",") if part.strip())
    if policy and not names:
        raise UsageError(
            what="no policy is named",
            why=f"--policy is {policy!r}",
            next_step=f"name some of {', '.join(ARMS)}",
            code="EV-1645",
        )
    plan = Plan(
        arms=names or tuple(ARMS),
        seeds=tuple(range(1, seeds + 1)),
        trace=trace,
        split=split,
        model=model,
        paced=paced,
        agents=agents,
        requests=requests,
    )
    found = measure(plan, Telling())

    def show() -> None:
        head, rows = found.table()
        numbers = [i for i, name in enumerate(head) if name in ("VALUE", "PREDICTED", "RATIO")]
        print(table(head, rows, right=numbers))
        print(f"\n{found.input}; means, {circumstances(found)}")

    return answer(form, found, show)
