"""What all orders share: entries, their pins, classes and epochs."""

# ruff: noqa: B027  # an order has the port's signature and ignores what it does not use

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from evctl.policy.eviction.port import BranchKey, Ending, Key, RefClass


class Entry:
    """A block, or blocks that go together.

    stamp: the visit that used it last; number: order of insertion, which breaks ties. slot and
    mark belong to the order that holds the entry.
    """

    __slots__ = (
        "blocks",
        "depth",
        "epoch",
        "held",
        "key",
        "mark",
        "number",
        "pins",
        "ref_class",
        "slot",
        "stamp",
        "users",
    )

    def __init__(self, key: Key, depth: int, blocks: int, number: int, epoch: int) -> None:
        self.key = key
        self.depth = depth
        self.blocks = blocks
        self.number = number
        self.epoch = epoch
        self.ref_class = RefClass.LIVE
        self.pins = 0
        self.held = True
        self.stamp = 0
        self.slot: Any = None
        self.mark = 0
        self.users: dict[Any, None] = {}

    @property
    def rank(self) -> tuple[int, int, int]:
        """Least recent first, deeper first, then as inserted."""
        return self.stamp, -self.depth, self.number


class Book(ABC):
    """An EvictionOrder without an order: a subclass says where an evictable entry waits."""

    suffix_first = True
    by_class = False

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._total_blocks = 0
        self._epoch = 0
        self._visit = 0
        self._number = 0

    # ------------------------------------------------------------ what an order adds

    @abstractmethod
    def _admit(self, entry: Entry) -> None:
        """The entry can be evicted from now on: it is new, or its last pin or its class went."""

    @abstractmethod
    def _withdraw(self, entry: Entry) -> None:
        """The entry cannot be evicted from here: pinned, removed, or about to change class."""

    @abstractmethod
    def _pop(self, now_s: float) -> Iterator[Entry]:
        """Entries, first to go first and already withdrawn, for as long as the caller asks."""

    @abstractmethod
    def access(self, branch: BranchKey | None, path: Sequence[Key], now_s: float) -> None: ...

    @abstractmethod
    def _problems(self) -> Iterator[str]:
        """What is wrong with where entries wait."""

    def _arrived(self, entry: Entry) -> None:
        """The entry is new; it is admitted next."""

    def _left(self, entry: Entry) -> None:
        """The entry was evicted or removed, after its withdrawal."""

    # ------------------------------------------------------------ EvictionOrder

    @property
    def total_blocks(self) -> int:
        return self._total_blocks

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def insert(self, key: Key, depth: int, blocks: int = 1) -> None:
        if key in self._entries or blocks < 1:
            raise ValueError(f"entry {key!r} of {blocks} blocks is known or empty")
        self._number += 1
        entry = Entry(key, depth, blocks, self._number, self._epoch)
        # The visit under way: its blocks come one by one, and deeper ones still go first.
        entry.stamp = self._visit + 1
        self._entries[key] = entry
        self._total_blocks += blocks
        self._arrived(entry)
        self._admit(entry)

    def settle(
        self,
        branch: BranchKey,
        now_s: float,
        ending: Ending = Ending.UNKNOWN,
        expect_resume_s: float | None = None,
    ) -> None:
        """Most orders do not look at pauses."""

    def end(self, branch: BranchKey, now_s: float) -> None:
        """Most orders learn of an end by classify() alone, or not at all."""

    def classify(self, epoch: int, keys: Iterable[Key], ref_class: RefClass) -> int:
        applied = 0
        self._epoch = max(self._epoch, epoch)
        for key in keys:
            entry = self._entries.get(key)
            if entry is None or epoch < entry.epoch:
                continue
            entry.epoch = epoch
            applied += 1
            if entry.ref_class is ref_class:
                continue
            if self.by_class and not entry.pins:
                self._withdraw(entry)
                entry.ref_class = ref_class
                self._admit(entry)
            else:
                entry.ref_class = ref_class
        return applied

    def pin(self, key: Key) -> None:
        entry = self._entries[key]
        if not entry.pins:
            self._withdraw(entry)
        entry.pins += 1

    def unpin(self, key: Key) -> None:
        entry = self._entries[key]
        if not entry.pins:
            raise ValueError(f"entry {key!r} has no pin")
        entry.pins -= 1
        if not entry.pins:
            self._admit(entry)

    def remove(self, key: Key) -> None:
        entry = self._entries[key]
        if not entry.pins:
            self._withdraw(entry)
        self._forget(entry)

    def victims(self, need_blocks: int, now_s: float) -> list[Key]:
        taken: list[Key] = []
        left = need_blocks
        if left <= 0:
            return taken
        for entry in self._pop(now_s):
            self._forget(entry)
            taken.append(entry.key)
            left -= entry.blocks
            if left <= 0:
                break
        return taken

    def check(self) -> list[str]:
        problems = []
        if sum(entry.blocks for entry in self._entries.values()) != self._total_blocks:
            problems.append(f"total_blocks is {self._total_blocks}, not the sum of the entries")
        for key, entry in self._entries.items():
            if entry.key != key or not entry.held:
                problems.append(f"entry {key!r} is held under another name or not at all")
            if entry.pins < 0:
                problems.append(f"entry {key!r} has {entry.pins} pins")
            if entry.epoch > self._epoch or entry.stamp > self._visit + 1:
                problems.append(f"entry {key!r} comes from the future")
        return [*problems, *self._problems()]

    # ------------------------------------------------------------ inside

    def _forget(self, entry: Entry) -> None:
        del self._entries[entry.key]
        self._total_blocks -= entry.blocks
        entry.held = False
        self._left(entry)

    def _evictable(self) -> list[Entry]:
        return [entry for entry in self._entries.values() if not entry.pins]


def same_entries(what: str, found: Iterable[Entry], expected: Iterable[Entry]) -> Iterator[str]:
    """A violation unless both name the same entries, each once."""
    names = sorted(str(entry.key) for entry in found)
    wanted = sorted(str(entry.key) for entry in expected)
    if names != wanted:
        yield f"{what} holds {names[:8]}, not {wanted[:8]}"
