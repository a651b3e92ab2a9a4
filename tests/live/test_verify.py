"""A replay that is checked against engines without a cache, on clusters brought up by the command.

What wrong code would pass it? None that lets a request use KV other than its own prompt's: the
second half damages KV where only the comparison can see it, and the same command must then fail.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.live.shell import Shell, node_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

TEXT = """\
name: {name}
nodes: 2
split: 1P1D
model: random-4l256
block_tokens: 4
l1_tokens: 32768
prefix_cache: {cache}
allow_replay: true
gateway: {{port: 0}}
"""
REQUESTS, EVERY = 30, 3


@pytest.fixture
def shells(tmp_path: Path) -> Iterator[tuple[Shell, Shell]]:
    """One that reuses KV and one that does not, both up."""
    made = []
    for name, cache in (("reuse", "true"), ("plain", "false")):
        folder = tmp_path / name
        folder.mkdir()
        made.append(Shell(folder, TEXT.format(name=name, cache=cache), name))
    for shell in made:
        shell.json(f"up {shell.name}.yaml")
    yield made[0], made[1]
    for shell in made:
        shell.end()


def replay(reuse: Shell, plain: Shell, code: int) -> tuple[dict[str, object], list[str]]:
    """The report's extras, and the ids of the requests that went through."""
    report, record = reuse.folder / "report.json", reuse.folder / "record.jsonl"
    reuse(
        "trace replay sample -c reuse --agents 6 --gap-cap-s 0.2"
        f" --max-requests {REQUESTS} --verify {EVERY} --report {report} --record {record}"
        f" --verify-target {plain.json('status')['gateway']}",
        code,
    )
    run = json.loads(report.read_text())["runs"][0]
    assert (run["requests"], run["failed"]) == (REQUESTS, 0)
    ids = [json.loads(line)["id"] for line in record.read_text().splitlines()]
    return run["extras"], ids


def replace_engine(shell: Shell, node: str, fault: str) -> subprocess.Popen[bytes]:
    """The node's engine dies, and one with a fault in it takes its place."""
    record = shell.state / "nodes" / f"{node}.json"
    told = json.loads(record.read_text())
    os.kill(told["pid"], signal.SIGKILL)
    shell.status_until(lambda s: node_of(s, node)["state"] == "lost", f"loss of {node}", 30)
    entry = [sys.executable, "-m", "tests.engine.faulty_engine", "--fault", fault]
    with (shell.state / "logs" / f"{node}.jsonl").open("ab") as log:
        process = subprocess.Popen(
            [*entry, "--config", told["config"]],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**shell.environment, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    start_time = psutil.Process(process.pid).create_time()
    record.write_text(json.dumps({**told, "pid": process.pid, "start_time": start_time}))
    shell.status_until(lambda s: node_of(s, node)["state"] == "ok", f"{node} again", 60)
    return process


def test_a_damaged_page_makes_a_checked_replay_fail(shells: tuple[Shell, Shell]) -> None:
    reuse, plain = shells
    extras, _ = replay(reuse, plain, 0)
    assert (extras["verified"], extras["unverified"]) == (REQUESTS // EVERY, 0)
    assert (extras["wrong_tokens"], extras["wrong_logprobs"]) == (0, 0)

    process = replace_engine(reuse, "n2", "flip-received")
    extras, ids = replay(reuse, plain, 1)
    assert extras["verified"] == REQUESTS // EVERY
    assert extras["wrong_logprobs"] > 0
    assert extras["wrong_requests"], "a wrong answer is told by the id of its request"
    assert set(str(extras["wrong_requests"]).split()) <= set(ids)
    reuse.end()
    process.wait(10)
