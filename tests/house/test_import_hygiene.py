"""What importing a room loads, in a fresh interpreter: not what its source says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

HEAVY = {
    "evengine",
    "evkernels",
    "fastapi",
    "httpx",
    "matplotlib",
    "numpy",
    "paramiko",
    "pydantic",
    "rich",
    "scipy",
    "sglang",
    "starlette",
    "textual",
    "tokenizers",
    "torch",
    "typer",
}


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(result.stdout.split())


@pytest.mark.parametrize(
    "statement", ["import evctl", "import evctl.core, evctl.wire"], ids=["evctl", "core+wire"]
)
def test_vocabulary_and_wire_load_nothing_heavy(statement: str) -> None:
    assert loaded_by(statement) & HEAVY == set()


@pytest.mark.parametrize("room", ["core", "wire"])
def test_every_module_of_the_room_loads_nothing_heavy(room: str) -> None:
    walk = (
        f"import evctl.{room}, importlib, pkgutil\n"
        f"[importlib.import_module(m.name)"
        f" for m in pkgutil.walk_packages(evctl.{room}.__path__, 'evctl.{room}.')]"
    )
    assert loaded_by(walk) & HEAVY == set()
