"""Expected next use: the paper's classes, but among live blocks the one needed latest goes first.

Recency is the wrong order among live branches: where pauses are alike, accesses are cyclic, and
LRU gives up exactly what comes next. Here a block goes by how long the branch that will need it
first is expected to stay away (notes/eviction.md; a switch of the design, off in paper mode).
"""

# ruff: noqa: ARG002  # an order has the port's signature and ignores what it does not use

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from evctl.policy.eviction.book import Book, Entry, same_entries
from evctl.policy.eviction.gaps import GapModel, Habit
from evctl.policy.eviction.port import BranchKey, Ending, Key, RefClass
from evctl.policy.eviction.recency import Recency

UNRANKED = 1 << 60
"""Position of a branch that was used since the ranking: it goes after all that are ranked."""
RERANK_S = 1.0
MOST_BRANCHES = 65_536


class _Branch:
    """What a node knows of a branch. path: its entries, root first, evicted ones included.

    tail: entries from there on were found not evictable while the order's sweep stood at
    `sweep`; position: its place in the current ranking.
    """

    __slots__ = (
        "due_s", "ending", "habit", "key", "number", "path", "position",
        "residual_s", "settled_s", "stamp", "sweep", "tail", "visited_s",
    )  # fmt: skip

    def __init__(self, key: BranchKey, number: int) -> None:
        self.key = key
        self.number = number
        self.path: list[Entry] = []
        self.stamp = 0
        self.visited_s = 0.0
        self.settled_s: float | None = None
        self.ending = Ending.UNKNOWN
        self.habit = Habit()
        self.due_s: float | None = None
        self.residual_s = 0.0
        self.position = UNRANKED
        self.tail = 0
        self.sweep = -1


