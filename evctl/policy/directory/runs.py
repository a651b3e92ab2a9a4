"""Runs of blocks, and the nodes that hold them.

A run is a string of blocks with one parent. It holds the copies, references and promises of its
blocks as intervals of absolute positions (blocks from the root), so that growing or cutting a
run moves no number. A cut keeps the lower part as the old object.
"""

from __future__ import annotations

from typing import Protocol

from evctl.core.blocks import KEY_BYTES
from evctl.policy.directory import spans
from evctl.policy.directory.spans import Spans, Steps


class Node:
    """One life of a node: what it holds, and who names it. Equal by identity."""

    __slots__ = (
        "bit", "blocks", "boot_id", "classes", "name", "named", "runs",
    )  # fmt: skip

    def __init__(self, name: str, boot_id: str, bit: int) -> None:
        self.name = name
        self.boot_id = boot_id
        self.bit = bit
        """Its place in the masks of runs: a power of two."""
        self.runs: dict[Run, None] = {}
        """Runs of which it holds a block, oldest first."""
        self.named: dict[object, None] = {}
        """Branches that refer to it, in either phase."""
        self.blocks = [0, 0, 0]
        """Blocks by tier; index 0 is unused."""
        self.classes = [0, 0, 0]
        """Blocks in any tier by class."""


class Tip(Protocol):
    """Whoever needs the path to a position: a branch, a request under way."""

    run: Run
    end: int


class Run:
    """Blocks start..end of a path, and everything known about them.

    tiers: copies in L1 and L2. full: nodes that hold every block of it, in whatever tier; part:
    nodes that hold some and not all. expect: nodes where what is stored and promised makes all.
    ends: how many copies end at a position before the last; those and the last are indexed.
    """

    __slots__ = (
        "end", "ends", "expect", "full", "keys", "kids", "parent", "part", "promised", "refs",
        "start", "tiers", "tips",
    )  # fmt: skip

    def __init__(self, parent: Run | None, start: int, keys: bytes | bytearray) -> None:
        self.parent = parent
        self.start = start
        self.end = start + len(keys) // KEY_BYTES
        self.keys = keys
        self.kids: dict[bytes, Run] | None = None
        self.tiers: tuple[dict[Node, Spans], dict[Node, Spans]] = ({}, {})
        self.full = 0
        self.part = 0
        self.expect = 0
        self.refs: dict[Node, Steps] | None = None
        self.promised: dict[Node, Steps] | None = None
        self.ends: dict[int, int] | None = None
        self.tips: dict[Tip, None] | None = None

    def key(self, position: int) -> bytes:
        """Key of the block before `position`: the name of the path that ends there."""
        at = (position - self.start) * KEY_BYTES
        return bytes(self.keys[at - KEY_BYTES : at])

    def slice(self, start: int, end: int) -> bytes:
        """Keys of the blocks from position `start` to before `end`."""
        base = self.start
        return bytes(self.keys[(start - base) * KEY_BYTES : (end - base) * KEY_BYTES])

    def present(self, node: Node) -> Spans:
        """Its blocks that the node holds in any tier."""
        first, second = self.tiers
        return spans.union(first.get(node, ()), second.get(node, ()))

    def expected(self, node: Node) -> Spans:
        """Its blocks that the node holds or has promised."""
        steps = self.promised.get(node, ()) if self.promised else ()
        return spans.union(self.present(node), spans.positive(steps, self.start))

    def holders(self) -> list[Node]:
        """Nodes that hold any of it."""
        first, second = self.tiers
        return list(first | second) if second else list(first)

    def find(self, key: bytes) -> int:
        """Position after the block with that key; 0 if it is not in here."""
        at = self.keys.find(key)
        while at >= 0 and at % KEY_BYTES:
            at = self.keys.find(key, at + 1)
        return self.start + at // KEY_BYTES + 1 if at >= 0 else 0

    def boundary(self, key: bytes) -> int:
        """Like find, where the key is indexed: the last one or the end of a copy."""
        if self.keys[-KEY_BYTES:] == key:
            return self.end
        for position in self.ends or ():
            if self.key(position) == key:
                return position
        return 0

    def common(self, keys: bytes, low: int, high: int, base: int = 0) -> int:
        """Last position up to `high` that `keys` share; they share `low` and begin at `base`.

        Keys are chained: equal at one position means equal before it, so bisection is enough.
        """
        while low < high:
            middle = (low + high + 1) // 2
            at = (middle - base) * KEY_BYTES
            if keys[at - KEY_BYTES : at] == self.key(middle):
                low = middle
            else:
                high = middle - 1
        return low

    def tell(self, node: Node) -> None:
        """Bring the masks up to date with what the node holds and promises."""
        whole = (self.start, self.end)
        present = self.present(node)
        bit = node.bit
        if present == whole:
            self.full |= bit
            self.part &= ~bit
        else:
            self.full &= ~bit
            self.part = self.part | bit if present else self.part & ~bit
        if self.promised:
            holds = self.expected(node) == whole
            self.expect = self.expect | bit if holds else self.expect & ~bit

    def settle(self, tip: Tip) -> None:
        """The path to the tip is kept."""
        if self.tips is None:
            self.tips = {}
        self.tips[tip] = None

    def leave(self, tip: Tip) -> None:
        """It is not kept for that tip any more."""
        if self.tips is not None:
            self.tips.pop(tip, None)
            if not self.tips:
                self.tips = None
