"""evctl down"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from evctl.cli.asking import Tier, confirm
from evctl.cli.failures import tell_partial
from evctl.cli.interrupt import GentleInterrupt
from evctl.cli.output import Form, OutputOption, chosen, print_document
from evctl.cli.target import (
    ClusterArgument,
    ClusterOption,
    ConfirmOption,
    Target,
    YesOption,
    find_target,
)
from evctl.client.admin import AdminClient
from evctl.core.errors import EvctlError, ExitCode
from evctl.provision.plan import plan_down
from evctl.provision.shutdown import take_down

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def down(
    cluster: ClusterArgument = None,
    cluster_option: ClusterOption = None,
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove keys, logs and journal.")
    ] = False,
    confirmed: ConfirmOption = None,
    drain_timeout_s: Annotated[
        float,
        typer.Option("--drain-timeout", metavar="SECONDS", min=0, help="For requests in flight."),
    ] = 60.0,
    plan: Annotated[bool, typer.Option("--plan", help="Show what would be stopped.")] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="With --plan: exit 10 when there is something.")
    ] = False,
    yes: YesOption = False,
    output: OutputOption = None,
) -> ExitCode:
    """Let a cluster finish what runs, then stop it."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME)
    target = find_target(cluster or cluster_option)
    driver = target.driver()
    running = plan_down(driver.units())
    if plan:
        _print(form, "DownPlan", target.name, running, purge, "to stop")
        return ExitCode.CHANGES_PENDING if exit_code and (running or purge) else ExitCode.DONE
    if running or purge:
        _ask(target, running, purge, yes, confirmed)
    with driver.locked("down"), GentleInterrupt() as interrupt:
        result = take_down(
            driver,
            connect=AdminClient,
            tell=_tell,
            drain_timeout_s=drain_timeout_s,
            purge=purge,
            interrupted=interrupt,
        )
    _print(form, "DownResult", target.name, result.stopped, result.purged, "stopped")
    if result.interrupted:
        tell_partial(
            "EV-1805", f"evctl down {target.name} goes on from here", "interrupted", "Ctrl-C"
        )
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def _ask(
    target: Target, running: tuple[str, ...], purge: bool, yes: bool, confirmed: str | None
) -> None:
    what = f"stop cluster {target.name}"
    if running:
        what += f" ({len(running)} processes{_in_flight(target)})"
    if purge:
        what += " and remove its keys, logs and journal"
    confirm(
        what,
        Tier.DESTRUCTIVE if purge else Tier.DISRUPTIVE,
        cluster=target.name,
        protected=target.protected,
        yes=yes,
        confirmed=confirmed,
    )


def _in_flight(target: Target) -> str:
    """Part of the blast radius, where somebody can still say it."""
    try:
        with target.client() as client:
            return f", {client.status().in_flight} requests in flight"
    except EvctlError:
        return ""


def _tell(unit: str, what: str) -> None:
    sys.stderr.write(f"{unit:<8} {what}\n")
    sys.stderr.flush()


def _print(
    form: Form, kind: str, cluster: str, units: tuple[str, ...], purge: bool, word: str
) -> None:
    if form is Form.NAME:
        print("\n".join(units))
    elif form is not Form.TABLE:
        values = {"cluster": cluster, "units": list(units), "count": len(units), "purge": purge}
        print_document(form, kind, values)
    else:
        names = f" ({', '.join(units)})" if units else ""
        files = "; files removed" if purge and kind == "DownResult" else ""
        print(f"cluster {cluster}: {len(units)} {word}{names}{files}")
