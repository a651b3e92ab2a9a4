"""CPU of `evctl top`, in per cent of a core: `python -m tests.perf.top_cpu [SECONDS] [NODES ...]`.

The interface runs in a terminal of 160 x 50 cells that somebody reads. Its source changes figures
of every node twice a second. CPU time of all threads, read from the operating system.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from evctl.core.status import WatchFrame
from evctl.tui.app import run
from evctl.tui.source import Stale
from tests.tui.fakes import FakeSource, cluster, event, node, replace

COLUMNS, ROWS = 160, 50
SETTLE_S = 3.0
FRAME_S = 0.5
SIZES = (3, 9, 64, 256, 768)


class BusySource(FakeSource):
    """Everything moves, twice a second."""

    def watch(self) -> Iterator[WatchFrame | Stale]:
        base, turn = self.status_now, 0
        while True:
            turn += 1
            nodes = tuple(
                replace(
                    each,
                    queue=(turn + at) % 40,
                    running=(turn * 3 + at) % 32,
                    l1=(turn * 7 + at) % 100 / 100,
                    age_s=(turn + at) % 10 / 10,
                )
                for at, each in enumerate(base.nodes)
            )
            status = replace(base, nodes=nodes, in_flight=turn % 90, throughput_rps=turn % 7 + 0.5)
            kind = "snapshot" if turn == 1 else "status"
            yield WatchFrame(kind, turn, status, (event(turn, f"request r{turn} dispatched"),))
            time.sleep(FRAME_S)


def cpu_percent(nodes: int, seconds: float) -> float:
    """Share of a core that the interface uses with `nodes` nodes."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        os.execv(
            sys.executable, [sys.executable, "-m", "tests.perf.top_cpu", "--child", str(nodes)]
        )
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    reader = threading.Thread(target=_read_away, args=(terminal,), daemon=True)
    reader.start()
    process = psutil.Process(pid)
    try:
        time.sleep(SETTLE_S)
        before_s, began_s = sum(process.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds)
        used_s = sum(process.cpu_times()[:2]) - before_s
        return 100 * used_s / (time.monotonic() - began_s)
    finally:
        process.kill()
        os.waitpid(pid, 0)


def _read_away(terminal: int) -> None:
    try:
        while os.read(terminal, 65_536):
            pass
    except OSError:
        return  # the interface is gone


def child(nodes: int) -> None:
    many = tuple(node(f"n{at:03}", "P" if at % 2 else "D") for at in range(nodes))
    run(BusySource(cluster(*many)))


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]))
        return
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    os.chdir(Path(__file__).resolve().parents[2])
    for nodes in [int(word) for word in sys.argv[2:]] or SIZES:
        print(f"{nodes:4} nodes: {cpu_percent(nodes, seconds):.1f} % of a core over {seconds:g} s")


if __name__ == "__main__":
    main()
