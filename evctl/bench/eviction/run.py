"""`evctl bench eviction`, without the command line."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

from evctl.bench.eviction.grid import Grid, Played, input_words, run
from evctl.bench.eviction.report import GOALS_FROM, LRU, rows
from evctl.bench.measurement import Measurement


def measure(grid: Grid, progress: Callable[[int, int], None] | None = None) -> Measurement:
    """Plays the whole grid. Raises EvctlError."""
    load, began_s = os.getloadavg()[0], time.monotonic()
    played = run(grid, progress)
    return Measurement(
        subject="eviction",
        peer=LRU,
        input=_input(grid, played),
        repeats=len(grid.seeds),
        wall_s=time.monotonic() - began_s,
        load=(load, os.getloadavg()[0]),
        machine=f"{os.cpu_count()} CPUs, {platform.machine()}, Python {platform.python_version()}",
        rows=rows(played),
    )


def _input(grid: Grid, played: list[Played]) -> str:
    requests = sum(load.requests for load in played)
    live = sum(load.live_blocks for load in played) / len(played)
    recorded = played[0].recorded
    few = "" if recorded >= GOALS_FROM else " (too few to judge goals by)"
    return (
        f"{input_words(grid.trace)}, {recorded} conversations{few}: {grid.agents} agents, "
        f"{grid.hours:g} h, measured after {grid.warm_up_s:g} s, {requests:,} requests of "
        f"{len(played)} loads, {live:,.0f} live blocks on average"
    )
