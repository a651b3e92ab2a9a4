"""The tree of commands. Each is imported when it is used; help and completion of the root import
none of them."""

from __future__ import annotations

import importlib
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from evctl import __version__
from evctl.cli import style
from evctl.cli.plain_values import read_plainly


class Entry(NamedTuple):
    module: str
    summary: str


COMMANDS: Final = {
    "up": Entry("up", "Bring a cluster up, or to what its file says."),
    "down": Entry("down", "Let a cluster finish what runs, then stop it."),
    "status": Entry("status", "Show health, split, mode, queues and nodes."),
    "split": Entry("split", "Show or change how many nodes prefill and decode."),
    "plan": Entry("plan", "Show what the planner would do now, split by split."),
    "why": Entry("why", "Show why a request, a node, the split or a block is as it is."),
    "branches": Entry("branches", "List the branches of agents, and where their KV is."),
    "branch": Entry("branch", "Show one branch, its family, or end it."),
    "kv": Entry("kv", "Show cached KV and what refers to it; check the counts."),
    "top": Entry("top", "Watch and steer a cluster in the terminal."),
    "logs": Entry("logs", "Show what the control plane and the nodes logged."),
    "trace": Entry("trace", "Replay recorded agent conversations, or measure them."),
    "bench": Entry("bench", "Measure parts of evctl on this machine."),
    "config": Entry("config", "Check and show cluster files and settings."),
    "doctor": Entry("doctor", "Check this machine, and what a cluster opens to others."),
    "explain": Entry("explain", "Explain an error code or a term."),
    "completion": Entry("completion", "Print a completion script for a shell."),
    "version": Entry("version", "Print the version."),
}


class ReaderGoneError(Exception):
    """Whoever read our output has closed it. typer would end the process with 1 at once."""


class LazyGroup(TyperGroup):
    """A group whose commands are named in a table and imported when one is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._listing = False
        for name, entry in COMMANDS.items():
            self.commands[name] = TyperCommand(name, callback=None, help=entry.summary)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        if cmd_name not in COMMANDS or self._listing:
            return self.commands.get(cmd_name)
        module = importlib.import_module(f"evctl.cli.commands.{COMMANDS[cmd_name].module}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        read_plainly(command)
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        super().format_commands(ctx, formatter)
        self._listing = False

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self._listing = True
        found = super().shell_complete(ctx, incomplete)
        self._listing = False
        return found


root = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@root.callback(invoke_without_command=True)
def evctl(
    context: typer.Context,
    color: Annotated[
        str | None, typer.Option(help="auto, always or never.", metavar="WHEN")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    """Serve language models to fleets of agents: operate a cluster.

    Exit codes: evctl explain exit-codes. Environment: EVCTL_CLUSTER, EVCTL_OUTPUT, EVCTL_COLOR,
    NO_COLOR.
    """
    if color is not None and color not in ("auto", "always", "never"):
        raise typer.BadParameter("give auto, always or never", param_hint="--color")
    style.choose(color)
    if version:
        print(__version__)
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(0)


def command_tree() -> Any:
    from typer.completion import completion_init

    completion_init()
    tree = typer.main.get_command(root)
    read_plainly(tree)
    return tree


def usage_failure(error: Exception) -> tuple[str, str, str] | None:
    """(message, usage line, command) of the library's error about a command line, else None."""
    if not isinstance(error, typer.TyperException):
        return None
    context = getattr(error, "ctx", None)
    usage = context.get_usage() if context is not None else ""
    return error.format_message(), usage, context.command_path if context is not None else "evctl"
