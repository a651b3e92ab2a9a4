"""evctl completion bash|zsh|fish"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print a completion script for a shell.

    bash: eval "$(evctl completion bash)". zsh: the same, after compinit. fish: evctl completion
    fish | source.
    """
    print(
        get_completion_script(prog_name="evctl", complete_var="_EVCTL_COMPLETE", shell=shell.value)
    )
