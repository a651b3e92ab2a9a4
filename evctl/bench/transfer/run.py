"""`evctl bench transfer`, without the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from evctl.bench.engines.models import fetch
from evctl.bench.measurement import Measurement, Row, machine
from evctl.bench.transfer.report import Pair, Runs, copy_rows, cost_rows, damage_row
from evctl.core.errors import EvctlError, RefusedError

BACKENDS = ("shm", "mooncake")
BLOCK_BYTES = 64 << 10
DAMAGED = 2
LIMIT_S = 900.0
"""One process may take so long."""
NAMESPACE = ("unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
"""A network with nothing but a loopback: Mooncake listens on all interfaces and asks nobody who
they are."""
Told = Callable[[str], None]
T = TypeVar("T")


class Plan(msgspec.Struct, frozen=True):
    """repeats: runs of each side. pairs: of turns with and without write-through; 0: not
    measured. model: that decodes then."""

    backends: tuple[str, ...] = BACKENDS
    blocks: int = 256
    repeats: int = 31
    pairs: int = 60
    model: str = "random-4l256"


class _Noticed(msgspec.Struct, frozen=True):
    damaged: int


class _Kept(msgspec.Struct, frozen=True):
    kept_blocks: int
    problems: list[str]


def measure(plan: Plan, told: Told = lambda _: None) -> Measurement:
    """Run it all. Raises EvctlError."""
    began_s, load = time.monotonic(), os.getloadavg()[0]
    rows: list[Row] = []
    for backend in plan.backends:
        if backend == "mooncake":
            _require_namespace()
    for backend in plan.backends:
        told(f"{backend}: {plan.blocks} blocks, {plan.repeats} times each")
        rows += _copies(plan, backend)
    if plan.pairs:
        told(f"write-through: {plan.pairs} pairs")
        rows += _costs(plan)
    return Measurement(
        subject="transfer",
        peer="plain",
        input=f"{plan.blocks} blocks of {BLOCK_BYTES >> 10} KiB between two processes' L2",
        repeats=plan.repeats,
        wall_s=round(time.monotonic() - began_s, 1),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        machine=machine(),
        rows=rows,
    )


def _copies(plan: Plan, backend: str) -> Iterator[Row]:
    module = [sys.executable, "-m", "evengine.benches.transfer", backend]
    options = ["--blocks", plan.blocks, "--repeats", plan.repeats, "--block-bytes", BLOCK_BYTES]
    inside = NAMESPACE if backend == "mooncake" else ()
    *shapes, damage = _lines([*inside, *module, *map(str, options)])
    for shape in shapes:
        yield from copy_rows(backend, _read(shape, Runs), plan.blocks * BLOCK_BYTES)
    yield damage_row(backend, _read(damage, _Noticed).damaged, DAMAGED)


def _costs(plan: Plan) -> Iterator[Row]:
    folder = fetch(plan.model).folder
    module = [sys.executable, "-m", "evengine.benches.write_through", str(folder)]
    *lines, last = _lines([*module, "--pairs", str(plan.pairs)])
    yield from cost_rows([_read(line, Pair) for line in lines])
    kept = _read(last, _Kept)
    wrong = f" ({kept.problems[0]})" if kept.problems else ""
    yield Row(
        name=f"write-through: blocks copied into L2 meanwhile, caches sound{wrong}",
        value=kept.kept_blocks,
        unit="blocks",
        goal="some, sound",
        ok=kept.kept_blocks > 0 and not kept.problems,
    )


def _lines(command: Sequence[str]) -> list[str]:
    """What a process of the engine's side prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _failed(command, str(error)) from error
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or len(lines) < 2:
        told = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        why = [line.removeprefix("why:").strip() for line in told if line.startswith("why:")]
        raise _failed(command, (why or told or [f"exit code {done.returncode}"])[-1])
    return lines


def _read(line: str, kind: type[T]) -> T:
    return msgspec.json.decode(line, type=kind)


def _failed(command: Sequence[str], why: str) -> EvctlError:
    return EvctlError(
        what="a process that measures has failed",
        why=why,
        next_step=f"run it alone: {' '.join(command)}",
        code="EV-1631",
    )


def _require_namespace() -> None:
    if os.geteuid() == 0 and shutil.which("unshare") and shutil.which("ip"):
        return
    raise RefusedError(
        what="mooncake is not measured here",
        why="it listens on all interfaces, so it gets a network namespace, which needs root, "
        "unshare and ip",
        next_step="run it as root, or leave it out: --backend shm",
        code="EV-1638",
    )
