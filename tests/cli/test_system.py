"""The commands on a real cluster: three engines and a control plane on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.live.shell import Shell, node_of
from tests.live.test_kill import wait_for
from tests.live.traffic import Answer, complete

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.end()


def test_the_life_of_a_cluster(shell: Shell) -> None:
    up = shell.json("up sys.yaml")
    assert (up["changed"], up["failed"]) == (6, {})

    status = shell.json("status")  # the only cluster here, so it need not be named
    assert status["apiVersion"] == "evctl/v1"
    assert {"cluster", "gateway", "admin", "split", "mode", "generation"} <= status.keys()
    assert (status["cluster"], status["split"]) == ("sys", "2P1D")
    assert status["gateway"].startswith("http://127.0.0.1:")
    wanted = {"name", "role", "state", "boot_id", "queue", "running", "l1", "l2"}
    assert all(wanted <= node.keys() for node in status["nodes"])
    assert [node["role"] for node in status["nodes"]] == ["P", "P", "D"]

    assert shell.json("up sys.yaml")["changed"] == 0

    os.kill(shell.pid("n2"), signal.SIGKILL)
    seen = shell.status_until(lambda s: node_of(s, "n2")["state"] != "ok", "loss of n2", 10.0)
    assert node_of(seen, "n1")["state"] == "ok"
    healed = shell.json("up sys")
    assert [change["unit"] for change in healed["changes"]] == ["n2"]
    assert node_of(shell.json("status"), "n2")["state"] == "ok"

    engines = [shell.pid(f"n{i}") for i in (1, 2, 3)]
    os.kill(shell.pid("control"), signal.SIGKILL)
    assert shell.json("status", code=4)["error"]["code"] == "EV-1401"
    back = shell.json("up sys.yaml")
    assert [change["unit"] for change in back["changes"]] == ["control"]
    assert [shell.pid(f"n{i}") for i in (1, 2, 3)] == engines

    shell("split set 1P2D", code=8)
    change = shell.json("split set 1P2D -y")
    assert (change["before"], change["after"], change["applied"]) == ("2P1D", "1P2D", True)
    settled = shell.status_until(lambda s: s["split"] == "1P2D", "settled split", 20.0)
    assert settled["mode"] == "hold"
    assert shell.json("split set 2P1D -y", code=8)["error"]["code"] == "EV-1352"
    shell("split set 2P1D -y --force")
    assert shell.json("up sys.yaml")["changed"] == 0, "a held split is no drift"

    assert "joined" in shell("logs --tail 50")
    assert "ready" in shell("logs n1")
    pids = [*engines, shell.pid("control")]
    down = shell.json("down -y")
    assert down["units"] == ["control", "n1", "n2", "n3"]
    assert not any(map(is_alive, pids))
    assert shell.json("down -y")["count"] == 0


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_while_requests_finish_lets_the_cluster_serve_on(
    shell: Shell, presses: int
) -> None:
    url = shell.json("up sys.yaml")["gateway"]
    answer = Answer(0)
    stream = threading.Thread(target=complete, args=(url, "a long story", 1500, answer))
    stream.start()
    try:
        wait_for(lambda: answer.pieces, "a stream")
        with subprocess.Popen(
            [sys.executable, "-m", "evctl.cli", "down", "-y"],
            cwd=shell.folder,
            env=shell.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as process:
            assert process.stderr is not None
            begun = next(line for line in process.stderr if "drains" in line)
            for _ in range(presses):
                process.send_signal(signal.SIGINT)
                time.sleep(0.05)
            output, errors = process.communicate(timeout=60)
        assert process.returncode == 130, begun + output + errors
        assert "serves on, nothing was stopped" in errors
        assert "0 stopped" in output
        assert complete(url, "another one", 4).ok, "requests are taken again"
        assert not answer.ended_s, "the stream was over before: it showed nothing"
    finally:
        stream.join(120)
    assert answer.ok, (answer.error, answer.broken, answer.pieces)
    assert [node["state"] for node in shell.json("status")["nodes"]] == ["ok"] * 3
    shell("down -y")
    gone = shell.json("status", code=4)["error"]
    assert gone["what"] == "cluster sys is down"


def test_what_has_not_joined_is_starting_and_what_hangs_is_restarted(shell: Shell) -> None:
    shell("up sys.yaml --only n1 --only n2")
    states = {n["name"]: n["state"] for n in shell.json("status")["nodes"]}
    assert states == {"n1": "ok", "n2": "ok", "n3": "absent"}
    plan = shell.json("up sys --plan")
    assert [change["unit"] for change in plan["changes"]] == ["n3"]
    late = shell.json("up sys --join-timeout 0.01", code=6)
    assert {n["name"]: n["state"] for n in late["nodes"]}["n3"] == "starting"
    assert shell.json("up sys --plan")["joining"] in (["n3"], []), "it may have joined by now"
    shell("up sys")

    file = shell.file.read_text()
    shell.file.write_text(file + "node_late_after_s: 1\nnode_lost_after_s: 2\n")
    shell("up sys.yaml -y")
    hung = shell.pid("n2")
    os.kill(hung, signal.SIGSTOP)
    shell.status_until(lambda s: node_of(s, "n2")["state"] == "lost", "loss of n2", 20.0)
    plan = shell.json("up sys --plan")
    assert [(c["action"], c["unit"]) for c in plan["changes"]] == [("restart", "n2")]
    assert f"its process {hung} lives" in plan["changes"][0]["why"]
    shell("up sys", code=8)
    assert [c["unit"] for c in shell.json("up sys -y")["changes"]] == ["n2"]
    assert node_of(shell.json("status"), "n2")["state"] == "ok"


def test_ctrl_c_leaves_a_cluster_that_up_finishes(shell: Shell) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "evctl.cli", "up", "sys.yaml"],
        cwd=shell.folder,
        env=shell.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("control") and "started" in line:
                process.send_signal(signal.SIGINT)
                break
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, output + errors
    assert "changed" in output
    rest = shell.json("up sys.yaml")
    assert rest["failed"] == {}
    assert [node["state"] for node in rest["nodes"]] == ["ok"] * 3
    shell("down -y --purge --confirm sys")
    assert not shell.state.exists()
