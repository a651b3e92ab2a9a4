"""A tmux of its own with one program in it: what a person types, and what a person sees."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

DEADLINE_S = 20.0


class Tmux:
    """One window. Its socket lies in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.socket = str(folder / "tmux")

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-f", "/dev/null", "-S", self.socket, *words],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout

    def start(
        self,
        command: Sequence[str],
        *,
        width: int,
        height: int,
        folder: Path,
        environ: Mapping[str, str],
    ) -> None:
        """Run a command in a terminal with nothing in its environment but `environ`."""
        given = {"LANG": "C.UTF-8", "TERM": "tmux-256color", **environ}
        assigned = [f"{name}={value}" for name, value in given.items()]
        size = ["-x", str(width), "-y", str(height)]
        self(
            "-u", "new-session", "-d", "-s", "t", *size, "-c", str(folder), "env", "-i",
            *assigned, *command,
        )  # fmt: skip

    def keys(self, *keys: str) -> None:
        self("send-keys", "-t", "t", *keys)

    def screen(self) -> str:
        return self("capture-pane", "-p", "-t", "t")

    def sees(self, *wanted: str, within_s: float = DEADLINE_S) -> str:
        """Wait for all of the texts; returns the screen."""
        deadline = time.monotonic() + within_s
        while True:
            screen = self.screen()
            if all(each in screen for each in wanted):
                return screen
            assert time.monotonic() < deadline, f"never saw {wanted}:\n{screen}"
            time.sleep(0.05)

    def keep(self, name: str) -> None:
        """Leave the screen for a person, where EVCTL_CAPTURES names a folder."""
        if folder := os.environ.get("EVCTL_CAPTURES"):
            (Path(folder) / f"top-{name}.txt").write_text(self.screen(), encoding="utf-8")

    def has_ended(self) -> bool:
        """Whether the program, and with it the window, is gone."""
        done = subprocess.run(
            ["tmux", "-S", self.socket, "has-session", "-t", "t"],
            capture_output=True,
            check=False,
        )
        return done.returncode != 0

    def close(self) -> None:
        subprocess.run(
            ["tmux", "-S", self.socket, "kill-server"], capture_output=True, check=False
        )
