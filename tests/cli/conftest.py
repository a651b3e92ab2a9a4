"""A home of its own for each test, commands run in this process, and a cluster that is a fake
admin server with a state directory."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_socket

from evctl.cli.main import main
from evctl.config.paths import cluster_dir
from tests.client.fake_admin import FakeAdmin

CLUSTER_FILE = """\
name: local
nodes: 3
split: 2P1D
model: random-4l256
"""


@dataclass
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, object]:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, a working directory with clusters/local.yaml, a plain terminal."""
    pytest_socket.socket_allow_hosts(["127.0.0.1", "::1"], allow_unix_socket=True)
    for variable in [name for name in os.environ if name.startswith("EVCTL_")]:
        if variable not in ("EVCTL_SHARED", "EVCTL_UPDATE_GOLDEN"):
            monkeypatch.delenv(variable)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    for name in ("STATE", "CACHE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    work = tmp_path / "work"
    (work / "clusters").mkdir(parents=True)
    (work / "clusters" / "local.yaml").write_text(CLUSTER_FILE)
    monkeypatch.chdir(work)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def write_state(name: str, socket_path: Path, **config: object) -> Path:
    """A state directory as `up` leaves it, of processes that have ended."""
    folder = cluster_dir(name)
    (folder / "nodes").mkdir(parents=True)
    (folder / "logs").mkdir()
    (folder / "keys").mkdir()
    nodes = [{"name": f"n{i}"} for i in (1, 2, 3)]
    (folder / "cluster.json").write_text(json.dumps({"name": name, "nodes": nodes, **config}))
    gone = {"pid": 2**22 + 1, "start_time": 1.0}
    admin = {**gone, "admin": str(socket_path), "control_endpoint": "tcp://127.0.0.1:1"}
    (folder / "control.json").write_text(json.dumps(admin))
    for node in nodes:
        (folder / "nodes" / f"{node['name']}.json").write_text(json.dumps(gone))
    return folder


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeAdmin]:
    """One for all tests: ending it takes 0.2 s."""
    server = FakeAdmin(tmp_path_factory.mktemp("fake") / "admin.sock").start()
    yield server
    server.stop()


@pytest.fixture
def fake(home: Path, server: FakeAdmin) -> FakeAdmin:
    """Cluster `local`, whose control plane is this server and whose engines have ended."""
    server.reset()
    write_state("local", server.path)
    return server
