"""SIEVE and S3-FIFO: block-cache rules with bits instead of recency. They know no prefixes."""

# ruff: noqa: ARG002  # an order has the port's signature and ignores what it does not use

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from evctl.policy.eviction.book import Book, Entry, same_entries
from evctl.policy.eviction.port import BranchKey, Key

SMALL_SHARE = 0.1
MOST_HITS = 3


class _Ring(Book):
    """Entries in FIFO queues; a pinned one keeps its place and is passed over."""

    suffix_first = False

    def __init__(self) -> None:
        super().__init__()
        self._free = 0  # evictable entries, so that a search among pinned ones ends

    def _admit(self, entry: Entry) -> None:
        self._free += 1

    def _withdraw(self, entry: Entry) -> None:
        self._free -= 1

    def _problems(self) -> Iterator[str]:
        if self._free != len(self._evictable()):
            yield f"counts {self._free} evictable entries wrongly"


class Sieve(_Ring):
    """SIEVE (NSDI 2024): a hand walks from the oldest to the newest; it takes what was not used
    since it last came by. An access sets a bit (Entry.mark), nothing moves."""

    def __init__(self) -> None:
        super().__init__()
        self._head = _Link(None)  # its `newer` is the oldest entry, its `older` the newest
        self._hand = self._head

    def _arrived(self, entry: Entry) -> None:
        link = entry.slot = _Link(entry)
        link.older, link.newer = self._head.older, self._head
        link.older.newer = link.newer.older = link

    def _left(self, entry: Entry) -> None:
        link: _Link = entry.slot
        if self._hand is link:
            self._hand = link.newer
        link.older.newer, link.newer.older = link.newer, link.older

    def access(self, branch: BranchKey | None, path: Sequence[Key], now_s: float) -> None:
        self._visit += 1
        for key in path:
            entry = self._entries.get(key)
            if entry is not None:
                entry.stamp = self._visit
                # the access that brings it in sets no bit
                entry.mark = min(entry.mark + 1, 2)

    def _pop(self, now_s: float) -> Iterator[Entry]:
        while self._free:
            entry = self._hand.entry
            if entry is None:
                self._hand = self._head.newer
            elif entry.pins:
                self._hand = self._hand.newer
            elif entry.mark > 1:
                entry.mark = 1
                self._hand = self._hand.newer
            else:
                self._withdraw(entry)
                yield entry

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        found: list[Entry] = []
        link = self._head.newer
        while link.entry is not None and len(found) <= len(self._entries):
            found.append(link.entry)
            link = link.newer
        yield from same_entries("the ring", found, self._entries.values())


class _Link:
    __slots__ = ("entry", "newer", "older")

    def __init__(self, entry: Entry | None) -> None:
        self.entry = entry
        self.newer = self.older = self


class S3Fifo(_Ring):
    """S3-FIFO (SOSP 2023): a small queue for newcomers, a main one for what was used again, and
    the names of what left the small one unused ("ghosts"): those return into the main one.

    pool_blocks: capacity that the shares are of.
    """

    def __init__(self, pool_blocks: int) -> None:
        super().__init__()
        self._small_most = max(1, int(SMALL_SHARE * pool_blocks))
        self._ghost_most = max(1, pool_blocks - self._small_most)
        self._small: OrderedDict[Entry, None] = OrderedDict()
        self._main: OrderedDict[Entry, None] = OrderedDict()
        self._small_blocks = 0
        self._ghosts: OrderedDict[Key, int] = OrderedDict()
        self._ghost_blocks = 0

    def _arrived(self, entry: Entry) -> None:
        entry.mark = -1  # hits; the access that brings it in is none
        blocks = self._ghosts.pop(entry.key, None)
        if blocks is not None:
            self._ghost_blocks -= blocks
            self._main[entry] = None
        else:
            self._small[entry] = None
            self._small_blocks += entry.blocks

    def _left(self, entry: Entry) -> None:
        if entry in self._small:
            del self._small[entry]
            self._small_blocks -= entry.blocks
        else:
            del self._main[entry]

    def access(self, branch: BranchKey | None, path: Sequence[Key], now_s: float) -> None:
        self._visit += 1
        for key in path:
            entry = self._entries.get(key)
            if entry is not None:
                entry.stamp = self._visit
                if entry.mark < MOST_HITS:
                    entry.mark += 1

    def _pop(self, now_s: float) -> Iterator[Entry]:
        in_use = 0  # of the main queue, one after the other
        while self._free:
            from_small = self._small_blocks >= self._small_most or in_use >= len(self._main)
            entry = next(iter(self._small if from_small and self._small else self._main))
            if entry in self._small:
                if entry.mark > 1:
                    self._promote(entry)
                elif entry.pins:
                    self._promote(entry)  # in use: it would be taken for a newcomer otherwise
                else:
                    self._remember(entry)
                    self._withdraw(entry)
                    yield entry
            elif entry.pins or entry.mark > 0:
                in_use = in_use + 1 if entry.pins else 0
                entry.mark = max(0, entry.mark - 1)
                self._main.move_to_end(entry)
            else:
                in_use = 0
                self._withdraw(entry)
                yield entry

    def _promote(self, entry: Entry) -> None:
        del self._small[entry]
        self._small_blocks -= entry.blocks
        entry.mark = 0
        self._main[entry] = None

    def _remember(self, entry: Entry) -> None:
        self._ghosts[entry.key] = entry.blocks
        self._ghost_blocks += entry.blocks
        while self._ghost_blocks > self._ghost_most:
            self._ghost_blocks -= self._ghosts.popitem(last=False)[1]

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        yield from same_entries("the queues", [*self._small, *self._main], self._entries.values())
        if sum(entry.blocks for entry in self._small) != self._small_blocks:
            yield f"the small queue counts {self._small_blocks} blocks wrongly"
        if sum(self._ghosts.values()) != self._ghost_blocks:
            yield f"the ghosts count {self._ghost_blocks} blocks wrongly"
        if self._ghosts.keys() & self._entries.keys():
            yield "a held entry has a ghost"
