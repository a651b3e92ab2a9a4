"""The `evctl` command as somebody types it, with directories of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

FILE = """\
name: sys
nodes: 3
split: 2P1D
warm_up_s: 0
model: random-4l256
l1_tokens: 4096
gateway: {port: 0}
"""


class Shell:
    """A directory with one cluster file, NAME.yaml.

    A call runs a process and checks its exit code; `json` reads what it wrote to stdout.
    """

    def __init__(self, folder: Path, text: str = FILE, name: str = "sys") -> None:
        self.folder = folder
        self.name = name
        self.file = folder / f"{name}.yaml"
        self.file.write_text(text)
        path = [str(ROOT), str(ROOT / "engine"), str(ROOT / "kernels")]
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CONFIG_HOME": str(folder / "config"),
        }

    def __call__(self, command: str, code: int = 0) -> str:
        result = subprocess.run(
            [sys.executable, "-m", "evctl.cli", *command.split()],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert result.returncode == code, f"{command}: {result.stdout}{result.stderr}"
        return result.stdout

    def json(self, command: str, code: int = 0) -> dict[str, Any]:
        return json.loads(self(f"{command} -o json", code))

    @property
    def state(self) -> Path:
        return self.folder / "state" / "evctl" / "clusters" / self.name

    def pid(self, unit: str) -> int:
        """Of `control` or of a node."""
        record = "control.json" if unit == "control" else f"nodes/{unit}.json"
        return int(json.loads((self.state / record).read_text())["pid"])

    def status_until(
        self, true: Callable[[dict[str, Any]], object], what: str, timeout_s: float
    ) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.json("status")
            if true(status):
                return status
            assert time.monotonic() < deadline, f"no {what} within {timeout_s} s: {status}"

    def end(self) -> None:
        """Whatever is left of the cluster ends."""
        if self.state.exists():
            self("down -y --drain-timeout 0")


def node_of(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next(node for node in status["nodes"] if node["name"] == name)
