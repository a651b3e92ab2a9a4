"""Belady's rule, for measurements: it is told the future."""

# ruff: noqa: ARG002  # an order has the port's signature and ignores what it does not use

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, heapreplace

from evctl.policy.eviction.book import Book, Entry, same_entries
from evctl.policy.eviction.port import BranchKey, Key

NextUse = Callable[[Key], float]
"""When, on any rising scale, an entry is used next after the access under way; inf: never."""


class Belady(Book):
    """Farthest next use first, deeper first among equals.

    next_use is asked at each insertion and access, and must not change between. An ancestor is
    used whenever its descendants are, so this never leaves a hole, and no order loses fewer
    blocks. What one access gives the same next use waits as one item of a heap: entries root
    first, each with the list as its slot while it is there to be taken.
    """

    def __init__(self, next_use: NextUse) -> None:
        super().__init__()
        self._next_use = next_use
        self._heap: list[tuple[float, int, int, list[Entry]]] = []
        self._items = 0

    def _admit(self, entry: Entry) -> None:
        self._push(self._next_use(entry.key), [entry])

    def _withdraw(self, entry: Entry) -> None:
        entry.slot = None

    def _push(self, next_use: float, entries: list[Entry]) -> None:
        for entry in entries:
            entry.slot = entries
        self._items += 1
        heappush(self._heap, (-next_use, -entries[-1].depth, self._items, entries))

    def access(self, branch: BranchKey | None, path: Sequence[Key], now_s: float) -> None:
        self._visit += 1
        alike: list[Entry] = []
        upcoming = 0.0
        for key in path:
            entry = self._entries.get(key)
            if entry is None or entry.pins:
                continue
            entry.stamp = self._visit
            next_use = self._next_use(key)
            if alike and next_use != upcoming:
                self._push(upcoming, alike)
                alike = []
            upcoming = next_use
            alike.append(entry)
        if alike:
            self._push(upcoming, alike)

    def _pop(self, now_s: float) -> Iterator[Entry]:
        while self._heap:
            next_use, depth, item, entries = self._heap[0]
            while entries and entries[-1].slot is not entries:
                entries.pop()
            if not entries:
                heappop(self._heap)
            elif entries[-1].depth != -depth:  # what is left may not be the deepest of its use
                heapreplace(self._heap, (next_use, -entries[-1].depth, item, entries))
            else:
                entry = entries.pop()
                entry.slot = None
                yield entry

    def _problems(self) -> Iterator[str]:
        waiting = [e for *_, entries in self._heap for e in entries if e.slot is entries]
        yield from same_entries("the heap", waiting, self._evictable())
