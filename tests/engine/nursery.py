"""Starts faulty engines in a fraction of a second: copies of a process that has loaded everything.

Loading torch takes longer than all else of an engine's start. Nodes themselves are spawned, never
forked, since a child would keep their locks and sockets; this process has neither.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path


class Born:
    """A running engine; as much of subprocess.Popen as a Driver needs. -9, 0 or 1: it was killed,
    it was asked to end, or it ended by itself."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._descriptor = os.pidfd_open(pid)
        self._sent = 0

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            self._sent = number
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def poll(self) -> int | None:
        return self._look(0)

    def wait(self, timeout_s: float = 30.0) -> int:
        code = self._look(timeout_s)
        if code is None:
            raise subprocess.TimeoutExpired(f"engine {self.pid}", timeout_s)
        return code

    def stands_still(self) -> bool:
        """Whether a signal has stopped it."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def _look(self, timeout_s: float) -> int | None:
        if self.returncode is None and select.select([self._descriptor], [], [], timeout_s)[0]:
            codes = {signal.SIGKILL: -9, signal.SIGTERM: 0}
            self.returncode = codes.get(self._sent, 1)  # type: ignore[call-overload]
            os.close(self._descriptor)
        return self.returncode


class Nursery:
    """The process to be copied. close() ends it and what it started."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def spawn(self, arguments: list[str], log: Path) -> Born:
        """arguments: of tests.engine.faulty_engine."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([arguments, str(log)]) + "\n")
        self._process.stdin.flush()
        return Born(int(self._process.stdout.readline()))

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        self._process.wait(30)


def main() -> None:
    from tests.engine import faulty_engine

    assert threading.active_count() == 1, "a process with threads must not be copied"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for them
    born: list[int] = []
    for line in sys.stdin:
        arguments, log = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _live(faulty_engine.main, arguments, log)
        born.append(os.pidfd_open(pid))
        print(pid, flush=True)
    for descriptor in born:
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended


def _live(run: Callable[[list[str]], None], arguments: list[str], log: str) -> None:
    """The copy's own life; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for here, there in ((nothing, 0), (target, 1), (target, 2)):
            os.dup2(here, there)
        run(arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
