"""Orders by last access: plain LRU, the paper's rule, and release at the end of a session."""

# ruff: noqa: ARG002  # an order has the port's signature and ignores what it does not use

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evctl.policy.eviction.book import Book, Entry, same_entries
from evctl.policy.eviction.port import BranchKey, Key, RefClass
from evctl.policy.eviction.recency import Recency


class _Tiered(Book):
    """Tiers one after another, each by last access, deeper first."""

    tiers = 1

    def __init__(self) -> None:
        super().__init__()
        self._queues = [Recency() for _ in range(self.tiers)]

    def _tier(self, entry: Entry) -> int:
        return 0

    def _admit(self, entry: Entry) -> None:
        self._queues[self._tier(entry)].add(entry)

    def _withdraw(self, entry: Entry) -> None:
        entry.slot.discard(entry)

    def access(self, branch: BranchKey | None, path: Sequence[Key], now_s: float) -> None:
        self._visit += 1
        visit, known = self._visit, self._entries.get
        for key in reversed(path):
            entry = known(key)
            if entry is None:
                continue
            entry.stamp = visit
            if not entry.pins:
                entry.slot.touch(entry)

    def _pop(self, now_s: float) -> Iterator[Entry]:
        for queue in self._queues:
            while (entry := queue.pop()) is not None:
                yield entry

    def _problems(self) -> Iterator[str]:
        evictable = self._evictable()
        for tier, queue in enumerate(self._queues):
            yield from queue.problems(f"tier {tier}")
            expected = [entry for entry in evictable if self._tier(entry) == tier]
            yield from same_entries(f"tier {tier}", queue, expected)


class Lru(_Tiered):
    """Least recently used first: HiCache, Dynamo."""


class ReferencedLast(_Tiered):
    """The paper's rule (section 4.4): unreferenced, then suspect, then live; LRU in each."""

    tiers = len(RefClass)
    by_class = True

    def _tier(self, entry: Entry) -> int:
        return entry.ref_class


class SessionRelease(_Tiered):
    """LRU, but what only an ended branch had used goes first: SGLang's session tag.

    It knows no rewrite: history that a compaction replaced stays until the session ends.
    """

    tiers = 2

    def __init__(self) -> None:
        super().__init__()
        self._tagged: dict[BranchKey, dict[Entry, None]] = {}

    def _tier(self, entry: Entry) -> int:
        return 0 if RELEASED in entry.users else 1

    def _left(self, entry: Entry) -> None:
        for branch in entry.users:
            if branch is not RELEASED:
                del self._tagged[branch][entry]

    def access(self, branch: BranchKey | None, path: Sequence[Key], now_s: float) -> None:
        super().access(branch, path, now_s)
        if branch is None:
            return
        tagged = self._tagged.setdefault(branch, {})
        for key in path:
            entry = self._entries.get(key)
            if entry is None or entry in tagged:
                continue
            tagged[entry] = None
            if RELEASED in entry.users:
                self._move(entry, released=False)
            entry.users[branch] = None

    def end(self, branch: BranchKey, now_s: float) -> None:
        for entry in self._tagged.pop(branch, ()):
            del entry.users[branch]
            if not entry.users:
                self._move(entry, released=True)

    def _move(self, entry: Entry, *, released: bool) -> None:
        if not entry.pins:
            self._withdraw(entry)
        if released:
            entry.users[RELEASED] = None
        else:
            del entry.users[RELEASED]
        if not entry.pins:
            self._admit(entry)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        tags = {(branch, entry) for branch, held in self._tagged.items() for entry in held}
        users = {
            (branch, entry)
            for entry in self._entries.values()
            for branch in entry.users
            if branch is not RELEASED
        }
        if tags != users:
            yield "tags of branches and of entries differ"


RELEASED = object()
"""Stands among an entry's users once the last of them has ended."""
