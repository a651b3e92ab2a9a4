"""Long walks through the directory without holding up the one writer.

All runs on one loop, so a walk is done in slices with pauses between, and what it walks through
changes meanwhile: it must cope with that, and its answer is of the time it took, not of a moment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

from evctl.control.frontdoor import OverloadedError

SLICE_S: Final = 0.002
"""A walk holds the loop for so long at a time: about what the largest message costs."""
MOST_WAITING: Final = 16

Steps = Iterator[None]
"""A walk: each step is short (at most some tens of microseconds)."""


def walk_now(steps: Steps, budget_s: float, clock: Callable[[], float]) -> bool:
    """Go on with a walk for so long; whether it has ended."""
    until_s = clock() + budget_s
    return all(clock() < until_s for _ in steps)


class Walks:
    """One walk at a time, so that several questions hold up the loop no more than one does."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def take(self, steps: Steps) -> None:
        """Walk to the end, working half of the time at most.

        Raises OverloadedError when too many wait already.
        """
        if self._waiting >= MOST_WAITING:
            raise OverloadedError("too many questions about branches and blocks wait", 1.0)
        self._waiting += 1
        try:
            async with self._turn:
                while not walk_now(steps, SLICE_S, self._clock):
                    await asyncio.sleep(SLICE_S)
        finally:
            self._waiting -= 1
