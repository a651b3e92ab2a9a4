"""Runs of blocks, and the nodes that hold them.

A run is a string of blocks with one parent. It holds the copies, references and promises of its
blocks as intervals of absolute positions (blocks from the root), so that growing or cutting a
run moves no number. A cut keeps the lower part as the old object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from evctl.core.blocks import KEY_BYTES
from evctl.policy.directory import spans
from evctl.policy.directory.spans import Spans, Steps

if TYPE_CHECKING:
    from evctl.policy.directory.ledger import Branch

_MOST_LISTED = 4
"""Tips of a run that are a tuple: a dict is four times as large."""


class Node:
    """One life of a node: what it holds, and who names it. Equal by identity."""

    __slots__ = (
        "bit", "blocks", "boot_id", "classes", "latest", "leased", "name", "named", "runs",
    )  # fmt: skip

    def __init__(self, name: str, boot_id: str, bit: int) -> None:
        self.name = name
        self.boot_id = boot_id
        self.bit = bit
        """Its place in the masks of runs: a power of two."""
        self.runs: dict[Run, None] = {}
        """Runs of which it holds a block, oldest first."""
        self.named: dict[Branch, None] = {}
        """Branches that refer to it, in either phase."""
        self.blocks = [0, 0, 0]
        """Blocks by tier; index 0 is unused."""
        self.classes = [0, 0, 0]
        """Blocks in any tier by class."""
        self.leased = 0
        """Blocks that transfers read from it, each as often as one does."""
        self.latest: Run | None = None
        """Where its inventory goes on: the run of the path that was taken in last."""


class Tip(Protocol):
    """Whoever needs the path to a position: a branch, a request under way."""

    run: Run
    end: int


_NOBODY: Final[dict[Node, Spans]] = {}


class Run:
    """Blocks start..end of a path, and everything known about them.

    l1, l2: copies by tier; None: no copies, as with all its tables. full: nodes that hold every
    block of it, in whatever tier; part: nodes that hold some and not all. expect: nodes where
    what is stored and promised makes all. ends: how many copies end at a position before the
    last; those and the last are indexed. whole: (start, end), which all share that hold all.
    """

    __slots__ = (
        "end", "ends", "expect", "full", "keys", "kids", "l1", "l2", "parent", "part", "promised",
        "refs", "start", "tips", "whole",
    )  # fmt: skip

    def __init__(self, parent: Run | None, start: int, keys: bytes | bytearray) -> None:
        self.parent = parent
        self.start = start
        self.end = end = start + len(keys) // KEY_BYTES
        self.keys = keys
        self.kids: dict[bytes, Run] | None = None
        self.l1: dict[Node, Spans] | None = None
        self.l2: dict[Node, Spans] | None = None
        self.full = 0
        self.part = 0
        self.expect = 0
        self.refs: dict[Node, Steps] | None = None
        self.promised: dict[Node, Steps] | None = None
        self.ends: dict[int, int] | None = None
        self.tips: tuple[Tip, ...] | dict[Tip, None] | None = None
        self.whole = (start, end)

    # ------------------------------------------------------------ copies

    @property
    def tiers(self) -> tuple[Mapping[Node, Spans], Mapping[Node, Spans]]:
        """Copies in L1 and L2, to be read."""
        return self.l1 or _NOBODY, self.l2 or _NOBODY

    def held(self, node: Node, tier: int) -> Spans:
        """Its blocks that the node holds in that tier."""
        table = self.l2 if tier == 2 else self.l1
        return table.get(node, ()) if table else ()

    def hold(self, node: Node, tier: int, held: Spans) -> None:
        """The node holds these in that tier. Masks, index and numbers are the caller's."""
        table = self.l2 if tier == 2 else self.l1
        if held:
            if held == self.whole:
                held = self.whole
            if table is not None:
                table[node] = held
                return
            table = {node: held}
        elif table is None:
            return
        else:
            table.pop(node, None)
            if table:
                return
            table = None
        if tier == 2:
            self.l2 = table
        else:
            self.l1 = table

    def present(self, node: Node) -> Spans:
        """Its blocks that the node holds in any tier."""
        first, second = self.l1, self.l2
        if not first:
            return second.get(node, ()) if second else ()
        if not second:
            return first.get(node, ())
        return spans.union(first.get(node, ()), second.get(node, ()))

    def expected(self, node: Node) -> Spans:
        """Its blocks that the node holds or has promised."""
        steps = self.promised.get(node, ()) if self.promised else ()
        return spans.union(self.present(node), spans.positive(steps, self.start))

    def holders(self) -> list[Node]:
        """Nodes that hold any of it."""
        first, second = self.l1, self.l2
        if not first:
            return list(second or ())
        return list(first | second) if second else list(first)

    def tell(self, node: Node) -> None:
        """Bring the masks up to date with what the node holds and promises."""
        present = self.present(node)
        bit = node.bit
        if present == self.whole:
            self.full |= bit
            self.part &= ~bit
        else:
            self.full &= ~bit
            self.part = self.part | bit if present else self.part & ~bit
        if self.promised:
            self.tell_expected(node)

    def tell_expected(self, node: Node) -> None:
        """Bring the mask of what is expected up to date; something is promised."""
        if self.full & node.bit or self.expected(node) == self.whole:
            self.expect |= node.bit
        else:
            self.expect &= ~node.bit

    # ------------------------------------------------------------ keys

    def key(self, position: int) -> bytes:
        """Key of the block before `position`: the name of the path that ends there."""
        at = (position - self.start) * KEY_BYTES
        return bytes(self.keys[at - KEY_BYTES : at])

    def slice(self, start: int, end: int) -> bytes:
        """Keys of the blocks from position `start` to before `end`."""
        base = self.start
        return bytes(self.keys[(start - base) * KEY_BYTES : (end - base) * KEY_BYTES])

    def find(self, key: bytes) -> int:
        """Position after the block with that key; 0 if it is not in here."""
        at = self.keys.find(key)
        while at >= 0 and at % KEY_BYTES:
            at = self.keys.find(key, at + 1)
        return self.start + at // KEY_BYTES + 1 if at >= 0 else 0

    def find_last(self, key: bytes) -> int:
        """The same, faster where it is near the end, slower where it is not in here."""
        at = self.keys.rfind(key)
        while at >= 0 and at % KEY_BYTES:
            at = self.keys.rfind(key, 0, at + KEY_BYTES - 1)
        return self.start + at // KEY_BYTES + 1 if at >= 0 else 0

    def boundary(self, key: bytes) -> int:
        """Like find, where the key is indexed: the last one or the end of a copy."""
        if self.keys.endswith(key):
            return self.end
        for position in self.ends or ():
            if self.key(position) == key:
                return position
        return 0

    def common(self, keys: bytes, low: int, high: int, base: int = 0) -> int:
        """Last position up to `high` that `keys` share; they share `low` and begin at `base`.

        Keys are chained: equal at one position means equal before it, so bisection is enough.
        """
        middle = high  # nearly always all of it
        while low < high:
            at = (middle - base) * KEY_BYTES
            if keys[at - KEY_BYTES : at] == self.key(middle):
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return low

    # ------------------------------------------------------------ tips

    def settle(self, tip: Tip) -> None:
        """The path to the tip is kept."""
        tips = self.tips
        if tips is None:
            self.tips = (tip,)
        elif isinstance(tips, dict):
            tips[tip] = None
        elif tip not in tips:
            if len(tips) < _MOST_LISTED:
                self.tips = (*tips, tip)
            else:
                self.tips = dict.fromkeys((*tips, tip))

    def leave(self, tip: Tip) -> None:
        """It is not kept for that tip any more."""
        tips = self.tips
        if isinstance(tips, tuple):
            if tip in tips:
                at = tips.index(tip)
                self.tips = tips[:at] + tips[at + 1 :] or None
        elif tips is not None:
            tips.pop(tip, None)
            if not tips:
                self.tips = None
