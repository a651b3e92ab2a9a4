"""The evctl-control process: `python -m evctl.serve` over real engines, killed and restarted."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
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

    def __init__(self, root: Path, **config: Any) -> None:
        from evengine.models.store import ensure_model

        self.root = root
        model = ensure_model("random-4l256")
        make_state(root, model_directory=model, nodes=2, split="1P1D")
        values = {"name": "test", "nodes": 2, "split": "1P1D", "gateway": {"port": 0}, **config}
        written = ClusterConfig(model="random-4l256", **values)
        (root / "cluster.json").write_text(written.model_dump_json())
        self.engines = Engines(root, model, 256)
        self.process: subprocess.Popen[bytes] | None = None
        self.client: AdminClient | None = None

    def start_control(self, descriptors: int = 0) -> dict[str, Any]:
        """descriptors: all that it may have, if any such limit is wanted."""

        def limit() -> None:
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors // 2, descriptors))

        if self.process is not None:
            self.process.wait(20)
        with (self.root / "logs" / "control.jsonl").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "evctl.serve", "--cluster-dir", str(self.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=limit,
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


def test_idle_connections_cost_others_nothing_but_their_turn(served: Served) -> None:
    record = served.start_control(descriptors=512)
    assert served.process is not None
    assert served.client is not None
    limits = psutil.Process(served.process.pid).rlimit(psutil.RLIMIT_NOFILE)
    assert limits == (512, 512), "the soft limit is raised to the hard one"
    host, port = record["gateway"].removeprefix("http://").split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(900)]
    try:
        until_s = time.monotonic() + 3.0
        while time.monotonic() < until_s:
            served.client.status()
            time.sleep(0.1)
        assert psutil.Process(served.process.pid).num_fds() < 500
        wait_for(lambda: _answers(record["gateway"]), 15, served.log)
    finally:
        for connection in idle:
            connection.close()
    assert served.process.poll() is None
    assert "crashed" not in served.log()
    assert (served.root / "logs" / "control.jsonl").stat().st_size < 20_000
    told = [line for line in served.log().splitlines() if "turned away" in line]
    assert len(told) == 1


def _answers(gateway: str) -> bool:
    try:
        return httpx.get(gateway + "/healthz", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_control_plane_that_stood_still_goes_on_with_its_requests(tmp_path: Path) -> None:
    """Longer than node_lost_after_s, and longer than the wire waits between engines."""
    served = Served(tmp_path / "state", node_late_after_s=1, node_lost_after_s=3)
    try:
        record = served.start_control()
        assert served.process is not None
        for name in ("n1", "n2"):
            served.engines.start(name, record["control_endpoint"])
        wait_for(served.joined, START_TIMEOUT_S, served.log)
        found: list[list[int]] = []
        asking = threading.Thread(
            target=lambda: found.append(served.complete(list(range(50)), max_tokens=1_000))
        )
        asking.start()
        assert served.client is not None
        wait_for(lambda: served.client.status().decode.running, 30, served.log)  # type: ignore[union-attr]
        os.kill(served.process.pid, signal.SIGSTOP)
        try:
            time.sleep(13.0)
        finally:
            os.kill(served.process.pid, signal.SIGCONT)
        asking.join(100)
        assert [len(tokens) for tokens in found] == [1_000], served.log()
        assert not [e.what for e in served.client.events(since=0) if e.what.startswith("lost")]
    finally:
        served.close()
