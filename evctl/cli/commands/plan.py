"""evctl plan"""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from evctl.cli.failures import warn
from evctl.cli.output import DocumentOption, Form, chosen, print_document, terminal_width
from evctl.cli.plan_table import decision_text
from evctl.cli.target import ClusterArgument, ClusterOption, find_target
from evctl.core.errors import ExitCode, UnreachableError

app = typer.Typer(add_completion=False, rich_markup_mode=None)

LATER = "ask again once more requests have come; evctl why split shows earlier decisions"


@app.command()
def plan(
    cluster: ClusterArgument = None,
    cluster_option: ClusterOption = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit 10 when it would move a node.")
    ] = False,
    output: DocumentOption = None,
) -> ExitCode:
    """Show what the planner would do now: each split's forecast, gain, standard error, verdict.

    Reads only; nothing is moved. Without a decision (too little was seen) it says why.
    """
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML)
    target = find_target(cluster or cluster_option)
    try:
        with target.client() as client:
            decision = client.why.plan()
    except UnreachableError as error:
        raise target.explained(error) from error
    if form is Form.TABLE:
        print(decision_text(decision, terminal_width(), now=True))
    else:
        values = {"cluster": target.name, **msgspec.to_builtins(decision)}
        print_document(form, "PlanDecision", values)
    if decision.verdict == "blind":
        warn("EV-1364", LATER, "no split can be forecast now", decision.why)
    would_move = decision.verdict in ("move", "advise", "revert")
    return ExitCode.CHANGES_PENDING if exit_code and would_move else ExitCode.DONE
