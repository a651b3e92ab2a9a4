"""The evctl-control process: `python -m evctl.serve` over real engines, killed and restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evctl.client.admin import AdminClient
from evctl.config.cluster import ClusterConfig
from evctl.control.replay import replay
from evctl.core.errors import EvctlError
from tests.control.real_engines import START_TIMEOUT_S, Engines
from tests.control.state import make_state

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


class Served:
    """A cluster of two nodes, served by a process."""

    def __init__(self, root: Path) -> None:
        from evengine.models.store import ensure_model

        self.root = root
        model = ensure_model("random-4l256")
        make_state(root, model_directory=model, nodes=2, split="1P1D")
        config = ClusterConfig(
            name="test", nodes=2, split="1P1D", model="random-4l256", gateway={"port": 0}
        )
        (root / "cluster.json").write_text(config.model_dump_json())
        self.engines = Engines(root, model, 256)
        self.process: subprocess.Popen[bytes] | None = None
        self.client: AdminClient | None = None

    def start_control(self) -> dict[str, Any]:
        if self.process is not None:
            self.process.wait(20)
        with (self.root / "logs" / "control.jsonl").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "evctl.serve", "--cluster-dir", str(self.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        wait_for(lambda: self.record().get("pid") == self.process.pid, 30, self.log)  # type: ignore[union-attr]
        if self.client is not None:
            self.client.close()
        self.client = AdminClient(Path(self.record()["admin"]))
        return self.record()

    def record(self) -> dict[str, Any]:
        path = self.root / "control.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def log(self) -> str:
        return (self.root / "logs" / "control.jsonl").read_text()[-3000:]

    def joined(self) -> bool:
        try:
            return [node.state for node in self.client.status().nodes] == ["ok", "ok"]
        except EvctlError:
            return False

    def complete(self, prompt: list[int], max_tokens: int = 8) -> list[int]:
        answer = httpx.post(
            self.record()["gateway"] + "/v1/completions",
            json={
                "model": "random-4l256",
                "prompt": prompt,
                "max_tokens": max_tokens,
                "temperature": 0,
                "ignore_eos": True,
                "return_token_ids": True,
            },
            timeout=60,
        )
        assert answer.status_code == 200, answer.text
        found: list[int] = answer.json()["choices"][0]["token_ids"]
        return found

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
        if self.process is not None:
            self.process.wait(20)
        self.engines.stop()


def wait_for(true: Callable[[], object], timeout_s: float, log: Callable[[], str]) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > deadline_s:
            raise TimeoutError(log())
        time.sleep(0.05)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "state")
    yield made
    made.close()


def test_engines_outlive_the_control_plane(served: Served) -> None:
    first = served.start_control()
    assert first["epoch"] == 1
    for name in ("n1", "n2"):
        served.engines.start(name, first["control_endpoint"])
    wait_for(served.joined, START_TIMEOUT_S, served.log)
    boots = [node.boot_id for node in served.client.status().nodes]
    prompt = list(range(100))
    wanted = served.complete(prompt)
    assert len(wanted) == 8
    assert httpx.get(first["gateway"] + "/readyz").status_code == 200

    assert served.process is not None
    os.kill(served.process.pid, signal.SIGKILL)
    second = served.start_control()
    assert second["epoch"] == 2
    assert second["control_endpoint"] == first["control_endpoint"]
    assert second["gateway"] == first["gateway"]
    wait_for(served.joined, 20, served.log)
    assert [node.boot_id for node in served.client.status().nodes] == boots
    assert served.complete(prompt) == wanted
    client = served.client
    assert client is not None
    wait_for(lambda: client.status().requests_done == 1, 5, served.log)

    client.stop(drain=True)
    assert served.process.wait(20) == 0, served.log()
    assert all(process.poll() is None for process in served.engines.processes.values())
    assert replay(served.root / "journal").equal
    assert not Path(second["admin"]).exists()


def test_sigterm_ends_it_cleanly_and_a_bad_directory_is_told(served: Served) -> None:
    served.start_control()
    assert served.process is not None
    served.process.terminate()
    assert served.process.wait(20) == 0, served.log()
    done = subprocess.run(
        [sys.executable, "-m", "evctl.serve", "--cluster-dir", str(served.root / "nowhere")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3
    assert "error[EV-1302]" in done.stderr
    assert done.stdout == ""
