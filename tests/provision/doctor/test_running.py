"""Real processes with real sockets, and real ports of the real library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import pytest_socket

from evctl.config.paths import cluster_dir
from evctl.provision.doctor.facts import Facts, Subject
from evctl.provision.doctor.gathering import gather
from evctl.provision.doctor.judgement import judge
from evctl.provision.doctor.library import PORTS_EACH, library_ports
from evctl.provision.doctor.processes import listening_sockets
from evctl.provision.doctor.report import Check, Level
from tests.provision.conftest import config

LISTENER = """
import socket, sys
sockets = [socket.create_server((host, 0)) for host in sys.argv[1].split(",")]
print(*(one.getsockname()[1] for one in sockets), flush=True)
sys.stdin.read()
"""
LIBRARY = """
import sys
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster's state, in which nothing is recorded."""
    pytest_socket.socket_allow_hosts(["127.0.0.1"], allow_unix_socket=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    path = cluster_dir("c")
    (path / "nodes").mkdir(parents=True)
    return path


@pytest.fixture
def engine(folder: Path) -> Iterator[tuple[int, list[int]]]:
    """Node n1: a process with its channel and a port on all interfaces. Its pid and ports."""
    path = folder / "nodes" / "n1.config.json"
    path.write_text(json.dumps({"transfer": "mooncake", "listen_host": "127.0.0.1"}))
    command = [sys.executable, "-c", LISTENER, "127.0.0.1,0.0.0.0", "--config", str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ports = [int(word) for word in process.stdout.readline().split()]
        record = {"pid": process.pid, "start_time": psutil.Process(process.pid).create_time()}
        (folder / "nodes" / "n1.json").write_text(json.dumps(record))
        yield process.pid, ports
        process.kill()


def checks_of(facts: Facts) -> dict[str, Check]:
    wanted = config(transfer="mooncake")
    found = judge(Subject(wanted, "c.yaml", wanted.node_names, facts))
    return {check.name: check for check in found}


@pytest.mark.system
def test_a_port_on_all_interfaces_is_told_with_its_rules(
    engine: tuple[int, list[int]], tmp_path: Path
) -> None:
    pid, (channel, data) = engine
    facts = gather(config(transfer="mooncake"), ("n1", "n2"), tmp_path)
    assert [(one.unit, one.pid, one.segment) for one in facts.engines] == [("n1", pid, "")]
    found = checks_of(facts)
    assert f"n1 127.0.0.1:{channel} for its peers" in found["channels"].found
    ports = found["data-ports"]
    assert f"n1 0.0.0.0:{data}" in ports.found
    assert str(channel) not in ports.found
    if facts.addresses:  # a machine with nothing but loopback has nothing to shut
        assert ports.level in (Level.WARN, Level.FAIL)
        assert f"    tcp dport {{ 15000-17000, {data} }} drop" in ports.lines


@pytest.mark.system
def test_looking_changes_nothing(
    engine: tuple[int, list[int]], folder: Path, tmp_path: Path
) -> None:
    def state() -> list[tuple[str, int]]:
        return [(str(p), p.stat().st_mtime_ns) for p in sorted(folder.rglob("*"))]

    (folder / "nodes" / "n1.json").unlink()  # a stray, which `up` would take on
    before = state()
    facts = gather(config(), ("n1", "n2", "n3"), tmp_path)
    assert [one.unit for one in facts.engines] == [], "nobody recorded it"
    assert state() == before


@pytest.mark.netns
@pytest.mark.parametrize("said", ["", "17101-17110", "40000-40010", "61000-61009"])
def test_the_library_takes_its_ports_from_the_range(said: str) -> None:
    environment = {**os.environ, "MC_FORCE_TCP": "1", "MC_LOG_LEVEL": "ERROR"}
    if said:
        low, high = said.split("-")
        environment |= {"MC_MIN_RPC_PORT": low, "MC_MAX_RPC_PORT": high}
    with subprocess.Popen(
        [sys.executable, "-c", LIBRARY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        sockets = listening_sockets(process.pid)
        process.kill()
    assert sockets is not None
    assert len(sockets) == PORTS_EACH
    assert all(one.on_all_interfaces for one in sockets), "else say so in the documents"
    expected = library_ports(environment)
    assert all(expected.first <= one.port <= expected.last for one in sockets)
