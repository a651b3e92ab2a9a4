"""How often live branches refer to a copy, and what class that gives it.

A count packs three numbers: live references, suspect ones, leases. It is kept for every block
that a branch names at a node, and counts on the copy while the copy is there: refs(x, n) =
branches and phases that name n, where n holds x (design, section 3). All work is per run.
"""

from __future__ import annotations

import msgspec

from evctl.policy.directory import spans
from evctl.policy.directory.runs import Node, Run

LEASE = 1
SUSPECT = 1 << 20
LIVE = 1 << 40
UNTOLD = 2
"""Class of a copy that nothing was said about."""
_LEASES = SUSPECT - 1
_LIVES = LIVE - 1


class RefDelta(msgspec.Struct, frozen=True):
    """Blocks of a node that changed class: `keys` (16 bytes each) are one chain of one path.

    block_class: 0 unreferenced, 1 suspect only, 2 live or leased. A copy that appears has class
    2 until told otherwise, so that what a branch needs is safe before the control plane has
    spoken, and nothing is sent for what a branch keeps. epoch rises with every change; a node
    ignores one that is not newer.
    """

    node: str
    boot_id: str
    block_class: int
    keys: bytes
    epoch: int


def class_of(count: int) -> int:
    """0 unreferenced, 1 suspect only, 2 live. A leased block counts as live."""
    if count >= LIVE or count & _LEASES:
        return 2
    return 1 if count else 0


def lives(count: int) -> int:
    """References of live branches in a count."""
    return count >> 40


def suspects(count: int) -> int:
    """References of suspect branches in a count."""
    return (count & _LIVES) >> 20


def leases(count: int) -> int:
    """Transfers that read the block."""
    return count & _LEASES


class Counts:
    """Changes counts along paths, keeps blocks by class of every node, collects the changes."""

    def __init__(self) -> None:
        self.epoch = 0
        self._pending: list[RefDelta] = []

    def drain(self) -> list[RefDelta]:
        """Changes of class since the last call, in order."""
        pending, self._pending = self._pending, []
        return pending

    def add(self, run: Run, start: int, end: int, node: Node, delta: int) -> None:
        """Add to the counts of [start, end) of the path that `run` ends."""
        while start < end:
            if start >= run.start:
                self._add_in(run, start, end, node, delta)
                return
            if run.start < end:
                self._add_in(run, run.start, end, node, delta)
                end = run.start
            assert run.parent is not None
            run = run.parent

    def _add_in(self, run: Run, start: int, end: int, node: Node, delta: int) -> None:
        refs = run.refs
        if refs is None:
            refs = run.refs = {}
        steps, changes = spans.shift(refs.get(node, ()), run.start, start, end, delta)
        if steps:
            refs[node] = steps
        else:
            del refs[node]
            run.refs = refs or None
        if not (run.full | run.part) & node.bit:
            return
        held = run.present(node)
        if held[-1] <= start:
            return
        for low, high, before, after in changes:
            old, new = class_of(before), class_of(after)
            if old == new:
                continue
            for first, last in spans.pairs(spans.clip(held, low, high)):
                node.classes[old] -= last - first
                node.classes[new] += last - first
                self._emit(run, first, last, node, new)

    def appeared(self, run: Run, node: Node, start: int, end: int) -> None:
        """The node holds [start, end) of the run now, and did not before."""
        steps = run.refs.get(node, ()) if run.refs else ()
        for low, high, count in spans.within(steps, run.start, start, end):
            block_class = class_of(count)
            node.classes[block_class] += high - low
            if block_class != UNTOLD:
                self._emit(run, low, high, node, block_class)

    def vanished(self, run: Run, node: Node, start: int, end: int) -> None:
        """The node holds [start, end) of the run no more, in any tier."""
        steps = run.refs.get(node, ()) if run.refs else ()
        for low, high, count in spans.within(steps, run.start, start, end):
            node.classes[class_of(count)] -= high - low

    def _emit(self, run: Run, start: int, end: int, node: Node, block_class: int) -> None:
        self.epoch += 1
        keys = run.slice(start, end)
        self._pending.append(RefDelta(node.name, node.boot_id, block_class, keys, self.epoch))
