"""One engine process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from evctl.core.errors import EvctlError
from evctl.wire.keys import KeyPair
from evctl.wire.messages import Heartbeat, Hello

STOP_S = 10.0
LOG_CHARACTERS = 4000


class EngineFailedError(EvctlError):
    """An engine ended, or did not do what was asked of it in time. reason: the code of the error
    that it ended with, "" where it named none."""

    def __init__(self, what: str, why: str, *, reason: str = "", log: str = "") -> None:
        super().__init__(
            what=what,
            why=why,
            next_step="the engine's log says more" + (f":\n{log}" if log else ""),
            code="EV-1636",
        )
        self.reason = reason


class Node:
    """An engine of a Driver. hello: of its present life; None until it has said it."""

    def __init__(
        self, name: str, keypair: KeyPair, config_path: Path, entry: Sequence[str]
    ) -> None:
        self.name = name
        self.keypair = keypair
        self.config_path = config_path
        self.entry = list(entry)
        self.process: subprocess.Popen[bytes] | None = None
        self.hello: Hello | None = None
        self.connection = b""
        self.heartbeat: Heartbeat | None = None
        self.log_path = config_path.with_suffix(".log")

    def spawn(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.entry, "--config", str(self.config_path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def known(self) -> Hello:
        """Its Hello. Raises EngineFailedError before it has said it."""
        if self.hello is None:
            raise EngineFailedError(f"engine {self.name} is not there", "it has not said Hello")
        return self.hello

    def check_alive(self) -> None:
        """Raises EngineFailedError if it ended by itself."""
        if self.process is None or self.process.poll() in (None, 0, -9):
            return
        log = self.log()
        why, reason = f"exit code {self.process.returncode}", ""
        for line in log.splitlines():
            if line.startswith("error["):
                reason = line.partition("[")[2].partition("]")[0]
            elif line.strip().startswith("why:"):
                why = line.strip().removeprefix("why:").strip()
        raise EngineFailedError(f"engine {self.name} ended", why, reason=reason, log=log)

    def stop(self) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(STOP_S)

    def log(self) -> str:
        """Its end."""
        return self.log_path.read_text()[-LOG_CHARACTERS:] if self.log_path.exists() else ""
