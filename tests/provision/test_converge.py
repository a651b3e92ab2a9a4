"""`up` and `down` through the local driver."""

from __future__ import annotations

import _thread
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evctl.core.errors import EvctlError
from evctl.provision.driver import CONTROL
from evctl.provision.plan import Step, plan_up
from tests.provision.conftest import Cluster, config, what

pytestmark = pytest.mark.system


def test_up_starts_all_and_a_second_changes_nothing(cluster: Cluster) -> None:
    first = cluster.up()
    assert what(first) == [
        ("create", "files"),
        ("fetch", "model"),
        ("start", "control"),
        ("start", "n1"),
        ("start", "n2"),
        ("start", "n3"),
    ]
    assert first.exit_code == 0
    assert first.status is not None
    assert [node.state for node in first.status.nodes] == ["ok"] * 3
    pids = {unit.name: unit.pid for unit in cluster.driver.units()}
    second = cluster.up()
    assert what(second) == []
    assert second.exit_code == 0
    assert {unit.name: unit.pid for unit in cluster.driver.units()} == pids
    assert cluster.down().stopped == ("control", "n1", "n2", "n3")
    assert cluster.down().stopped == ()
    assert what(cluster.up())[0] == ("start", "control")


def test_up_heals_a_killed_node_and_nothing_else(cluster: Cluster) -> None:
    cluster.up()
    others = [cluster.pid(name) for name in ("control", "n1", "n3")]
    cluster.kill("n2")
    healed = cluster.up()
    assert what(healed) == [("start", "n2")]
    assert healed.exit_code == 0
    assert [cluster.pid(name) for name in ("control", "n1", "n3")] == others


def test_up_heals_a_killed_control_plane_and_engines_survive(cluster: Cluster) -> None:
    first = cluster.up()
    engines = [cluster.pid(name) for name in ("n1", "n2", "n3")]
    cluster.kill(CONTROL)
    healed = cluster.up()
    assert what(healed) == [("start", "control")]
    assert [cluster.pid(name) for name in ("n1", "n2", "n3")] == engines
    assert first.status is not None
    assert healed.status is not None
    assert healed.status.epoch == first.status.epoch + 1


def test_a_node_that_fails_does_not_hinder_the_others(cluster: Cluster) -> None:
    cluster.up()
    cluster.kill("n2")
    fail = cluster.driver.directory / "nodes" / "n2.config.fail"
    fail.touch()
    result = cluster.up()
    assert result.exit_code == 5
    assert set(result.failed) == {"n2"}
    assert "told to fail" in result.failed["n2"]
    assert cluster.driver.is_running("n1")
    fail.unlink()
    assert what(cluster.up()) == [("start", "n2")]


def test_a_refused_node_is_told_at_once_and_asks_again_at_the_next_up(cluster: Cluster) -> None:
    refused = cluster.driver.directory / "nodes" / "n2.config.refused"
    refused.parent.mkdir(parents=True)
    refused.write_text("")
    begun_s = time.monotonic()
    result = cluster.up(join_timeout_s=60)
    assert time.monotonic() - begun_s < 30, "nobody waits for the end of the time"
    assert result.exit_code == 5
    assert result.failed == {"n2": "it was refused: EV-1334: another model"}
    assert "n2" not in [node.name for node in result.status.nodes]  # type: ignore[union-attr]

    again = cluster.up(join_timeout_s=60)
    assert what(again) == [("restart", "n2")], "once: it is refused again"
    assert again.failed.keys() == {"n2"}

    refused.unlink()
    cluster.driver.stop("n2", 5.0)
    assert cluster.up().exit_code == 0


def test_it_is_no_partial_success_when_no_node_comes_up(cluster: Cluster) -> None:
    folder = cluster.driver.directory / "nodes"
    folder.mkdir(parents=True)
    for name in ("n1", "n2", "n3"):
        (folder / f"{name}.config.refused").write_text("")
    result = cluster.up(join_timeout_s=60)
    assert (result.exit_code, len(result.failed)) == (1, 3)


def test_a_control_plane_that_fails_says_why(cluster: Cluster) -> None:
    cluster.up()
    cluster.down()
    (cluster.driver.directory / "control.fail").touch()
    with pytest.raises(EvctlError) as raised:
        cluster.up()
    assert raised.value.code == "EV-1711"
    assert "no gateway for you" in raised.value.why
    assert any(report.state == "failed" for report in cluster.reports)


