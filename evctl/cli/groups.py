"""Commands that have commands under them."""

from __future__ import annotations

import typer


def group(summary: str) -> typer.Typer:
    """A group; named alone it prints its help and succeeds, as bare `evctl` does."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, help=summary)

    @app.callback(invoke_without_command=True)
    def alone(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())
            raise typer.Exit(0)

    alone.__doc__ = summary
    return app
