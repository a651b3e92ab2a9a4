"""The interface in a real terminal (tmux) against an admin API in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.tui.tmux import DEADLINE_S, Tmux

pytestmark = pytest.mark.system


class Terminal(Tmux):
    """The interface over an admin API that a test starts and ends."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.admin, self.log = str(folder / "admin.sock"), folder / "writes.jsonl"
        self._server: subprocess.Popen[bytes] | None = None

    def start_server(self) -> None:
        command = [sys.executable, "-m", "tests.tui.fake_admin", self.admin, str(self.log)]
        self._server = subprocess.Popen(command, cwd=ROOT)

    def stop_server(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def start_top(self, width: int, height: int, *words: str, **environ: str) -> None:
        kept = ("PATH", "PYTHONPATH", "HOME")
        given = {name: os.environ[name] for name in kept if name in os.environ}
        self.start(
            [sys.executable, "-m", "tests.tui.top_process", self.admin, *words],
            width=width,
            height=height,
            folder=ROOT,
            environ={**given, **environ},
        )

    def writes(self) -> list[dict[str, object]]:
        if not self.log.exists():
            return []
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def close(self) -> None:
        super().close()
        self.stop_server()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    made.start_server()
    yield made
    made.close()


@pytest.mark.parametrize(("width", "height"), [(120, 36), (80, 24)])
def test_the_split_is_changed_from_the_screen(terminal: Terminal, width: int, height: int) -> None:
    terminal.start_top(width, height)
    screen = terminal.sees("replay", "2P1D", "live", "n3", "control plane listens")
    assert all(len(line) <= width for line in screen.splitlines())
    terminal.keep(f"{width}x{height}-overview")
    if height < 36:
        terminal.sees("tab: pool", "tab: planner")
        terminal.keys("Tab")
        terminal.keys("Tab")
    terminal.sees("would move: 2P1D", "chosen")
    terminal.keep(f"{width}x{height}-planner")
    if height < 36:
        terminal.keys("Tab")
    terminal.sees("40 fetches  mean 200 ms  hidden 94%", "own L2")
    terminal.keep(f"{width}x{height}-pool")
    terminal.keys("1")

    terminal.keys("s")
    terminal.sees("Change the split of replay")
    terminal.keys("1P2D")
    terminal.sees("1 node changes role", "evctl split set 1P2D", "+12.0%")
    terminal.keys("Enter")
    terminal.sees("Cancel", "Apply (y)")
    terminal.keep(f"{width}x{height}-review")
    terminal.keys("y")
    terminal.sees("accepted and held, generation 42")
    terminal.sees("1P2D", "gen 42", "settled")
    terminal.keep(f"{width}x{height}-after")
    (write,) = terminal.writes()
    assert (write["split"], write["generation"], write["plan"]) == ("1P2D", 41, False)


def test_enter_twice_changes_nothing(terminal: Terminal) -> None:
    """The focus lies on Cancel: the key that reviews is not the one that confirms."""
    terminal.start_top(120, 36)
    terminal.sees("live")
    terminal.keys("s")
    terminal.sees("Change the split")
    terminal.keys("1P2D")
    terminal.sees("1 node changes role")
    terminal.keys("Enter")
    terminal.sees("Apply (y)")
    terminal.keys("Enter")
    terminal.sees("? help")
    assert terminal.writes() == []


def test_it_lives_through_a_dead_control_plane(terminal: Terminal) -> None:
    terminal.start_top(120, 36)
    terminal.sees("live", "n3")
    terminal.stop_server()
    terminal.sees("stale", "retrying (2)", "n3", "control plane listens")
    terminal.keep("120x36-stale")
    terminal.keys("s")
    terminal.sees("no changes until it is back")
    terminal.start_server()
    terminal.sees("live", "n3")


def test_ascii_and_without_colour(terminal: Terminal) -> None:
    terminal.start_top(120, 36, LANG="C", LC_ALL="C", NO_COLOR="1")
    terminal.sees("# P", "* D", "live")
    terminal.keep("120x36-ascii")
    assert terminal.screen().isascii()
    coloured = terminal("capture-pane", "-p", "-e", "-t", "t")
    assert "[38" not in coloured
    assert "[48" not in coloured
    terminal.keys("?")
    terminal.sees("moving about")
    assert terminal.screen().isascii()


def test_q_leaves(terminal: Terminal) -> None:
    terminal.start_top(80, 24)
    terminal.sees("live")
    terminal.keys("q")
    deadline = time.monotonic() + DEADLINE_S
    while not terminal.has_ended():
        assert time.monotonic() < deadline, f"still there:\n{terminal.screen()}"
        time.sleep(0.05)