class ExpectedUse(Book):
    """Unreferenced and suspect entries by last access; live ones by the largest expected time
    until a branch needs them, the earliest counts where several do; deeper first.

    Branches, not blocks, are ranked: B log B at most once in rerank_s of the caller's clock,
    and as often as all of the ranking is used up. A branch's idle time moves all its blocks at
    once. rerank_s 0: whenever anything changed. Live entries that no branch has in its last path
    go before those, by last access: their branch has moved on, and the word that nobody needs
    them is on its way. So a request without a branch is served, but what it leaves goes early.
    """

    by_class = True

    def __init__(self, gaps: GapModel | None = None, rerank_s: float = RERANK_S) -> None:
        super().__init__()
        self.gaps = gaps or GapModel()
        self._rerank_s = rerank_s
        self._branches: OrderedDict[BranchKey, _Branch] = OrderedDict()
        self._queues = {ref_class: Recency() for ref_class in RefClass}  # LIVE: without users
        self._ranking: list[_Branch] = []
        self._next = 0
        self._ranked_s = float("-inf")
        self._changed = True
        self._sweep = 0

    # ------------------------------------------------------------ where entries wait

    def _admit(self, entry: Entry) -> None:
        self._changed = True
        if entry.users:
            self._sweep += 1  # it may lie behind a branch's tail
        if entry.ref_class is not RefClass.LIVE or not entry.users:
            self._queues[entry.ref_class].add(entry)

    def _withdraw(self, entry: Entry) -> None:
        if entry.slot is not None:
            entry.slot.discard(entry)

    def _left(self, entry: Entry) -> None:
        for branch in entry.users:  # else paths of branches that ended keep evicted entries alive
            while branch.path and not branch.path[-1].held:
                branch.path.pop()
        entry.users = {}

    def _unuse(self, entry: Entry, branch: _Branch) -> None:
        if not entry.held or entry.users.pop(branch, self) is self:
            return
        if entry.slot is not None:  # its rank changes
            self._withdraw(entry)
        entry.stamp = max(entry.stamp, branch.stamp)
        if not entry.pins:
            self._admit(entry)

    # ------------------------------------------------------------ what branches do

    def access(self, branch: BranchKey | None, path: Sequence[Key], now_s: float) -> None:
        self._visit += 1
        self._changed = True
        known = self._entries
        found = [known[key] for key in path if key in known]
        if branch is None:
            self._touch(found)
            return
        user = self._arriving(branch, now_s)
        old = user.path
        shared = len(old) if found[: len(old)] == old else _common(found, old)
        for entry in reversed(old[shared:]):
            self._unuse(entry, user)
        user.path = found
        user.stamp, user.visited_s, user.settled_s = self._visit, now_s, None
        user.position, user.sweep = UNRANKED, -1
        for entry in found[shared:]:
            entry.users[user] = None
            if entry.slot is not None and entry.ref_class is RefClass.LIVE:
                self._withdraw(entry)

    def _touch(self, entries: list[Entry]) -> None:
        """An access of no known branch."""
        for entry in reversed(entries):
            entry.stamp, queue = self._visit, entry.slot
            if queue is not None:
                queue.touch(entry)

    def _arriving(self, key: BranchKey, now_s: float) -> _Branch:
        branch = self._branches.get(key)
        if branch is None:
            self._number += 1
            branch = self._branches[key] = _Branch(key, self._number)
            if len(self._branches) > MOST_BRANCHES:
                self._let_go(next(iter(self._branches)))
        else:
            self._branches.move_to_end(key)
            if branch.settled_s is not None:
                self.gaps.paused(branch.ending, branch.habit, now_s - branch.settled_s)
        return branch

    def settle(
        self,
        branch: BranchKey,
        now_s: float,
        ending: Ending = Ending.UNKNOWN,
        expect_resume_s: float | None = None,
    ) -> None:
        found = self._branches.get(branch)
        if found is None or found.settled_s is not None:
            return
        self.gaps.served(now_s - found.visited_s)
        found.settled_s, found.ending = now_s, ending
        found.due_s = None if expect_resume_s is None else now_s + expect_resume_s
        found.position = UNRANKED
        self._changed = True

    def end(self, branch: BranchKey, now_s: float) -> None:
        if branch in self._branches:
            self._let_go(branch)

    def _let_go(self, key: BranchKey) -> None:
        branch = self._branches.pop(key)
        for entry in reversed(branch.path):
            self._unuse(entry, branch)
        branch.path, branch.position = [], UNRANKED
        self._changed = True

    # ------------------------------------------------------------ the order

    def _pop(self, now_s: float) -> Iterator[Entry]:
        for ref_class in (RefClass.UNREFERENCED, RefClass.SUSPECT):
            while (entry := self._least_recent(self._queues[ref_class])) is not None:
                entry.slot.discard(entry)
                yield entry
        while True:
            if self._stale(now_s):
                self._rank(now_s)
            while (entry := self._live()) is not None:
                yield entry
            if not self._changed:
                return
            self._rank(now_s)

    def _least_recent(self, queue: Recency) -> Entry | None:
        """The first by the visits of an entry's users too, which do not touch the queue."""
        while (entry := queue.first()) is not None:
            stamp = max((user.stamp for user in entry.users), default=0)
            if stamp <= entry.stamp:
                return entry
            queue.discard(entry)
            entry.stamp = stamp
            queue.add(entry)
        return None

    def _stale(self, now_s: float) -> bool:
        if self._rerank_s:
            return now_s >= self._ranked_s + self._rerank_s
        return self._changed or now_s != self._ranked_s

    def _rank(self, now_s: float) -> None:
        for branch in self._branches.values():
            branch.residual_s = self.residual_s(branch, now_s)
        self._ranking = sorted(
            (branch for branch in self._branches.values() if branch.path),
            key=lambda branch: (-branch.residual_s, branch.number),
        )
        for position, branch in enumerate(self._ranking):
            branch.position = position
        self._next, self._ranked_s, self._changed = 0, now_s, False

    def residual_s(self, branch: _Branch, now_s: float) -> float:
        """Expected time until the branch's next request."""
        if branch.settled_s is None:
            return self.gaps.flight_residual_s(now_s - branch.visited_s)
        if branch.due_s is not None and now_s < branch.due_s:
            return branch.due_s - now_s
        return self.gaps.idle_residual_s(branch.ending, branch.habit, now_s - branch.settled_s)

    def _live(self) -> Entry | None:
        """The next live entry by the current ranking."""
        lone = self._queues[RefClass.LIVE]
        first = lone.first()
        if first is not None and first.stamp <= self._visit:
            return lone.pop()
        while self._next < len(self._ranking):
            branch = self._ranking[self._next]
            entry = self._deepest(branch) if branch.position == self._next else None
            if entry is not None:
                return entry
            self._next += 1
        return lone.pop()  # of the request under way: its branch is not known yet

    def _deepest(self, branch: _Branch) -> Entry | None:
        """The deepest evictable entry that no branch ranked later needs.

        What one of those needs, it needs with all ancestors: behind it there is nothing.
        """
        path = branch.path
        while path and not path[-1].held:
            path.pop()
        branch.tail = min(branch.tail, len(path))
        if branch.sweep != self._sweep:
            branch.sweep, branch.tail = self._sweep, len(path)
        while branch.tail:
            entry = path[branch.tail - 1]
            if entry.held and not entry.pins and entry.ref_class is RefClass.LIVE:
                if len(entry.users) > 1 and any(
                    user.position > branch.position for user in entry.users
                ):
                    return None
                return entry
            branch.tail -= 1
        return None

    # ------------------------------------------------------------ check

    def _problems(self) -> Iterator[str]:
        evictable = self._evictable()
        for ref_class, queue in self._queues.items():
            yield from queue.problems(ref_class.name)
            expected = [
                entry
                for entry in evictable
                if entry.ref_class is ref_class
                and (ref_class is not RefClass.LIVE or not entry.users)
            ]
            yield from same_entries(ref_class.name, queue, expected)
        used = {(b, e) for b in self._branches.values() for e in b.path if e.held}
        if used != {(b, e) for e in self._entries.values() for b in e.users}:
            yield "paths of branches and users of entries differ"


def _common(left: list[Entry], right: list[Entry]) -> int:
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a is not b:
            return place
    return min(len(left), len(right))
