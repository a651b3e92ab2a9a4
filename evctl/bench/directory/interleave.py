"""Runs a task on both sides in turn, each time in a fresh process, and takes medians."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from evctl.bench.directory import inputs
from evctl.bench.directory.cases import Case
from evctl.core.errors import EvctlError, NotFoundError, UsageError

LIMIT_S = 1200.0
"""One task of one side may take so long."""
ROOT = Path(__file__).parents[3]
Figures = dict[str, float]


class Side(msgspec.Struct, frozen=True):
    """command: what `TASK FILE OPTIONS` is appended to. tasks: those it has; None: all."""

    name: str
    command: tuple[str, ...]


OURS = Side("evctl", (sys.executable, "-m", "evctl.bench.directory"))


def peer_side(name: str, root: Path = ROOT) -> Side:
    """The peer of that name, in the environment that scripts/setup-peers makes."""
    if name != "dynamo":
        raise UsageError(
            what=f"there is no peer {name!r}",
            why="this command measures against dynamo",
            next_step="give --vs dynamo, or leave it out",
            code="EV-1632",
        )
    python = root / ".venv-peers" / "bin" / "python"
    if not python.exists():
        raise NotFoundError(
            what="cannot measure against dynamo",
            why=f"its environment is not there: {python}",
            next_step="run scripts/setup-peers",
            code="EV-1630",
        )
    return Side(name, (str(python), str(Path(__file__).with_name("peer_dynamo.py"))))


def interleave(
    case: Case,
    sides: Sequence[Side],
    repeats: int,
    *,
    seed: int = 1,
    told: Callable[[str], None] | None = None,
) -> tuple[dict[str, Figures], str]:
    """Medians of each figure by name of the side, and what the input is made of. The sides take
    turns, so that what else the machine does hits both."""
    found: dict[str, list[Figures]] = {side.name: [] for side in sides}
    with tempfile.TemporaryDirectory(prefix="evctl-bench-") as folder:
        file = Path(folder) / "input"
        made = case.make()
        about = made.about
        inputs.write(file, made, seed)
        del made
        for repeat in range(repeats):
            for side in sides:
                if told is not None:
                    told(f"{case.name}: {side.name}, {repeat + 1} of {repeats}")
                found[side.name].append(run(side, case, file))
    return {name: _medians(figures) for name, figures in found.items() if figures}, about


def run(side: Side, case: Case, file: Path) -> Figures:
    """The figures of one run. Raises EvctlError when the process fails."""
    options = msgspec.json.encode(case.options).decode()
    command = [*side.command, case.task, str(file), options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _failed(side, case, f"it took more than {LIMIT_S:.0f} s") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise _failed(side, case, lines[-1] if lines else f"exit code {done.returncode}")
    try:
        return msgspec.json.decode(done.stdout.strip().splitlines()[-1], type=Figures)
    except (IndexError, msgspec.DecodeError) as error:
        raise _failed(side, case, f"it printed no figures: {error}") from error


def _medians(figures: list[Figures]) -> Figures:
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}


def _failed(side: Side, case: Case, why: str) -> EvctlError:
    return EvctlError(
        what=f"measuring {case.name} of {side.name} failed",
        why=why,
        next_step=f"run it alone: {' '.join(side.command)} {case.task} FILE OPTIONS",
        code="EV-1631",
    )
