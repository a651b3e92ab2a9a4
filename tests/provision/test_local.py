"""The local driver: its files, its processes, and those of others."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import zmq

from evctl.core.errors import ConflictError, EvctlError
from evctl.provision.local import LocalDriver
from tests.provision.conftest import PROGRAMS, Cluster, config, what

pytestmark = pytest.mark.system


def test_files_are_for_their_owner_only(cluster: Cluster) -> None:
    cluster.up()
    root = cluster.driver.directory
    assert len((root / "kv.secret").read_bytes()) == 32
    for path in [root, *root.rglob("*")]:
        if path.name == "admin.sock" or path.suffix in (".boot",):
            continue  # made by the stand-ins
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600) or path.name == "control.json", path


def test_engines_get_a_configuration_that_they_accept(cluster: Cluster) -> None:
    from evctl.wire.keys import load_keypair, to_z85
    from evengine.config import load_config

    cluster.up(config(l1_tokens=4096, l2_tokens=1024, chunk_tokens=64, max_running=7, ranks=2))
    root = cluster.driver.directory
    engine = load_config(root / "nodes" / "n2.config.json")
    assert (engine.cluster, engine.node, engine.l1_blocks, engine.l2_blocks) == (
        "c",
        "n2",
        256,
        64,
    )
    assert (engine.limits.chunk_tokens, engine.limits.max_running, engine.ranks) == (64, 7, 2)
    assert engine.control_endpoint == "tcp://127.0.0.1:1"
    assert engine.control_public_key == to_z85(load_keypair(root / "control.key").public)
    pair = load_keypair(Path(engine.keypair))
    assert (root / "keys" / "n2.pub").read_text().strip() == to_z85(pair.public)


def test_keys_and_secret_stay(cluster: Cluster) -> None:
    cluster.up()
    root = cluster.driver.directory
    names = ["kv.secret", "control.key", "keys/n1.key"]
    before = [(root / name).read_bytes() for name in names]
    (root / "keys" / "n1.pub").unlink()
    cluster.down()
    assert what(cluster.up())[0] == ("create", "files")
    assert [(root / name).read_bytes() for name in names] == before


def test_a_process_of_somebody_else_is_never_touched(cluster: Cluster) -> None:
    cluster.up()
    cluster.kill("n1")
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        try:
            record = cluster.driver.directory / "nodes" / "n1.json"
            said = json.loads(record.read_text())
            start_time = psutil.Process(stranger.pid).create_time()
            # The pid came round again; then even with the very same start time.
            for stolen in (said["start_time"], start_time):
                record.write_text(json.dumps({**said, "pid": stranger.pid, "start_time": stolen}))
                assert not cluster.driver.is_running("n1")
                assert cluster.driver.stop("n1", 1.0) is False
            assert what(cluster.up()) == [("start", "n1")]
            cluster.down()
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_change_holds_the_cluster(cluster: Cluster) -> None:
    with cluster.driver.locked("up"):
        with pytest.raises(ConflictError) as raised, LocalDriver("c", PROGRAMS).locked("down"):
            pass
        assert raised.value.code == "EV-1712"
        assert str(os.getpid()) in raised.value.why
    with LocalDriver("c", PROGRAMS).locked("down"):
        pass


def test_purge_leaves_nothing(cluster: Cluster) -> None:
    cluster.up()
    result = cluster.down(purge=True)
    assert (result.drained, result.purged) == (True, True)
    assert not cluster.driver.directory.exists()


def test_logs_are_read_forward_and_followed(cluster: Cluster, tmp_path: Path) -> None:
    cluster.up()
    log = cluster.driver.open_log("n1")
    assert len(log.tail(5)) == 1
    path = cluster.driver.directory / "logs" / "n1.jsonl"
    with path.open("a") as file:
        file.write("half")
        file.flush()
        assert log.read_new() == []
        file.write(" a line\nanother\n")
    assert log.read_new() == ["half a line", "another"]
    path.write_text("new\n")
    assert log.read_new() == ["new"]
    assert log.tail(0) == []


def running_with(path: Path) -> list[int]:
    """Processes of this machine that were started with that file or directory."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "status"]):
        lives = process.info["status"] != psutil.STATUS_ZOMBIE
        if lives and str(path) in (process.info["cmdline"] or []):
            found.append(process.info["pid"])
    return found


@pytest.mark.parametrize(
    "content", ["", "{}", '{"pid": null}', '{"pid": "x"}', '{"pid": -5}', "[" * 200_000, None]
)
def test_an_engine_without_a_record_is_found_recorded_and_ended(
    cluster: Cluster, content: str | None
) -> None:
    """An `up` that is killed after a start, and a damaged record, leave such a process."""
    cluster.up()
    root = cluster.driver.directory
    record, config_file = root / "nodes" / "n1.json", root / "nodes" / "n1.config.json"
    (pid,) = running_with(config_file)
    if content is None:
        record.unlink()
    else:
        record.write_text(content)
    assert cluster.driver.is_running("n1")
    assert what(cluster.up()) == [], "it runs: nothing is to be done"
    assert running_with(config_file) == [pid]
    assert json.loads(record.read_text())["pid"] == pid
    record.write_text(content or "")
    cluster.down()
    assert running_with(config_file) == []


def test_a_clock_that_was_set_hides_no_process(cluster: Cluster) -> None:
    cluster.up()
    for path in cluster.driver.directory.rglob("*.json"):
        said = json.loads(path.read_text())
        if "start_time" in said:
            path.write_text(json.dumps({**said, "start_time": said["start_time"] - 3.0}))
    assert what(cluster.up()) == []
    cluster.down()
    assert running_with(cluster.driver.directory / "nodes" / "n1.config.json") == []


def test_a_control_plane_whose_files_are_damaged_is_found_and_ended(cluster: Cluster) -> None:
    cluster.up()
    root = cluster.driver.directory
    (root / "control.json").write_text("")
    (root / "control.launch.json").write_text('{"pid": {}}')
    assert cluster.driver.is_running("control")
    cluster.down()
    assert running_with(root) == []


def test_an_engine_that_cannot_be_recorded_does_not_stay(cluster: Cluster) -> None:
    cluster.up()
    root = cluster.driver.directory
    cluster.driver.stop("n1", 1.0)
    (root / "nodes" / "n1.json").unlink()
    (root / "nodes" / "n1.json").mkdir()
    with pytest.raises(EvctlError) as caught:
        cluster.driver.start_node(config(), "n1")
    assert caught.value.code == "EV-1716"
    assert running_with(root / "nodes" / "n1.config.json") == []
    assert not [path for path in root.rglob(".*") if path.is_file()], "a draft was left behind"


@pytest.mark.parametrize("name", ["control.key", "keys/n1.key", "keys/n1.pub", "control.pub"])
def test_damaged_keys_are_made_again(cluster: Cluster, name: str) -> None:
    cluster.up()
    root = cluster.driver.directory
    cluster.down()
    (root / name).write_text("garbage\n")
    assert ("create", "files") in what(cluster.up())
    for pair in ("control", "keys/n1"):
        public = zmq.curve_public((root / f"{pair}.key").read_bytes().strip())
        assert (root / f"{pair}.pub").read_bytes().strip() == public
