"""How many copies have how many references: counted now and then, never for every event.

There is a count for each piece of each copy, so counting takes time in proportion to the tree.
A small tree is counted on the spot. A large one is counted in the background, a slice at a time,
and the last result serves meanwhile: with SHARE of the loop at most, however often one asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from evctl.control.walks import SLICE_S, Steps, walk_now
from evctl.core.kv_status import REFERENCE_BUCKETS, reference_bucket
from evctl.policy.directory import Directory, spans
from evctl.policy.directory.counts import lives
from evctl.policy.directory.runs import Node, Run

SHARE: Final = 0.05
"""Of the loop's time that counting may take while somebody looks on."""
LEAST_INTERVAL_S: Final = 0.4
"""Below the pace of a watch, so that each of its statuses may have fresh figures."""
_AT_ONCE: Final = 16
"""Runs counted in one step."""


class ReferenceCounts:
    """clock: seconds that do not go back; the same clock times the slices."""

    def __init__(self, directory: Directory, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._counted: tuple[int, ...] = ()
        self._counted_s = 0.0
        self._next_s = float("-inf")
        self.cost_s = 0.0
        """What the last count took of the loop."""

    def buckets(self) -> tuple[int, ...]:
        """Copies by REFERENCE_BUCKETS, as last counted; counts again if that is due."""
        now_s = self._clock()
        if self._task is None and now_s >= self._next_s:
            self._begin(now_s)
        return self._counted

    @property
    def age_s(self) -> float:
        """How old `buckets` is."""
        return max(0.0, self._clock() - self._counted_s) if self._counted else 0.0

    def close(self) -> None:
        """Count no more."""
        self._next_s = float("inf")
        if self._task is not None:
            self._task.cancel()

    def _begin(self, now_s: float) -> None:
        found = _Counting(self._directory)
        steps = found.walk()
        if walk_now(steps, SLICE_S, self._clock):
            self._take(found, self._clock() - now_s)
            return
        self._task = asyncio.create_task(self._go_on(found, steps), name="references")

    async def _go_on(self, found: _Counting, steps: Steps) -> None:
        cost_s = SLICE_S
        try:
            ended = False
            while not ended:
                await asyncio.sleep(SLICE_S / SHARE)
                before_s = self._clock()
                ended = walk_now(steps, SLICE_S, self._clock)
                cost_s += self._clock() - before_s
            self._take(found, cost_s)
        finally:
            self._task = None

    def _take(self, found: _Counting, cost_s: float) -> None:
        self._counted = found.buckets()
        self._counted_s = self._clock()
        self.cost_s = cost_s
        self._next_s = self._counted_s + max(LEAST_INTERVAL_S, cost_s / SHARE)


class _Counting:
    """One count. What changes while it goes on may be missed or seen twice."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._referenced = [0] * len(REFERENCE_BUCKETS)

    def walk(self) -> Iterator[None]:
        for node in list(self._directory.nodes.values()):
            for number, run in enumerate(list(node.runs)):
                if run.refs:
                    self._count(run, node)
                if number % _AT_ONCE == 0:
                    yield

    def _count(self, run: Run, node: Node) -> None:
        steps = (run.refs or {}).get(node)
        if not steps:
            return
        present = run.present(node)
        if len(present) == len(steps) == 2:  # nearly always: one copy, one count from its start
            held = min(present[1], steps[0]) - present[0]
            if held > 0:
                self._referenced[reference_bucket(lives(steps[1]))] += held
            return
        for low, high in spans.pairs(present):
            for start, end, count in spans.within(steps, run.start, low, high):
                self._referenced[reference_bucket(lives(count))] += end - start

    def buckets(self) -> tuple[int, ...]:
        """Most copies have none and were not looked at: those are what is left of all."""
        copies = sum(sum(node.classes) for node in self._directory.nodes.values())
        above = self._referenced[1:]
        return (max(0, copies - sum(above)), *above)
