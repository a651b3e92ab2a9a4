"""What a command loads before it does anything: each is imported when it is used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

NEVER = {
    "evengine",
    "fastapi",
    "matplotlib",
    "numpy",
    "paramiko",
    "rich",
    "scipy",
    "starlette",
    "textual",
    "tokenizers",
    "torch",
    "uvicorn",
}
LATE = {"httpx", "psutil", "pydantic", "yaml", "zmq"}

CASES = [
    ("--version", NEVER | LATE | {"typer", "msgspec"}),
    ("--help", NEVER | LATE),
    ("", NEVER | LATE),
    ("version", NEVER | LATE),
    ("up --help", NEVER | {"httpx", "psutil", "zmq"}),
    ("status absent", NEVER | LATE),
    ("split auto", NEVER | LATE),
    ("explain EV-1401", NEVER | LATE),
    ("completion bash", NEVER | LATE),
    ("split set --help", NEVER | LATE),
    ("trace --help", NEVER | LATE),
    ("kv --help", NEVER | LATE),
    ("branches --help", NEVER | LATE),
    ("branch end --help", NEVER | LATE),
    ("top absent", NEVER | LATE),
    ("doctor --help", NEVER | LATE),
    ("nonsense", NEVER | LATE),
]


def loaded_by(command: str, **environment: str) -> set[str]:
    code = (
        "import sys\n"
        "from evctl.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "finally:\n    print(*sorted({n.partition('.')[0] for n in sys.modules}), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, *command.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )
    return set(result.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(("command", "forbidden"), CASES, ids=[case[0] for case in CASES])
def test_a_command_loads_only_what_it_needs(command: str, forbidden: set[str]) -> None:
    assert loaded_by(command) & forbidden == set()


@pytest.mark.parametrize("words", ["evctl ", "evctl sta", "evctl split se", "evctl status l"])
def test_completion_loads_nothing_heavy(words: str) -> None:
    loaded = loaded_by(
        "",
        _EVCTL_COMPLETE="complete_bash",
        COMP_WORDS=words,
        COMP_CWORD=str(len(words.split(" ")) - 1),
    )
    assert loaded & (NEVER | LATE) == set()
    assert "typer" in loaded
