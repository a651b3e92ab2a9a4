"""Models by name, through the engine's own command: evctl never imports engines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from evctl.core.errors import EvctlError

PROGRAM = (sys.executable, "-m", "evengine.models")
LIMIT_S = 1800.0
"""A download may take long."""


class Model(msgspec.Struct, frozen=True):
    name: str
    folder: Path
    vocab_size: int


class _Config(msgspec.Struct):
    vocab_size: int


def fetch(name: str, program: Sequence[str] = PROGRAM) -> Model:
    """The named model, prepared now if need be. Raises EvctlError (EV-1635)."""
    command = [*program, "fetch", name]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(name, str(error)) from error
    lines = done.stdout.split("\n")
    if done.returncode or not lines[0]:
        told = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = [line.removeprefix("why:").strip() for line in told if line.startswith("why:")]
        raise _failed(name, (why or told or [f"exit code {done.returncode}"])[-1])
    folder = Path([line for line in lines if line][-1])
    config = msgspec.json.decode((folder / "config.json").read_bytes(), type=_Config)
    return Model(name, folder, config.vocab_size)


def _failed(name: str, why: str) -> EvctlError:
    return EvctlError(
        what=f"there is no model {name} to measure with",
        why=why,
        next_step="python -m evengine.models list names all; pip install 'evctl[local]' has it",
        code="EV-1635",
    )
