"""evctl top"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evctl.cli.failures import not_yet
from evctl.cli.target import ClusterArgument, ClusterOption, find_target
from evctl.core.errors import RefusedError

if TYPE_CHECKING:
    from evctl.client import AdminClient

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
            next_step="evctl status --watch prints changes to a pipe",
            code="EV-1813",
        )
    try:
        screen: Any = importlib.import_module("evctl.tui.app")
        source: Any = importlib.import_module("evctl.tui.source")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("evctl"):
            raise
        raise not_yet("evctl top", "evctl status --watch") from error
    with target.client() as client:
        screen.run(_Source(client, source.Stale), read_only=read_only, protected=target.protected)


class _Source:
    """The admin client as the interface's source: the same calls, its own marker of loss."""

    def __init__(self, client: AdminClient, stale: Any) -> None:
        self._stale = stale
        self.status = client.status
        self.set_split = client.set_split
        self._watch = client.watch

    def watch(self) -> Iterator[Any]:
        from evctl.client import Stale

        for item in self._watch():
            if isinstance(item, Stale):
                yield self._stale(item.attempt, item.reason, item.retry_in_s)
            else:
                yield item
