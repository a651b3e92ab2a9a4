"""evctl down"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from evctl.cli.asking import Tier, confirm
from evctl.cli.failures import check_exit_code, tell_partial
from evctl.cli.interrupt import GentleInterrupt
from evctl.cli.output import Form, NamesOption, chosen, number_of, print_document
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
from evctl.provision.driver import CONTROL
from evctl.provision.plan import plan_down
from evctl.provision.shutdown import DownResult, take_down

app = typer.Typer(add_completion=False, rich_markup_mode=None)

STOPS = "stopping here: the cluster serves on, unless its control plane has ended already"
STOPS_ALREADY = "stopping already"


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
    output: NamesOption = None,
) -> ExitCode:
    """Let a cluster finish what runs, then stop it."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME)
    check_exit_code(exit_code, plan)
    target = find_target(cluster or cluster_option)
    driver = target.driver()
    running = plan_down(driver.units())
    if plan:
        _print(form, "DownPlan", target.name, DownResult(running, False, purge), "to stop")
        return ExitCode.CHANGES_PENDING if exit_code and (running or purge) else ExitCode.DONE
    _ask(target, running, purge, yes, confirmed)
    with driver.locked("down"), GentleInterrupt(STOPS, STOPS_ALREADY) as interrupt:
        result = take_down(
            driver,
            connect=AdminClient,
            tell=_tell,
            drain_timeout_s=drain_timeout_s,
            purge=purge,
            interrupted=interrupt,
        )
    _print(form, "DownResult", target.name, result, "stopped")
    if result.interrupted:
        _tell_interrupt(target, result)
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def _tell_interrupt(target: Target, result: DownResult) -> None:
    """What state the cluster is in now."""
    if result.serves:
        tell_partial(
            "EV-1805",
            f"evctl down {target.name}, when it is to stop after all",
            "interrupted: the stop was called off",
            f"Ctrl-C; cluster {target.name} serves on, nothing was stopped",
        )
        return
    left = plan_down(target.driver().units())
    lone = "" if CONTROL in left else ", without the control plane: no request is taken"
    rest = f"{', '.join(left)} still run{'s' * (len(left) == 1)}{lone}" if left else "nothing runs"
    tell_partial(
        "EV-1805",
        f"evctl down {target.name} goes on from here, evctl up {target.name} goes back",
        "interrupted",
        f"Ctrl-C; {rest}",
    )


def _ask(
    target: Target, running: tuple[str, ...], purge: bool, yes: bool, confirmed: str | None
) -> None:
    what = f"stop cluster {target.name}"
    if running:
        what += f" ({len(running)} process{'es' * (len(running) != 1)}{_in_flight(target)})"
    if purge:
        what += " and remove its keys, logs and journal"
    tier = Tier.DISRUPTIVE if running else Tier.NONE
    confirm(
        what,
        Tier.DESTRUCTIVE if purge else tier,
        cluster=target.name,
        protected=target.protected and tier is not Tier.NONE,
        yes=yes,
        confirmed=confirmed,
    )


def _in_flight(target: Target) -> str:
    """Part of the blast radius, where somebody can still say it."""
    try:
        with target.client() as client:
            return f", {number_of(client.status().in_flight, 'request')} in flight"
    except EvctlError:
        return ""


def _tell(unit: str, what: str) -> None:
    sys.stderr.write(f"{unit:<8} {what}\n")
    sys.stderr.flush()


def _print(form: Form, kind: str, cluster: str, result: DownResult, word: str) -> None:
    units = result.stopped
    if form is Form.NAME:
        print("\n".join(units))
    elif form is not Form.TABLE:
        values = {
            "cluster": cluster,
            "units": list(units),
            "count": len(units),
            "purge": result.purged,
            "interrupted": result.interrupted,
            "serves": result.serves,
        }
        print_document(form, kind, values)
    else:
        names = f" ({', '.join(units)})" if units else ""
        files = "; files removed" if result.purged and kind == "DownResult" else ""
        print(f"cluster {cluster}: {len(units)} {word}{names}{files}")
