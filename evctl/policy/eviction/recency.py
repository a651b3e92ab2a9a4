"""Entries by last access, deeper first, with O(1) for what is used in order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from evctl.policy.eviction.book import Entry

SLACK = 64
"""Stale heap items beyond twice the valid ones that are swept."""


class Recency:
    """Entries in order of `Entry.rank`.

    Two parts. What was touched here lies in order of its touch: a request touches thousands of
    blocks, so that must be O(1). What comes in with an older or equal stamp (a change of class,
    a last pin gone, an insertion) goes into a heap, O(log n). Entry.slot is this queue while it
    holds the entry; Entry.mark is 0 for a touched one, else the name of its heap item.
    """

    def __init__(self) -> None:
        self._touched: OrderedDict[Entry, None] = OrderedDict()
        self._heap: list[tuple[int, int, int, int, Entry]] = []
        self._in_heap = 0
        self._marks = 0

    def __len__(self) -> int:
        return len(self._touched) + self._in_heap

    def __iter__(self) -> Iterator[Entry]:
        """In no order."""
        yield from self._touched
        for item in self._heap:
            if self._valid(item):
                yield item[-1]

    def add(self, entry: Entry) -> None:
        """Where its rank says."""
        self._marks += 1
        entry.slot, entry.mark = self, self._marks
        heappush(self._heap, (*entry.rank, self._marks, entry))
        self._in_heap += 1
        if len(self._heap) > 2 * self._in_heap + SLACK:
            self._heap = [item for item in self._heap if self._valid(item)]
            heapify(self._heap)

    def touch(self, entry: Entry) -> None:
        """A held entry becomes the last; the caller has set its stamp, and touches the entries
        of one visit deepest first."""
        if entry.mark:
            entry.mark = 0
            self._in_heap -= 1
            self._touched[entry] = None
        else:
            self._touched.move_to_end(entry)

    def discard(self, entry: Entry) -> None:
        if entry.mark:
            self._in_heap -= 1
        else:
            del self._touched[entry]
        entry.slot = None

    def first(self) -> Entry | None:
        """The least recent one, which stays."""
        while self._heap and not self._valid(self._heap[0]):
            heappop(self._heap)
        moved = self._heap[0][-1] if self._heap else None
        touched = next(iter(self._touched), None)
        if moved is None or touched is None:
            return moved or touched
        return moved if moved.rank < touched.rank else touched

    def pop(self) -> Entry | None:
        entry = self.first()
        if entry is not None:
            self.discard(entry)
        return entry

    def _valid(self, item: tuple[int, int, int, int, Entry]) -> bool:
        entry = item[-1]
        return entry.slot is self and entry.mark == item[3]

    def problems(self, name: str) -> Iterator[str]:
        """Violations of the queue's order."""
        ranks = [entry.rank for entry in self._touched]
        if ranks != sorted(ranks):
            yield f"{name}: touched entries are out of order"
        if sum(self._valid(item) for item in self._heap) != self._in_heap:
            yield f"{name}: counts {self._in_heap} in the heap wrongly"
        if any(item[:3] != item[-1].rank for item in self._heap if self._valid(item)):
            yield f"{name}: an entry's rank changed while it waited"
