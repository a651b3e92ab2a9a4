"""evctl top"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer

from evctl.cli.failures import not_yet
from evctl.cli.target import ClusterArgument, ClusterOption, find_target, who
from evctl.core.errors import RefusedError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def top(
    cluster: ClusterArgument = None,
    cluster_option: ClusterOption = None,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Change nothing until unlocked.")
    ] = False,
) -> None:
    """Watch and steer a cluster in the terminal."""
    target = find_target(cluster or cluster_option)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise RefusedError(
            what="evctl top needs a terminal",
            why="stdin or stdout is not one",
            next_step=f"evctl status --watch{target.flag} prints changes to a pipe",
            code="EV-1813",
        )
    try:
        screen: Any = importlib.import_module("evctl.tui.app")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("evctl"):
            raise
        raise not_yet("evctl top", "evctl status --watch") from error
    with target.client() as client:
        screen.run(
            client, by=who(), read_only=read_only, protected=target.protected, flag=target.flag
        )