def test_a_model_that_cannot_be_fetched_says_why(cluster: Cluster) -> None:
    with pytest.raises(EvctlError) as raised:
        cluster.up(config(model="random-8l512"))
    assert (raised.value.code, raised.value.why) == ("EV-1713", "the index is away")


def test_a_changed_config_restarts_what_it_concerns(cluster: Cluster) -> None:
    cluster.up()
    wanted = config(l1_tokens=8192)
    changes = plan_up(wanted, cluster.driver.observe(wanted))
    assert [(c.action, c.unit, c.disruptive) for c in changes] == [
        ("update", "files", False),
        ("restart", "n1", True),
        ("restart", "n2", True),
        ("restart", "n3", True),
    ]
    assert "l1_blocks 1024 -> 512" in changes[1].why
    control = cluster.pid(CONTROL)
    assert [unit for _, unit in what(cluster.up(wanted))] == ["files", "n1", "n2", "n3"]
    assert cluster.pid(CONTROL) == control
    wanted = config(l1_tokens=8192, max_queued=9)
    assert ("restart", "control") in what(cluster.up(wanted))
    assert what(cluster.up(wanted)) == []


def test_nodes_come_and_go_with_the_config(cluster: Cluster) -> None:
    cluster.up()
    smaller = cluster.up(config(nodes=2, split="1P1D"))
    assert ("stop", "n3") in what(smaller)
    assert not cluster.driver.is_running("n3")
    assert what(cluster.up(config(nodes=2, split="1P1D"))) == []
    larger = cluster.up(config(nodes=4, split="2P2D"))
    assert {("start", "n3"), ("start", "n4")} <= set(what(larger))


def test_only_one_node(cluster: Cluster) -> None:
    result = cluster.up(only=("n2",))
    assert [unit for _, unit in what(result)] == ["files", "model", "control", "n2"]
    assert result.exit_code == 0
    assert not cluster.driver.is_running("n1")


@pytest.mark.parametrize("after", [1, 3, 5])
def test_an_interrupt_stops_after_the_step_and_up_goes_on(cluster: Cluster, after: int) -> None:
    def asked() -> bool:
        return sum(report.state == "done" for report in cluster.reports) >= after

    result = cluster.up(interrupted=asked)
    assert result.interrupted
    assert result.exit_code == 130
    assert len(result.changed) == after
    rest = cluster.up()
    assert len(rest.changed) == 6 - after
    assert rest.exit_code == 0


def test_a_node_that_does_not_join_in_time(cluster: Cluster) -> None:
    cluster.up()
    (cluster.driver.directory / "nodes" / "n1.config.boot").unlink()
    result = cluster.up(join_timeout_s=0.3)
    assert (result.exit_code, result.timed_out) == (6, True)
    late = [report for report in cluster.reports if report.state == "failed"]
    assert [report.unit for report in late] == ["n1"]


def test_progress_goes_step_by_step(cluster: Cluster) -> None:
    cluster.up()
    steps = [report.step for report in cluster.reports if report.unit == "n1"]
    assert steps == [Step.ENGINE, Step.ENGINE, Step.JOINED]
    assert any(report.text == "made it" for report in cluster.reports if report.unit == "model")


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def port_of(listener: socket.socket) -> int:
    return int(listener.getsockname()[1])


def test_a_port_that_must_be_had_and_is_taken_is_told_before_anything_stops(
    cluster: Cluster, taken: socket.socket
) -> None:
    cluster.up()
    control = cluster.pid(CONTROL)
    file = cluster.driver.directory / "cluster.json"
    before = file.read_bytes()
    strict = config(gateway={"port": port_of(taken), "port_strict": True})
    with pytest.raises(EvctlError) as raised:
        cluster.up(strict)
    assert raised.value.code == "EV-1371"
    assert str(port_of(taken)) in raised.value.why
    assert cluster.pid(CONTROL) == control
    assert file.read_bytes() == before
    taken.close()
    assert ("restart", "control") in what(cluster.up(strict))


