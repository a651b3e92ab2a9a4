"""A cluster of its own, in directories of its own, started by the command that people use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec

from evctl.client import AdminClient
from evctl.core.errors import EvctlError
from evctl.core.status import ClusterStatus

START_TIMEOUT_S: Final = 300.0
LAST_WORDS: Final = 1500
"""Of what a command that failed said."""


class Testbed:
    """Up while it is entered; then nothing of it is left but its folder.

    folder: empty, of whoever calls; it gets the cluster file, state and logs. config: keys of a
    cluster file, without its name.
    """

    __test__ = False  # not a test class, though its name begins like one

    def __init__(self, folder: Path, config: dict[str, Any], name: str = "bench") -> None:
        self.folder = folder
        self.name = name
        self._file = folder / f"{name}.json"
        values = {"name": name, "allow_replay": True, "gateway": {"port": 0}, **config}
        self._file.write_bytes(msgspec.json.encode(values))  # JSON is YAML
        self._environment = {
            **os.environ,
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }
        self._admin: AdminClient | None = None

    @property
    def admin(self) -> AdminClient:
        """Its admin API, while it is up."""
        if self._admin is None:
            path = self.journal.parent / "control.json"
            said = msgspec.json.decode(path.read_bytes())
            self._admin = AdminClient(Path(str(said["admin"])))
        return self._admin

    @property
    def journal(self) -> Path:
        """The folder of its journal."""
        return self._state / "journal"

    @property
    def times(self) -> Path:
        """The folder of the execution-time models that it learned."""
        return self._state / "times"

    @property
    def _state(self) -> Path:
        return self.folder / "state" / "evctl" / "clusters" / self.name

    def status(self) -> ClusterStatus:
        return self.admin.status()

    def command(self, *words: str) -> str:
        """Run evctl on it; what it wrote. Raises EvctlError (EV-1644) when it failed."""
        done = subprocess.run(
            [sys.executable, "-m", "evctl.cli", *words],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise EvctlError(
                what=f"evctl {words[0]} failed on the cluster of this bench",
                why=f"exit {done.returncode}: {(done.stderr or done.stdout)[-LAST_WORDS:]}",
                next_step="mend what it says, then repeat the bench",
                code="EV-1644",
            )
        return done.stdout

    def __enter__(self) -> Testbed:
        try:
            self.command("up", str(self._file))
        except BaseException:
            self._down()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._admin is not None:
            self._admin.close()
        self._down()

    def _down(self) -> None:
        if (self._state / "control.json").exists() or self.journal.exists():
            self.command("down", self.name, "-y", "--drain-timeout", "0")
