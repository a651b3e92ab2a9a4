"""What a failure or a result advises can be pasted: it means the same cluster, and names that
exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from evctl.config.settings import cluster_flag
from evctl.core.status import ClusterStatus
from evctl.provision.opening import open_driver
from tests.cli.conftest import Run, write_state
from tests.client.fake_admin import FakeAdmin, node, status


@pytest.fixture
def two(fake: FakeAdmin, home: Path) -> FakeAdmin:
    """`local`, the default one, and `other`, of the same control plane."""
    write_state("other", fake.path)
    return fake


@pytest.mark.usefixtures("two")
def test_the_default_cluster_needs_no_flag_and_another_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (cluster_flag("local"), cluster_flag("other")) == ("", " -c other")
    monkeypatch.setenv("EVCTL_CLUSTER", "other")
    assert (cluster_flag("local"), cluster_flag("other")) == (" -c local", "")


def test_the_only_cluster_needs_no_flag(home: Path) -> None:
    write_state("other", home / "x.sock")
    assert cluster_flag("other") == ""


def test_hints_name_another_than_the_default_cluster(run: Run, two: FakeAdmin) -> None:
    assert (
        "until `evctl split auto -c other`" in run("split", "set", "1P2D", "-y", "-c", "other").out
    )
    assert "until `evctl split auto`" in run("split", "set", "1P2D", "-y").out
    two.refuse = (
        409,
        json.dumps(
            {"code": "EV-1351", "what": "w", "why": "y", "next": "evctl split get", "exit_code": 7}
        ).encode(),
    )
    ran = run("split", "set", "1P2D", "-y", "-c", "other")
    assert (ran.code, "evctl split get -c other" in ran.err) == (7, True)


def test_a_replay_on_a_dead_cluster_names_it(run: Run, home: Path) -> None:
    write_state("gone", home / "gone.sock")
    write_state("local", home / "local.sock")
    ran = run("trace", "replay", "sample", "-c", "gone")
    assert ran.code == 4
    assert "control plane of cluster gone" in ran.err
    assert "next: evctl up gone" in ran.err


def test_top_is_told_how_to_name_its_cluster() -> None:
    from evctl.tui.change import Draft, cli_line

    draft = Draft(split="1P2D", force=True)
    assert cli_line(draft, " -c other") == "evctl split set 1P2D -c other --force"
    assert cli_line(draft) == "evctl split set 1P2D --force"


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(
    "command",
    ["status lcoal", "split get -c lcoal", "logs -c lcoal", "down lcoal", "kv summary lcoal"],
)
def test_a_slip_in_a_name_is_no_advice_to_bring_it_up(run: Run, command: str) -> None:
    ran = run(*command.split())
    assert (ran.code, "next: did you mean 'local'?" in ran.err) == (9, True), ran.err
    assert "here are local, other" in ran.err


def test_names_that_are_not_up_are_told_apart(run: Run, fake: FakeAdmin) -> None:
    assert "next: evctl up verify\n" in run("status", "verify").err, "it has a file"
    assert "did you mean 'verify'? evctl up verify\n" in run("status", "verifyy").err
    ran = run("status", "zzzzzz")
    assert "here is local" in ran.err
    assert "next: give one of them" in ran.err
    Path("mine.yaml").write_text("name: mine\nnodes: 2\nsplit: 1P1D\n")
    assert "next: evctl up mine.yaml" in run("status", "mine.yaml").err
    assert "did you mean 'local'?" in run("up", "lcoal").err


def test_a_cluster_that_was_stopped_is_down_and_not_out_of_reach(run: Run, home: Path) -> None:
    folder = write_state("local", home / "gone.sock")
    ran = run("status")
    assert (ran.code, "cannot be reached" in ran.err) == (4, True)
    open_driver("local").note_down()
    ran = run("status", "-o", "json")
    assert ran.code == 4
    assert "error[EV-1401]: cluster local is down" in ran.err
    assert "`evctl down` stopped it 0 s ago" in ran.err
    assert "next: evctl up local" in ran.err
    (folder / "down.json").unlink()
    assert "cannot be reached" in run("status").err


def test_a_split_that_is_held_against_the_file_is_told(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from evctl.cli.commands.up import _note_held_split
    from evctl.config.loading import load_cluster

    loaded = load_cluster(home / "work" / "clusters" / "local.yaml")

    def told(now: ClusterStatus, asked: str | None = None) -> str:
        _note_held_split(loaded, now, asked)
        return capsys.readouterr().err

    held = status(mode="hold", target_split="1P2D", held_by="ada@desk")
    assert told(held) == (
        "split 1P2D is held by ada@desk, the file says 2P1D: evctl split set 2P1D goes back\n"
    )
    assert told(held, asked="1P2D") == ""
    assert told(msgspec.structs.replace(held, target_split="2P1D")) == ""
    assert told(msgspec.structs.replace(held, mode="advise")) == ""


def test_an_age_that_is_not_known_is_none(run: Run, fake: FakeAdmin) -> None:
    fake.status = status(
        nodes=(node("n1", "P"), node("n2", "P", state="starting", boot_id="", age_s=0.0))
    )
    line = next(line for line in run("status").out.splitlines() if line.startswith("n2"))
    assert re.search(r"starting .* -$", line)


def test_a_plan_names_what_still_starts(
    run: Run, fake: FakeAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evctl.provision.driver import CONTROL
    from evctl.provision.local import LocalDriver

    monkeypatch.setattr(LocalDriver, "is_running", lambda self, unit: unit == CONTROL)
    fake.status = status(nodes=(node("n1", "P"), node("n2", "P", state="starting")))
    assert run("up", "--plan").out.splitlines()[-1].endswith("; still starting: n2")
    assert run("up", "--plan", "-o", "json").json["joining"] == ["n2"]


def test_who_is_asked_reads_a_sentence(run: Run, fake: FakeAdmin) -> None:
    assert "error[EV-1802]: this needs a yes: change the split" in run("split", "set", "1P2D").err
    ran = run("split", "set", "1P2D", "--confirm", "wrong")
    assert "error[EV-1803]: not confirmed: change the split" in ran.err
    assert "why:  --confirm says 'wrong', and the cluster is 'local'" in ran.err
    assert "1 running finishes there" in run("split", "set", "1P2D", "--plan").out
    shown = run("split", "set", "1P2D", "-y").out
    assert shown.count("generation") == 1


def test_orders_name_the_parts() -> None:
    from evctl.cli.commands.up import _orders
    from evctl.provision.plan import Change, Step

    changes = [Change(name, Step.ENGINE, "restart", "why") for name in ("control", "n1")]
    assert _orders([*changes, Change("n3", Step.ENGINE, "stop", "why")]) == (
        "restart control and n1, stop n3"
    )
    many = [Change(f"n{i}", Step.ENGINE, "restart", "why") for i in range(9)]
    assert _orders(many) == "restart n0, n1, n2, n3 and 5 more"


def test_a_level_that_is_nearly_one_is_guessed(run: Run, fake: FakeAdmin) -> None:
    ran = run("logs", "--level", "warn")
    assert (ran.code, "did you mean warning?" in ran.err) == (2, True)
