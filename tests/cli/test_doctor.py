"""`evctl doctor`: what it prints of given facts, and that it runs on this machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from evctl.provision.doctor import gathering
from evctl.provision.doctor.facts import Facts
from evctl.provision.doctor.judgement import judge
from tests.cli.conftest import Run
from tests.cli.test_golden import hold_against_file, plain
from tests.provision.doctor.findings import (
    CONTROL,
    WELL,
    engine,
    secret,
    segment,
    subject,
)

AILING = msgspec.structs.replace(
    WELL,
    engines=(engine(("0.0.0.0", 15_575), ("::", 15_682)),),
    control=CONTROL,
    addresses=("10.0.0.5", "8.8.4.4"),
    segments=(segment(), segment("evctl-1-c-l1", alive=False)),
    secrets=(secret(), secret("/state/keys/n1.key", mode=0o644)),
)
CASES = [
    ("doctor", WELL, "doctor", 0),
    ("doctor_json", WELL, "doctor -o json", 0),
    ("doctor_ailing", AILING, "doctor", 1),
    ("doctor_ailing_json", AILING, "doctor --node n1 -o json", 1),
    ("doctor_help", WELL, "doctor --help", 0),
]


@pytest.mark.parametrize(("name", "facts", "command", "code"), CASES, ids=[c[0] for c in CASES])
def test_what_is_printed(
    run: Run,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    facts: Facts,
    command: str,
    code: int,
) -> None:
    monkeypatch.setattr(gathering, "gather", lambda config, nodes: facts)
    ran = run(*command.split())
    assert ran.code == code, ran.err
    told = ran.out + (f"--- stderr\n{ran.err}" if ran.err else "")
    hold_against_file(name, plain(told, home))


def test_a_check_that_fails_is_in_the_exit_code_and_on_stderr(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "gather", lambda config, nodes: AILING)
    ran = run("doctor", "-o", "json")
    assert ran.code == 1
    assert "error[EV-1830]: 2 checks of cluster local failed" in ran.err
    assert "data-ports, keys" in ran.err
    assert ran.json["ok"] is False
    assert "Traceback" not in ran.err


def test_this_machine_is_looked_at(run: Run) -> None:
    ran = run("doctor", "--node", "n2", "-o", "json")
    assert ran.code in (0, 1), ran.err
    told = ran.json
    assert (told["kind"], told["scope"], told["nodes"]) == ("DoctorReport", "this machine", ["n2"])
    checks = told["checks"]
    assert isinstance(checks, list)
    assert {check["check"] for check in checks} == {check.name for check in judge(subject())}


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ("doctor --node n9", 9, "EV-1812"),
        ("doctor absent", 9, "EV-1707"),
        ("doctor bad.yaml", 3, "EV-1703"),
        ("doctor -o name", 2, "EV-1806"),
    ],
)
def test_what_cannot_be_looked_at(run: Run, command: str, code: int, error: str) -> None:
    Path("bad.yaml").write_text("name: b\nnodes: 3\nsplit: 2P1D\nmodle: x\n")
    ran = run(*command.split())
    assert (ran.code, f"error[{error}]" in ran.err) == (code, True), ran.err
