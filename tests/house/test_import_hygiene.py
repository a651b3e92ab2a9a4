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


OUTSIDE = HEAVY | {
    "asyncio",
    "concurrent",
    "http",
    "multiprocessing",
    "random",
    "selectors",
    "socket",
    "ssl",
    "sqlite3",
    "subprocess",
    "threading",
    "urllib",
    "zmq",
}
"""What a decision has no use for: other libraries, the network, other threads, chance."""


@pytest.mark.parametrize("room", ["core", "policy"])
def test_every_module_of_a_pure_room_loads_nothing_but_values(room: str) -> None:
    """The fit of the cost model aside: it needs scipy, and is not a decision. What wrong code
    would pass? One that imports inside a function; import-linter sees that one."""
    walk = (
        f"import evctl.{room}, importlib, pkgutil\n"
        f"found = pkgutil.walk_packages(evctl.{room}.__path__, 'evctl.{room}.')\n"
        "[importlib.import_module(m.name) for m in found if 'costmodel' not in m.name]"
    )
    baseline = loaded_by("import msgspec, dataclasses, hashlib, heapq, bisect")
    assert (loaded_by(walk) - baseline) & OUTSIDE == set()


def test_the_reducer_loads_nothing_but_values() -> None:
    """It alone, as the simulator and the control plane import it: the cost model included."""
    baseline = loaded_by("import msgspec")
    found = loaded_by("import evctl.policy.state") - baseline
    assert found & OUTSIDE == set()
    assert "msgspec" in baseline
