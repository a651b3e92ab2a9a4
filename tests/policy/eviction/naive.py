"""Eviction orders written down plainly: all is recomputed at each question, nothing is clever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from evctl.policy.eviction import Ending, GapModel, Habit, RefClass

Key = int


@dataclass
class Block:
    depth: int
    blocks: int
    number: int
    epoch: int
    stamp: int
    ref_class: RefClass = RefClass.LIVE
    pins: int = 0


@dataclass
class Branch:
    number: int
    path: Sequence[Key] = ()
    stamp: int = 0
    visited_s: float = 0.0
    settled_s: float | None = None
    ending: Ending = Ending.UNKNOWN
    due_s: float | None = None
    habit: Habit = field(default_factory=Habit)


class Naive:
    """What an order is told, remembered."""

    def __init__(self) -> None:
        self.held: dict[Key, Block] = {}
        self.branches: dict[str, Branch] = {}
        self.visit = self.number = self.epoch = self.named = 0
        self.gaps = GapModel()

    def insert(self, key: Key, depth: int, blocks: int) -> None:
        self.number += 1
        self.held[key] = Block(depth, blocks, self.number, self.epoch, self.visit + 1)
        for branch in self.branches.values():  # it is another entry than the one that went
            branch.path = [other for other in branch.path if other != key]

    def access(self, name: str | None, path: Sequence[Key], now_s: float) -> None:
        self.visit += 1
        for key in path:
            if key in self.held:
                self.held[key].stamp = self.visit
        if name is None:
            return
        if name not in self.branches:
            self.named += 1
            self.branches[name] = Branch(self.named)
        branch = self.branches[name]
        if branch.settled_s is not None:
            self.gaps.paused(branch.ending, branch.habit, now_s - branch.settled_s)
        branch.path = [key for key in path if key in self.held]
        branch.visited_s, branch.settled_s = now_s, None

    def settle(self, name: str, now_s: float, ending: Ending, expect_s: float | None) -> None:
        branch = self.branches.get(name)
        if branch is not None and branch.settled_s is None:
            self.gaps.served(now_s - branch.visited_s)
            branch.settled_s, branch.ending = now_s, ending
            branch.due_s = None if expect_s is None else now_s + expect_s

    def classify(self, epoch: int, keys: Sequence[Key], ref_class: RefClass) -> int:
        self.epoch = max(self.epoch, epoch)
        applied = [key for key in keys if key in self.held and self.held[key].epoch <= epoch]
        for key in applied:
            self.held[key].epoch, self.held[key].ref_class = epoch, ref_class
        return len(applied)

    def drop(self, key: Key) -> None:
        del self.held[key]

    # ------------------------------------------------------------ what goes next

    def evictable(self) -> list[Key]:
        return [key for key, block in self.held.items() if not block.pins]

    def least(self, keys: Sequence[Key], rank: Callable[[Block], object]) -> Key | None:
        def full(key: Key) -> tuple[object, int, int, int]:
            block = self.held[key]
            return rank(block), block.stamp, -block.depth, block.number

        return min(keys, key=full, default=None)  # type: ignore[arg-type]

    def lru(self, now_s: float) -> Key | None:
        return self.least(self.evictable(), lambda block: 0)

    def paper(self, now_s: float) -> Key | None:
        return self.least(self.evictable(), lambda block: block.ref_class)

    def expected(self, now_s: float) -> Key | None:
        spare = [k for k in self.evictable() if self.held[k].ref_class is not RefClass.LIVE]
        if spare:
            return self.least(spare, lambda block: block.ref_class)
        live = self.evictable()
        users = {k: [b for b in self.branches.values() if k in b.path] for k in live}
        lone = self.least([k for k in live if not users[k]], lambda block: 0)
        if lone is not None and self.held[lone].stamp <= self.visit:
            return lone

        def first_need(key: Key) -> tuple[float, int]:
            return min((self.residual_s(b, now_s), -b.number) for b in users[key])

        needed = max(
            (k for k in live if users[k]),
            key=lambda k: (first_need(k), self.held[k].depth),
            default=None,
        )
        return lone if needed is None else needed

    def residual_s(self, branch: Branch, now_s: float) -> float:
        if branch.settled_s is None:
            return self.gaps.flight_residual_s(now_s - branch.visited_s)
        if branch.due_s is not None and now_s < branch.due_s:
            return branch.due_s - now_s
        idle_s = now_s - branch.settled_s
        return self.gaps.idle_residual_s(branch.ending, branch.habit, idle_s)