def test_a_gateway_goes_back_to_its_port_once_that_is_free(
    cluster: Cluster, taken: socket.socket
) -> None:
    cluster.driver.directory.mkdir(parents=True)
    other = cluster.driver.directory / "control.port"
    other.write_text("40123")
    wanted = config(gateway={"port": port_of(taken)})
    cluster.up(wanted)
    assert what(cluster.up(wanted)) == [], "it is taken"
    taken.close()
    (change,) = plan_up(wanted, cluster.driver.observe(wanted))
    assert (change.action, change.unit, change.disruptive) == ("restart", "control", True)
    assert str(wanted.gateway.port) in change.why
    assert "40123" in change.why
    other.unlink()
    assert what(cluster.up(wanted)) == [("restart", "control")]
    assert what(cluster.up(wanted)) == []


def test_a_node_that_hangs_is_restarted(cluster: Cluster) -> None:
    cluster.up()
    hung = cluster.pid("n2")
    os.kill(hung, signal.SIGSTOP)
    begun_s = time.monotonic()
    result = cluster.up()
    assert what(result) == [("restart", "n2")]
    assert result.changed[0].disruptive
    assert result.changed[0].why == f"lost: silent for 31 s, though its process {hung} lives"
    assert result.exit_code == 0
    assert cluster.pid("n2") != hung
    assert time.monotonic() - begun_s < 15, "it is woken to end"


def test_why_a_control_plane_did_not_start_is_told_once_and_in_words(cluster: Cluster) -> None:
    cluster.up()
    cluster.down()
    told = EvctlError(what="no gateway", why="port 9: taken", next_step="free it", code="EV-1371")
    line = '{"time_s": 1, "level": "error", "message": "no gateway: port 9: taken"}'
    (cluster.driver.directory / "control.fail").write_text(f"{line}\n{told.render()}")
    cluster.reports.clear()
    with pytest.raises(EvctlError) as raised:
        cluster.up()
    assert raised.value.why == "no gateway: port 9: taken (EV-1371)"
    assert raised.value.next_step == "free it"
    (failed,) = [report for report in cluster.reports if report.state == "failed"]
    assert failed.text == "control did not start"


def test_the_files_are_made_once_and_then_updated(cluster: Cluster) -> None:
    assert what(cluster.up())[0] == ("create", "files")
    changed = cluster.up(config(gateway={"port": 9}))
    assert what(changed)[0] == ("update", "files")
    assert changed.changed[0].why == "config (gateway.port 8080 -> 9)"


def test_an_interrupt_while_it_drains_calls_the_stop_off(cluster: Cluster) -> None:
    cluster.up()
    (cluster.driver.directory / "control.busy").touch()
    asked = iter([False])  # at the first look nothing drains yet
    result = cluster.down(interrupted=lambda: next(asked, True))
    assert (result.stopped, result.interrupted, result.serves) == ((), True, True)
    assert (cluster.driver.directory / "control.called-off").exists()
    assert all(cluster.driver.is_running(unit) for unit in (CONTROL, "n1", "n2", "n3"))
    assert cluster.driver.down_since_s() is None
    (cluster.driver.directory / "control.busy").unlink()
    assert cluster.down().stopped == (CONTROL, "n1", "n2", "n3")


def test_a_cluster_that_was_stopped_says_so_until_it_is_started(cluster: Cluster) -> None:
    cluster.up()
    assert cluster.driver.down_since_s() is None
    cluster.down()
    since_s = cluster.driver.down_since_s()
    assert since_s is not None
    assert abs(time.time() - since_s) < 30
    cluster.up()
    assert cluster.driver.down_since_s() is None


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C works even where whoever started the tests had it ignored (a job in background)."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_up_waits_for_a_control_plane_that_another_up_left_starting(cluster: Cluster) -> None:
    """As after two Ctrl-C: its process runs, and it has not said yet where it listens."""
    slow = cluster.driver.directory / "control.slow"
    slow.parent.mkdir(parents=True)
    slow.touch()
    launched = cluster.driver.directory / "control.launch.json"
    interrupter = threading.Thread(target=_interrupt_when_there, args=(launched,))
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        cluster.up()
    interrupter.join()
    assert not (cluster.driver.directory / "control.json").exists()
    assert cluster.driver.is_running(CONTROL)
    later = threading.Timer(0.5, slow.unlink)
    later.start()
    rest = cluster.up()
    later.join()
    assert [unit for _, unit in what(rest)] == ["n1", "n2", "n3"]
    assert rest.exit_code == 0


def _interrupt_when_there(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    _thread.interrupt_main()
