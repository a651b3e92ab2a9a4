"""A cluster brought up by the command, and `evctl top` on it in a real terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.shell import Shell
from tests.tui.tmux import Tmux


class Top(Tmux):
    """`evctl top`, as a person starts it."""

    def __init__(self, shell: Shell) -> None:
        super().__init__(shell.folder)
        self._shell = shell

    def open(self, width: int, height: int) -> None:
        kept = {"PATH", "PYTHONPATH", "HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"}
        environment = {k: v for k, v in self._shell.environment.items() if k in kept}
        self.start(
            [sys.executable, "-m", "evctl.cli", "top"],
            width=width,
            height=height,
            folder=self._shell.folder,
            environ=environment,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.end()


@pytest.fixture
def top(shell: Shell) -> Iterator[Top]:
    top = Top(shell)
    yield top
    top.close()
