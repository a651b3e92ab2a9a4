"""The grid of `evctl bench eviction`: every order on every load and pool size."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

from evctl.bench.eviction.endings import Endings, read_endings
from evctl.bench.eviction.simulate import BELADY, Loss, simulate
from evctl.bench.eviction.stretches import Shape, shape_all
from evctl.bench.eviction.timeline import Load, build
from evctl.core.errors import UsageError
from evctl.policy.eviction import ORDERS
from evctl.trace import files
from evctl.trace.schema import TraceHeader

POLICIES = (*ORDERS, BELADY)


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured. pools: shares of the mean live working set; what happens in the first
    warm_up_s is not counted. Raises UsageError."""

    trace: str = files.SAMPLE
    agents: int = 100
    hours: float = 3.0
    warm_up_s: float = 3600.0
    seeds: tuple[int, ...] = (0, 1, 2)
    gap_caps_s: tuple[float, ...] = (30.0, 300.0, 1800.0)
    pools: tuple[float, ...] = (0.6, 0.8, 1.0, 1.1, 1.25)
    policies: tuple[str, ...] = POLICIES
    jobs: int = 1

    def __post_init__(self) -> None:
        unknown = [name for name in self.policies if name not in POLICIES]
        checks = [
            (not unknown, f"no policy {', '.join(unknown)}; there are {', '.join(POLICIES)}"),
            (self.agents >= 1 and self.jobs >= 1, "agents and jobs must be above 0"),
            (
                0 <= self.warm_up_s < self.hours * 3600,
                f"nothing is left to measure after {self.warm_up_s:g} s",
            ),
            (bool(self.seeds and self.pools and self.policies), "there is nothing to run"),
            (all(cap_s >= 0 for cap_s in self.gap_caps_s), "a gap's cap is not negative"),
            (all(share > 0 for share in self.pools), "a pool is larger than nothing"),
        ]
        for holds, why in checks:
            if not holds:
                raise UsageError(
                    what="cannot play so",
                    why=why,
                    next_step="see `evctl bench eviction --help`",
                    code="EV-1606",
                )

    @property
    def loads(self) -> list[Load]:
        return [
            Load(self.agents, seed, cap_s, self.hours * 3600, self.warm_up_s)
            for cap_s in self.gap_caps_s
            for seed in self.seeds
        ]


class Cell(msgspec.Struct, frozen=True):
    """One order on one load and pool."""

    gap_cap_s: float
    seed: int
    pool: float
    policy: str
    loss: Loss


class Played(msgspec.Struct, frozen=True):
    """All cells of one load, and what it was. live_blocks: the mean live working set; recorded:
    conversations of the trace, of which `conversations` were begun, some more than once."""

    load: Load
    cells: list[Cell]
    live_blocks: float
    requests: int
    conversations: int
    recorded: int


class Recording(msgspec.Struct, frozen=True):
    """A trace, cut into stretches."""

    header: TraceHeader
    shapes: list[Shape]
    endings: Endings


def read(trace: str) -> Recording:
    """Raises EvctlError."""
    path = files.locate(trace)
    header, conversations = files.open_trace(path)
    return Recording(header, shape_all(conversations), read_endings(path))


def play(recording: Recording, load: Load, grid: Grid) -> Played:
    """Every order and pool of the grid on one load."""
    timeline = build(recording.header, recording.shapes, recording.endings, load)
    gc.freeze()  # millions of long-lived objects that no collection needs to visit
    cells = [
        Cell(load.gap_cap_s, load.seed, pool, policy, simulate(timeline, policy, pool))
        for pool in grid.pools
        for policy in grid.policies
    ]
    gc.unfreeze()
    return Played(
        load,
        cells,
        timeline.live_blocks,
        timeline.requests,
        timeline.conversations,
        len(recording.shapes),
    )


def run(grid: Grid, progress: Callable[[int, int], None] | None = None) -> list[Played]:
    """All of the grid, in its order. progress: (loads done, loads). Raises EvctlError."""
    found: dict[int, Played] = {}
    loads = grid.loads
    for place, played in _played(grid, loads):
        found[place] = played
        if progress is not None:
            progress(len(found), len(loads))
    return [found[place] for place in range(len(loads))]


def _played(grid: Grid, loads: Sequence[Load]) -> Iterator[tuple[int, Played]]:
    recording = read(grid.trace)  # here too, so that what is wrong with it is said at once
    if grid.jobs == 1 or len(loads) == 1:
        for place, load in enumerate(loads):
            yield place, play(recording, load, grid)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(grid.jobs, len(loads)), context, initializer=_open, initargs=(grid,)
    ) as pool:
        waiting = {pool.submit(_play, load): place for place, load in enumerate(loads)}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


_worker: list[tuple[Grid, Recording]] = []
"""Of a worker process: what it plays, read once."""


def _open(grid: Grid) -> None:
    _worker[:] = [(grid, read(grid.trace))]


def _play(load: Load) -> Played:
    grid, recording = _worker[0]
    return play(recording, load, grid)


def input_words(trace: str) -> str:
    """The trace as a report names it."""
    return "the packaged sample" if trace == files.SAMPLE else Path(trace).name
