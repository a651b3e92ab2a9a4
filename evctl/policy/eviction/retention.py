"""Time-to-live retention: KV of a paused branch is kept for a while, then it is plain LRU."""

# ruff: noqa: ARG002  # an order has the port's signature and ignores what it does not use

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from evctl.policy.eviction.book import Book, Entry, same_entries
from evctl.policy.eviction.port import BranchKey, Ending, Key
from evctl.policy.eviction.recency import Recency

TTL_S: Mapping[Ending, float] = {Ending.TOOL_CALL: 60.0, Ending.TURN: 0.0, Ending.UNKNOWN: 60.0}
"""Continuum keeps KV through a tool call and lets it go after a turn. It takes the time from
what a tool took before; a fixed minute stands for that here."""


class _Lease:
    """What one visit used, deepest first, kept until until_s (infinite while in flight)."""

    __slots__ = ("branch", "entries", "expired", "until_s")

    def __init__(self, branch: BranchKey, entries: list[Entry]) -> None:
        self.branch = branch
        self.entries = entries
        self.until_s = math.inf
        self.expired = False


class Retention(Book):
    """What no lease keeps goes first, by last access; then the lease that ends soonest is given
    up, and what only it kept goes. A branch has one lease, on all that its last request used.
    Classes are ignored.
    """

    def __init__(self, ttl_s: Mapping[Ending, float] = TTL_S) -> None:
        super().__init__()
        self._ttl_s = ttl_s
        self._open = Recency()
        self._leases: dict[BranchKey, _Lease] = {}
        self._ends: list[tuple[float, int, _Lease]] = []
        self._orders = 0

    def _admit(self, entry: Entry) -> None:
        if not entry.users:
            self._open.add(entry)

    def _withdraw(self, entry: Entry) -> None:
        if entry.slot is not None:
            self._open.discard(entry)

    def _left(self, entry: Entry) -> None:
        entry.users = {}

    def access(self, branch: BranchKey | None, path: Sequence[Key], now_s: float) -> None:
        self._visit += 1
        found = [e for key in reversed(path) if (e := self._entries.get(key)) is not None]
        for entry in found:
            entry.stamp = self._visit
            if entry.slot is not None:
                self._open.touch(entry)
        if branch is None:
            return
        before = self._leases.get(branch)
        lease = self._leases[branch] = _Lease(branch, found)
        for entry in found:
            entry.users[lease] = None
            self._withdraw(entry)
        if before is not None:
            self._expire(before)
        self._keep_until(lease, math.inf)

    def settle(
        self,
        branch: BranchKey,
        now_s: float,
        ending: Ending = Ending.UNKNOWN,
        expect_resume_s: float | None = None,
    ) -> None:
        if branch in self._leases:
            ttl_s = self._ttl_s[ending] if expect_resume_s is None else expect_resume_s
            self._keep_until(self._leases[branch], now_s + ttl_s)

    def end(self, branch: BranchKey, now_s: float) -> None:
        if branch in self._leases:
            self._expire(self._leases[branch])

    def _keep_until(self, lease: _Lease, until_s: float) -> None:
        lease.until_s = until_s
        self._orders += 1
        heappush(self._ends, (until_s, self._orders, lease))
        if len(self._ends) > 4 * len(self._leases) + 64:
            self._ends = [item for item in self._ends if _stands(item)]
            heapify(self._ends)

    def _expire(self, lease: _Lease) -> None:
        lease.expired = True
        if self._leases.get(lease.branch) is lease:
            del self._leases[lease.branch]
        for entry in lease.entries:
            if entry.users.pop(lease, self) is None and not entry.users and not entry.pins:
                self._open.add(entry)

    def _soonest(self) -> _Lease | None:
        while self._ends and not _stands(self._ends[0]):
            heappop(self._ends)
        return self._ends[0][-1] if self._ends else None

    def _pop(self, now_s: float) -> Iterator[Entry]:
        while (lease := self._soonest()) is not None and lease.until_s <= now_s:
            self._expire(lease)
        while True:
            while (entry := self._open.pop()) is not None:
                yield entry
            lease = self._soonest()
            if lease is None:
                return
            self._expire(lease)

    def _problems(self) -> Iterator[str]:
        yield from self._open.problems("what no lease keeps")
        free = [entry for entry in self._evictable() if not entry.users]
        yield from same_entries("what no lease keeps", self._open, free)
        kept = {(lease, e) for lease in self._leases.values() for e in lease.entries if e.held}
        if kept != {(lease, e) for e in self._entries.values() for lease in e.users}:
            yield "leases and what they keep differ"


def _stands(item: tuple[float, int, _Lease]) -> bool:
    return not item[-1].expired and item[-1].until_s == item[0]
