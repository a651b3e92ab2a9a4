"""Pipes, terminals, colour and completion, with evctl as a process of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evctl.cli import style
from evctl.cli.progress import Progress, ProgressForm
from evctl.core.status import WatchFrame
from evctl.provision.converge import Report
from evctl.provision.plan import Step
from tests.cli.conftest import Run
from tests.client.fake_admin import FakeAdmin, status
from tests.conftest import ROOT

EVCTL = [sys.executable, "-m", "evctl.cli"]


def environment(**changes: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **changes}


def complete(words: str) -> list[str]:
    result = subprocess.run(
        EVCTL,
        env=environment(
            _EVCTL_COMPLETE="complete_bash",
            COMP_WORDS=words,
            COMP_CWORD=str(len(words.split(" ")) - 1),
        ),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return result.stdout.split()


def test_a_reader_that_has_enough_is_not_told(fake: FakeAdmin) -> None:
    read, write = os.pipe()
    os.close(read)
    result = subprocess.run(
        [*EVCTL, "status", "-o", "json"],
        stdout=write,
        stderr=subprocess.PIPE,
        env=environment(),
        timeout=30,
        check=False,
    )
    os.close(write)
    assert (result.returncode, result.stderr) == (0, b"")


def test_following_logs_ends_with_its_reader(fake: FakeAdmin, home: Path) -> None:
    log = home / "state" / "evctl" / "clusters" / "local" / "logs" / "n1.jsonl"
    log.write_text('{"time_s": 1, "level": "info", "message": "one"}\n')
    with subprocess.Popen(
        [*EVCTL, "logs", "n1", "-f"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert b"one" in process.stdout.readline()
        with log.open("a") as file:
            file.write('{"time_s": 2, "level": "info", "message": "two"}\n')
        assert b"two" in process.stdout.readline()
        process.stdout.close()
        with log.open("a") as file:
            file.write('{"time_s": 3, "level": "info", "message": "three"}\n')
        assert process.wait(10) == 0
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_watch_on_a_pipe_is_a_line_a_change(fake: FakeAdmin) -> None:
    fake.streams = [
        [
            WatchFrame("snapshot", 0, status()),
            WatchFrame("status", 1, status(sequence=21)),
            WatchFrame("status", 2, status(in_flight=4)),
            WatchFrame("status", 3, status(in_flight=5)),
        ]
    ]
    with subprocess.Popen(
        [*EVCTL, "status", "--watch"], stdout=subprocess.PIPE, env=environment(), text=True
    ) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.terminate()
    assert [line["in_flight"] for line in lines] == [3, 4, 5]
    assert all(line["kind"] == "ClusterStatus" for line in lines)


@pytest.mark.parametrize("command", ["logs n1 -f", "status -w -o jsonl", "status -w"])
def test_ctrl_c_is_how_following_ends(fake: FakeAdmin, home: Path, command: str) -> None:
    log = home / "state" / "evctl" / "clusters" / "local" / "logs" / "n1.jsonl"
    log.write_text('{"time_s": 1, "level": "info", "message": "one"}\n')
    fake.streams = [[WatchFrame("snapshot", 0, status())]]
    with subprocess.Popen(
        [*EVCTL, *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=20)
    assert (process.returncode, rest, errors) == (130, "", "")


@pytest.mark.parametrize("command", ["split set 1P2D", "down --purge"])
def test_nothing_waits_on_a_pipe_that_says_nothing(fake: FakeAdmin, command: str) -> None:
    with subprocess.Popen(
        [*EVCTL, *command.split()],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.wait(15) == 8


def test_completion_knows_commands_clusters_and_nodes(fake: FakeAdmin) -> None:
    assert complete("evctl sta") == ["status"]
    assert set(complete("evctl split ")) >= {"get", "set", "history"}
    assert complete("evctl status lo") == ["local"]
    assert complete("evctl logs ") == ["control", "n1", "n2", "n3"]
    assert complete("evctl branch show agent-7/t") == ["agent-7/try"]
    assert complete("evctl branches --state ") == ["live", "suspect"]
    assert complete("evctl explain EV-132") == ["EV-1321", "EV-1322"]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "flag", "colored"),
    [
        ({}, None, True),
        ({"NO_COLOR": "1"}, None, False),
        ({"NO_COLOR": ""}, None, True),
        ({"TERM": "dumb"}, None, False),
        ({"EVCTL_COLOR": "never"}, None, False),
        ({}, "never", False),
        ({"NO_COLOR": "1"}, "always", True),
    ],
)
def test_colour_is_a_choice(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], flag: str | None, colored: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    style.choose(flag)
    try:
        assert style.wants_color(_Terminal()) is colored
        assert style.wants_color(io.StringIO()) is (flag == "always")
    finally:
        style.choose(None)


def test_no_escape_reaches_a_pipe(run: Run, fake: FakeAdmin) -> None:
    for command in ("status", "split get", "logs", "explain", "nonsense"):
        ran = run(*command.split())
        assert "\x1b" not in ran.out + ran.err


def reports() -> list[Report]:
    return [
        Report("control", Step.CONTROL, "start: not started yet", "begun"),
        Report("control", Step.CONTROL, "started", "done"),
        Report("n1", Step.ENGINE, "started", "done"),
        Report("n1", Step.JOINED, "its process ended; its last words:\nboom", "failed"),
    ]


def shown(form: ProgressForm, stream: io.StringIO) -> str:
    with Progress(form, stream) as progress:
        for report in reports():
            progress.show(report)
    return stream.getvalue()


def test_plain_progress_is_a_line_a_change() -> None:
    lines = shown(ProgressForm.AUTO, io.StringIO()).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("control  [3/5 control] start")
    assert lines[3].startswith("n1       [5/5 joined]  FAILED its process ended")
    assert lines[4] == "boom"


def test_progress_in_a_terminal_is_a_block_in_place() -> None:
    text = shown(ProgressForm.AUTO, _Terminal())
    assert "\x1b[1A" in text  # up by the one line so far, then by two
    assert text.endswith("\n")
    assert "\x1b[2J" not in text  # never the whole screen


def test_progress_as_json_and_as_nothing() -> None:
    lines = shown(ProgressForm.JSON, io.StringIO()).splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["begun", "done", "done", "failed"]
    assert shown(ProgressForm.NONE, io.StringIO()) == ""


def test_a_dumb_terminal_gets_plain_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(ProgressForm.AUTO, _Terminal())
