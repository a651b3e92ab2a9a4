"""The table of exit codes, a case for each that a command can give without a real cluster."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import pytest

from evctl.cli.commands.explain import find
from evctl.core.errors import ExitCode
from evctl.core.status import ErrorBody
from tests.cli.conftest import Run, write_state
from tests.client.fake_admin import FakeAdmin, body

CONFLICT = {"code": "EV-1351", "what": "w", "why": "y", "next": "n", "exit_code": 7}

# command, exit code, error code; run against a fake cluster.
CASES = [
    ("version", 0, None),
    ("status", 0, None),
    ("split get", 0, None),
    ("", 0, None),
    ("--help", 0, None),
    ("up --help", 0, None),
    ("config", 0, None),
    ("nonsense", 2, "EV-1801"),
    ("status --nonsense", 2, "EV-1801"),
    ("status -o pdf", 2, "EV-1801"),
    ("version -o jsonl", 2, "EV-1806"),
    ("split set 9", 2, "EV-1102"),
    ("split set +9P --plan", 8, "EV-1101"),
    ("split set 3P0D -y", 8, "EV-1101"),
    ("logs --since yesterday", 2, "EV-1809"),
    ("logs --level loud", 2, "EV-1810"),
    ("logs --grep (", 2, "EV-1811"),
    ("bench planner --figure x.svg", 2, "EV-1648"),
    ("bench planner --window-s 60", 2, "EV-1648"),
    ("bench planner --live --quick --figure x.svg", 2, "EV-1648"),
    ("--color sometimes version", 2, "EV-1801"),
    ("up --split 3P --plan", 2, "EV-1102"),
    ("up --exit-code", 2, "EV-1801"),
    ("down --exit-code -y", 2, "EV-1801"),
    ("split set 1P2D --exit-code -y", 2, "EV-1801"),
    ("split set 2P1D --confirm wrong", 8, "EV-1803"),
    ("split set 1P2D -y --confirm wrong", 8, "EV-1803"),
    ("split hold --confirm wrong", 8, "EV-1803"),
    ("down --confirm wrong", 8, "EV-1803"),
    ("config validate bad.yaml", 3, "EV-1703"),
    ("up bad.yaml", 3, "EV-1703"),
    ("up --split 1P1D --plan", 2, "EV-1103"),
    ("status -c gone", 4, "EV-1401"),
    ("split get -c gone", 4, "EV-1401"),
    ("split set 1P2D -c gone -y", 4, "EV-1401"),
    ("kv check -c gone", 4, "EV-1401"),
    ("branches gone", 4, "EV-1401"),
    ("branch end x -y -c gone", 4, "EV-1401"),
    ("kv", 0, None),
    ("kv check", 0, None),
    ("kv block xyz", 2, "EV-1814"),
    ("kv block ffffffff", 9, "EV-1355"),
    ("branches --state asleep", 2, "EV-1801"),
    ("branches --limit 0", 2, "EV-1801"),
    ("branch show nobody", 9, "EV-1354"),
    ("branch tree nobody", 9, "EV-1354"),
    ("branch end nobody -y", 9, "EV-1354"),
    ("branch end agent-7/main", 8, "EV-1802"),
    ("branch end agent-7/main --plan", 0, None),
    ("branch end agent-7/old", 0, None),
    ("split set 1P2D", 8, "EV-1802"),
    ("split auto", 0, None),
    ("split auto -c gone", 4, "EV-1401"),
    ("split hold --for soon", 2, "EV-1831"),
    ("split set 1P2D -y --for 0m", 2, "EV-1831"),
    ("split set 1P2D -y --for 1h30m", 0, None),
    ("plan", 0, None),
    ("plan -c gone", 4, "EV-1401"),
    ("plan --exit-code", 10, None),
    ("why", 0, None),
    ("why split", 0, None),
    ("why split 9", 9, "EV-1367"),
    ("why split 0", 2, "EV-1801"),
    ("why node n2", 0, None),
    ("why node n9", 9, "EV-1366"),
    ("why request r-7", 0, None),
    ("why request nobody", 9, "EV-1363"),
    ("why request r-7 -c gone", 4, "EV-1401"),
    ("why block 00112233", 0, None),
    ("why block xyz", 2, "EV-1814"),
    ("why block ffffffff", 9, "EV-1355"),
    ("down --purge -y", 8, "EV-1802"),
    ("down --purge --confirm other", 8, "EV-1803"),
    ("top", 8, "EV-1813"),
    ("status absent", 9, "EV-1708"),
    ("down absent -y", 9, "EV-1708"),
    ("up absent", 9, "EV-1707"),
    ("up ./absent.yaml", 9, "EV-1707"),
    ("up --only n9", 9, "EV-1812"),
    ("logs n9", 9, "EV-1812"),
    ("config get gateway.prot", 9, "EV-1808"),
    ("explain EV-0000", 9, "EV-1807"),
    ("up --plan --exit-code", 10, None),
    ("split set 1P2D --plan --exit-code", 10, None),
    ("split set 2P1D --plan --exit-code", 0, None),
    ("down --plan --exit-code", 0, None),
]


@pytest.fixture(autouse=True)
def files(home: Path) -> None:
    Path("bad.yaml").write_text("name: b\nnodes: 3\nsplit: 2P1D\nmodle: x\n")


@pytest.mark.parametrize(("command", "exit_code", "error"), CASES, ids=[c[0] for c in CASES])
def test_exit_code(
    run: Run, home: Path, fake: FakeAdmin, command: str, exit_code: int, error: str | None
) -> None:
    write_state("gone", home / "gone.sock")
    ran = run(*command.split())
    assert (ran.code, _told(ran.err)) == (exit_code, error)
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("command", "exit_code"),
    [
        (command, code)
        for command, code, error in CASES
        if error and "-o" not in command and command != "top"
    ],
)
def test_a_failure_in_json_is_one_object_on_stdout(
    run: Run, home: Path, fake: FakeAdmin, command: str, exit_code: int
) -> None:
    write_state("gone", home / "gone.sock")
    ran = run(*command.split(), "-o", "json")
    assert ran.code == exit_code
    lines = ran.out.splitlines()
    error = json.loads(lines[-1])["error"]
    assert set(error) >= {"code", "what", "why", "next"}
    assert error["code"] == _told(ran.err)


def test_conflict_is_7_and_names_the_other_actor(run: Run, fake: FakeAdmin) -> None:
    fake.refuse = 409, body(**{**CONFLICT, "why": "bob changed it"})
    ran = run("split", "set", "1P2D", "-y")
    assert ran.code == 7
    assert "bob" in ran.err


def test_an_example_of_a_split_is_one_that_the_cluster_can_have(run: Run, fake: FakeAdmin) -> None:
    for wrong in ("9", "3P0D"):
        assert "next: write it as 2P1D, for 3 nodes\n" in run("split", "set", wrong).err


def test_cooldown_is_8(run: Run, fake: FakeAdmin) -> None:
    fake.refuse = 409, body(**{**CONFLICT, "code": "EV-1352", "exit_code": 8})
    assert run("split", "set", "1P2D", "-y").code == 8


def test_a_plan_says_until_when_it_would_be_refused(run: Run, fake: FakeAdmin) -> None:
    fake.refused_until_s = 3 * 3600 + 4 * 60 + 5.0
    until = "refused until 03:04:05 (cooldown: 120 s after the last change has settled)"
    assert f"{until}, unless --force" in run("split", "set", "1P2D", "--plan").out
    assert f"{until}, --force passes that" in run("split", "set", "1P2D", "--plan", "--force").out
    ran = run("split", "set", "1P2D")
    assert ran.code == 8
    assert until in ran.err, "before anybody is asked for a yes"
    assert not any(asked["plan"] is False for _, asked in fake.calls)
    assert run("split", "set", "1P2D", "-y", "--force").code == 0
    fake.settling = True
    until = "refused until 120 s after the change that is under way has settled, unless --force"
    assert until in run("split", "set", "1P2D", "--plan").out
    assert run("explain", "cooldown").code == 0


def test_a_split_that_is_so_already_is_said_so(run: Run, fake: FakeAdmin) -> None:
    fake.unchanged = True
    ran = run("split", "set", "2P1D")
    assert ran.code == 0
    assert ran.out == "2P1D is held already: nothing to change\n"


def test_a_bug_is_1_with_its_traceback_in_a_file(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("evctl.cli.commands.version.chosen", broken)
    ran = run("version")
    assert ran.code == 1
    assert "EV-9001" in ran.err
    assert "Traceback" not in ran.err
    (saved,) = (home / "state" / "evctl" / "crashes").iterdir()
    assert "ZeroDivisionError: oops" in saved.read_text()


def test_ctrl_c_is_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("evctl.cli.commands.version.chosen", interrupt)
    ran = run("version")
    assert (ran.code, _told(ran.err)) == (130, "EV-1805")


def test_the_table_of_codes_is_told_as_it_is() -> None:
    _, text = find("exit-codes")
    told = {int(n) for n in re.findall(r"^ +(\d+)  ", text, flags=re.MULTILINE)}
    assert told == {int(code) for code in ExitCode}


def test_every_code_in_the_tree_is_explained() -> None:
    from evctl.cli.commands.explain import topics
    from tests.conftest import ROOT

    used = {
        code
        for room in ("evctl", "engine")
        for path in (ROOT / room).rglob("*.py")
        for code in re.findall(r"EV-\d{4}", path.read_text(encoding="utf-8"))
    }
    assert used - topics().keys() == set(), "explain them in evctl/cli/explain"


def test_error_bodies_of_the_fake_have_the_real_form() -> None:
    assert set(CONFLICT) == set(ErrorBody.__struct_fields__)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("command", "protected", "answer", "exit_code"),
    [
        ("split set 1P2D", False, "y", 0),
        ("split set 1P2D", False, "yes", 0),
        ("split set 1P2D", False, "", 8),
        ("split set 1P2D", False, "n", 8),
        ("split set 1P2D", True, "y", 8),
        ("split set 1P2D", True, "local", 0),
        ("split set 1P2D -y", True, "", 8),
        ("split set 1P2D --confirm local", True, "", 0),
        ("split set 1P2D --confirm other", True, "", 8),
        ("split hold -y", True, "", 0),
        ("split hold", False, "", 0),
        ("split hold", True, "y", 0),
        ("split hold", True, "n", 8),
        ("down --purge", False, "y", 8),
        ("down --purge", False, "local", 0),
    ],
)
def test_confirmation_has_three_tiers(
    run: Run,
    home: Path,
    fake: FakeAdmin,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    protected: bool,
    answer: str,
    exit_code: int,
) -> None:
    file = home / "state" / "evctl" / "clusters" / "local" / "cluster.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "protected": protected}))
    monkeypatch.setattr(sys, "stdin", _Terminal(answer + "\n"))
    ran = run(*command.split())
    assert ran.code == exit_code, ran.err
    wrote = [call for call in fake.calls if call[0] == "mode" or not call[1].get("plan", True)]
    if command.startswith("split"):
        assert bool(wrote) == (exit_code == 0)


def _told(err: str) -> str | None:
    match = re.search(r"^error\[(EV-\d{4})\]", err, flags=re.MULTILINE)
    return match[1] if match else None


def test_a_figure_that_cannot_be_drawn_is_told_before_anything_is_measured(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = "bench planner --live --figure"
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = run(*command.split(), str(tmp_path / "x.svg"))
    assert (ran.code, "EV-1633" in ran.err, "evctl[bench]" in ran.err) == (1, True, True)
    monkeypatch.setitem(sys.modules, "matplotlib", object())
    ran = run(*command.split(), str(tmp_path / "x.png"))
    assert (ran.code, "EV-1634" in ran.err) == (2, True)
