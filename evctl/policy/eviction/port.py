"""The port: in which order a node gives up KV blocks.

An order knows *entries*. In the engine an entry is one block (its key, `blocks` 1); a simulator
may hand in a stretch of blocks that are always used together as one entry of many blocks. An
entry goes whole. `depth` is the position of its first block in the context; a path is the
entries of one context, root first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from enum import Enum, IntEnum
from typing import Protocol

Key = Hashable
"""A block key, or whatever names a stretch of blocks."""
BranchKey = Hashable
"""Names a branch on this node, scoped by tenant."""


class RefClass(IntEnum):
    """Who needs a block; lower ones go first (design section 3, paper section 4.4)."""

    UNREFERENCED = 0
    SUSPECT = 1
    LIVE = 2


class Ending(Enum):
    """How a branch's last response ended: it tells much about the pause that follows."""

    TOOL_CALL = "tool_call"
    TURN = "turn"
    UNKNOWN = "unknown"


class EvictionOrder(Protocol):
    """Which blocks to evict next. One thread calls it; it never blocks and knows no clock.

    now_s: seconds on any one clock; it never goes back. Unknown keys and branches are ignored
    where a late message may name them (access, classify, settle, end) and are KeyErrors
    elsewhere. An entry counts as LIVE from its insertion until classify() says otherwise: too
    many references lose a little room, too few lose KV that is needed. What an order does not
    use (branches, classes, endings) it accepts and ignores.
    """

    @property
    def total_blocks(self) -> int:
        """Blocks of all entries, pinned ones included."""
        ...

    @property
    def suffix_first(self) -> bool:
        """Whether, of the entries on one path and of one class, none goes before a deeper one
        that is not pinned."""
        ...

    @property
    def by_class(self) -> bool:
        """Whether no entry goes while one of a lower class could."""
        ...

    def __contains__(self, key: Key) -> bool: ...

    def insert(self, key: Key, depth: int, blocks: int = 1) -> None:
        """A new entry, of the request under way: its access() follows. ValueError if it is
        known or has no block."""
        ...

    def access(self, branch: BranchKey | None, path: Sequence[Key], now_s: float) -> None:
        """A request of `branch` uses `path`; None: of no known branch. Costs O(path).

        Until settle() the branch is in flight. Entries that its last path had and this one has
        not are no longer its own.
        """
        ...

    def settle(
        self,
        branch: BranchKey,
        now_s: float,
        ending: Ending = Ending.UNKNOWN,
        expect_resume_s: float | None = None,
    ) -> None:
        """The branch's response is complete, its pause begins.

        expect_resume_s: the harness says how long (X-Branch-Expect-Resume).
        """
        ...

    def end(self, branch: BranchKey, now_s: float) -> None:
        """The branch will not come back."""
        ...

    def classify(self, epoch: int, keys: Iterable[Key], ref_class: RefClass) -> int:
        """The control plane's word on who needs `keys`; returns to how many it applied.

        It applies to an entry unless a higher epoch has spoken about it, or had been heard of
        when it was inserted: then the message is older than the entry.
        """
        ...

    def pin(self, key: Key) -> None:
        """Keep an entry from eviction until as many unpin()."""
        ...

    def unpin(self, key: Key) -> None:
        """ValueError without a pin. The entry's last access is unchanged."""
        ...

    def remove(self, key: Key) -> None:
        """Forget an entry that is gone for another reason, pinned or not."""
        ...

    def victims(self, need_blocks: int, now_s: float) -> list[Key]:
        """Take entries out of the order, first to go first, until they hold need_blocks.

        Fewer only if nothing else may go; never a pinned one. Costs O(log n) for each victim,
        amortised; see the implementation for what else.
        """
        ...

    def check(self) -> list[str]:
        """Violations of the order's own books, everything recomputed; O(n)."""
        ...
