"""`evctl bench exact`, without the command line."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Any

import msgspec

from evctl.bench.engines.driver import ENTRY, Driver
from evctl.bench.engines.models import Model, fetch
from evctl.bench.engines.node import EngineFailedError
from evctl.bench.exact.compare import Played, play
from evctl.bench.exact.paths import PATHS, Path
from evctl.bench.exact.prompts import random_prompts
from evctl.bench.exact.report import (
    ExactMeasurement,
    PathReport,
    PoolBytes,
    pool_rows,
    report,
    rows,
)
from evctl.bench.exact.stage import Sizes, Stage
from evctl.bench.measurement import Row, machine
from evctl.core.errors import UsageError

MODELS = ("random-4l256-kv4", "random-4l256-latent")
"""Grouped-query KV of as many heads as RANKS needs, and latent KV."""
RANKS = (1, 2, 4)
LARGE = Sizes(l1_blocks=160, l2_blocks=1536)
SMALL = Sizes(l1_blocks=64, l2_blocks=96)
PATIENCE = {"fetch": {"deadline_s": 60.0, "answer_s": 20.0, "transfer_s": 30.0, "hold_s": 30.0}}
"""Limits of engines: what is late is computed instead, and another path than was asked for."""
INDIVISIBLE = "EV-2011"
"""How an engine says that a model has fewer KV heads than ranks."""
Told = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """entry: arguments of Python that start an engine. paths: those to play beside the first;
    all where none is named."""

    models: tuple[str, ...] = MODELS
    prompts: int = 60
    ranks: tuple[int, ...] = RANKS
    paths: tuple[str, ...] = ()
    transfer: str = "shm"
    entry: tuple[str, ...] = ENTRY

    def chosen(self) -> list[Path]:
        """Raises UsageError (EV-1637) for a path that there is not."""
        names = [path.name for path in PATHS]
        for name in self.paths:
            if name not in names:
                raise UsageError(
                    what=f"there is no path {name!r}",
                    why=f"the paths are {', '.join(names)}",
                    next_step="name some of them, or leave the option out for all",
                    code="EV-1637",
                )
        return [p for p in PATHS if not self.paths or p.name in self.paths or p is PATHS[0]]


class _Found:
    """Collects what is measured."""

    def __init__(self) -> None:
        self.paths: list[PathReport] = []
        self.pools: list[PoolBytes] = []
        self.others: list[Row] = []


def measure(plan: Plan, told: Told = lambda _: None) -> ExactMeasurement:
    """Play every path on every model and number of ranks. Raises EvctlError."""
    began_s, load = time.monotonic(), os.getloadavg()[0]
    plan.chosen()
    found = _Found()
    for name in plan.models:
        model = fetch(name)
        expected: Played | None = None
        for ranks in plan.ranks:
            try:
                expected = _play_all(plan, model, ranks, expected, found, told)
            except EngineFailedError as error:
                found.others.append(_failed(name, ranks, error))
                told(f"{name}, R = {ranks}: {error}")
    if not found.paths:
        found.others.append(
            Row(name="paths compared", value=0, unit="paths", goal="at least 1", ok=False)
        )
    return ExactMeasurement(
        subject="exact",
        peer="R = 1" if found.pools else "",
        input=f"{plan.prompts} random prompts a path, greedy, {plan.transfer}",
        repeats=1,
        wall_s=round(time.monotonic() - began_s, 1),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        machine=machine(),
        rows=[row for path in found.paths for row in rows(path)]
        + found.others
        + pool_rows(found.pools),
        paths=found.paths,
        pools=found.pools,
    )


def _play_all(
    plan: Plan, model: Model, ranks: int, expected: Played | None, found: _Found, told: Told
) -> Played:
    """All paths with so many ranks; returns what everything is compared with."""
    prompts = random_prompts(plan.prompts, model.vocab_size)
    for small in (False, True):
        paths = [path for path in plan.chosen() if path.small is small]
        if not paths:
            continue
        with _stage(plan, model, ranks, prompts, small) as stage:
            for path in paths:
                told(f"{model.name}, R = {ranks}: {path.name}")
                began_s = time.monotonic()
                played = play(stage, path, f"{path.name}, R = {ranks}")
                expected = expected or played
                taken_s = time.monotonic() - began_s
                found.paths.append(report(model.name, ranks, path.name, expected, played, taken_s))
                if path is PATHS[0]:
                    found.pools.append(_pool_bytes(stage, model.name, ranks))
                    found.others += _variety(model.name, ranks, played)
            found.others += _integrity(stage, model.name, ranks, small)
    assert expected is not None, "there is always the first path"
    return expected


@contextmanager
def _stage(
    plan: Plan, model: Model, ranks: int, prompts: Sequence[list[int]], small: bool
) -> Iterator[Stage]:
    sizes = SMALL if small else LARGE
    options: dict[str, Any] = {"ranks": ranks} if ranks > 1 else {}
    with (
        tempfile.TemporaryDirectory(prefix="evctl-bench-") as folder,
        Driver(
            FilePath(folder),
            model.folder,
            ("a",) if small else ("a", "b"),
            entry=plan.entry,
            l1_blocks=sizes.l1_blocks,
            l2_blocks=sizes.l2_blocks,
            block_tokens=sizes.block_tokens,
            transfer=plan.transfer,
            limits=PATIENCE,
            **options,
        ) as driver,
    ):
        driver.settle()
        yield Stage(driver, prompts, sizes)


def _pool_bytes(stage: Stage, model: str, ranks: int) -> PoolBytes:
    load = stage.driver.quiet("a").load
    address = stage.driver.nodes["a"].known().peer.transfer
    registered = address.size_bytes - address.pool_offset
    return PoolBytes(
        model=model,
        ranks=ranks,
        registered_bytes=registered,
        used_bytes=load.l2_used_blocks * (registered // address.pool_blocks),
    )


def _variety(model: str, ranks: int, played: Played) -> list[Row]:
    """A model that says the same whatever it is asked would hide wrong KV."""
    outputs = {tuple(answer.tokens) for answer in played.answers}
    return [
        Row(
            name=f"{model}, R = {ranks}: different outputs",
            value=len(outputs),
            unit=f"of {len(played.answers)}",
            goal="over half",
            ok=len(outputs) > len(played.answers) // 2,
        )
    ]


def _integrity(stage: Stage, model: str, ranks: int, small: bool) -> list[Row]:
    problems = [p for name in stage.driver.nodes for p in stage.driver.quiet(name).problems]
    which = "small" if small else "large"
    first = f" ({problems[0]})" if problems else ""
    return [
        Row(
            name=f"{model}, R = {ranks}: what engines find wrong in {which} caches{first}",
            value=len(problems),
            unit="problems",
            goal="0",
            ok=not problems,
        )
    ]


def _failed(model: str, ranks: int, error: EngineFailedError) -> Row:
    """Engines that did not do it. A model that cannot have so many ranks is no failure."""
    name = f"{model}, R = {ranks}: {error.what}, {error.why}"
    if error.reason == INDIVISIBLE:
        return Row(name=name, value=0, unit="paths")
    return Row(name=name, value=0, unit="paths", goal="to run", ok=False)
