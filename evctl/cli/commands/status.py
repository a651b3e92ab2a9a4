"""evctl status"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
import typer

from evctl.cli.output import Form, OutputOption, chosen, document, print_document, print_line
from evctl.cli.screen import status_screen
from evctl.cli.target import ClusterArgument, ClusterOption, Target, find_target
from evctl.core.errors import ExitCode, UnreachableError
from evctl.core.status import ClusterStatus

app = typer.Typer(add_completion=False, rich_markup_mode=None)

KIND = "ClusterStatus"


@app.command()
def status(
    cluster: ClusterArgument = None,
    cluster_option: ClusterOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Go on; on a pipe, a line a change.")
    ] = False,
    output: OutputOption = None,
) -> ExitCode:
    """Show health, split, mode, queues and nodes."""
    form = chosen(output, Form.TABLE, Form.JSON, Form.YAML, Form.NAME, Form.JSONL)
    target = find_target(cluster or cluster_option)
    if watch:
        try:
            _watch(target, form)
        except KeyboardInterrupt:  # how a watch ends
            return ExitCode.INTERRUPTED
        return ExitCode.DONE
    try:
        with target.client() as client:
            now = client.status()
    except UnreachableError as error:
        raise target.explained(error) from error
    if form is Form.TABLE:
        print(status_screen(now))
    elif form is Form.NAME:
        print("\n".join(node.name for node in now.nodes))
    else:
        print_document(form, KIND, msgspec.to_builtins(now))
    return ExitCode.DONE


def _watch(target: Target, form: Form) -> None:
    """In a terminal, redraw in place; on a pipe, a line whenever something changed."""
    from evctl.client import Stale

    redraw = form is Form.TABLE and sys.stdout.isatty()
    drawn, before = 0, None
    with target.client() as client:
        for frame in client.watch():
            if isinstance(frame, Stale):
                sys.stderr.write(f"stale: {frame.reason}; retry in {frame.retry_in_s:.1f} s\n")
                drawn = 0
            elif frame.status is None:
                continue
            elif redraw:
                drawn = _draw(frame.status, drawn)
            elif (now := _lasting(frame.status)) != before:
                before = now
                print_line(document(KIND, msgspec.to_builtins(frame.status)))


def _draw(status: ClusterStatus, drawn: int) -> int:
    """Overwrite the last screen, scrollback untouched; returns its number of lines."""
    lines = status_screen(status).split("\n")
    up = f"\x1b[{drawn}A" if drawn else ""
    sys.stdout.write(up + "".join(f"\r\x1b[2K{line}\n" for line in lines) + "\x1b[J")
    sys.stdout.flush()
    return len(lines)


def _lasting(status: ClusterStatus) -> dict[str, Any]:
    """What counts as a change: not that time went on."""
    values: dict[str, Any] = msgspec.to_builtins(status)
    for moment in ("sequence", "held_until_s"):
        values.pop(moment)
    for node in values["nodes"]:
        node.pop("age_s")
    if values["kv"]:
        values["kv"].pop("references_age_s")
    return values
