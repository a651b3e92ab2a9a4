"""How often live branches refer to a copy, and what class that gives it.

A count packs three numbers: live references, suspect ones, leases. It is kept for every block
that a branch names at a node, and counts on the copy while the copy is there: refs(x, n) =
branches and phases that name n, where n holds x (design, section 3). All work is per run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evctl.policy.directory import spans
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.spans import Change, Spans, Steps

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
            low = run.start
            if start >= low:
                self._add_in(run, start, end, node, delta)
                return
            if low < end:
                self._add_in(run, low, end, node, delta)
                end = low
            assert run.parent is not None
            run = run.parent

    def _add_in(self, run: Run, start: int, end: int, node: Node, delta: int) -> None:
        refs = run.refs
        if refs is None:
            refs = run.refs = {}
        kept = refs.get(node)
        if kept is None:
            if end == run.end:
                end = run.end
            kept = ()
        elif kept[-2] == start and kept[-1] == delta:  # what a branch adds behind its own
            refs[node] = (*kept[:-2], end, delta) if len(kept) > 2 else (end, delta)
            if (run.full | run.part) & node.bit:
                self._turn(run, node, ((start, end, 0, delta),))
            return
        steps, changes = spans.shift(kept, run.start, start, end, delta)
        if steps:
            if steps[0] == run.end:  # mostly what the other phase's node has: share it
                for other in refs.values():
                    if other == steps:
                        steps = other
                    break
            refs[node] = steps
        else:
            del refs[node]
            if not refs:
                run.refs = None
        if (run.full | run.part) & node.bit:
            self._turn(run, node, changes)

    def _turn(self, run: Run, node: Node, changes: Sequence[Change]) -> None:
        """Counts of a run changed at a node that holds some of it."""
        held: Spans = ()
        for low, high, before, after in changes:
            if before >= LIVE and after >= LIVE:
                continue
            old, new = class_of(before), class_of(after)
            if old == new:
                continue
            held = held or run.present(node)
            if held[-1] <= low:
                return
            for first, last in spans.pairs(spans.clip(held, low, high)):
                node.classes[old] -= last - first
                node.classes[new] += last - first
                self._emit(node, new, run.slice(first, last))

    def appeared(self, run: Run, node: Node, start: int, end: int) -> None:
        """The node holds [start, end) of the run now, and did not before."""
        steps = run.refs.get(node, ()) if run.refs else ()
        count = _only(steps, start, end)
        if count is not None:
            block_class = class_of(count)
            node.classes[block_class] += end - start
            if block_class != UNTOLD:
                self._emit(node, block_class, run.slice(start, end))
            return
        for low, high, each in spans.within(steps, run.start, start, end):
            block_class = class_of(each)
            node.classes[block_class] += high - low
            if block_class != UNTOLD:
                self._emit(node, block_class, run.slice(low, high))

    def vanished(self, run: Run, node: Node, start: int, end: int) -> None:
        """The node holds [start, end) of the run no more, in any tier."""
        steps = run.refs.get(node, ()) if run.refs else ()
        count = _only(steps, start, end)
        if count is not None:
            node.classes[class_of(count)] -= end - start
            return
        for low, high, each in spans.within(steps, run.start, start, end):
            node.classes[class_of(each)] -= high - low

    def unnamed(self, node: Node, added: int, keys: bytes) -> None:
        """The node holds so many blocks more, which nobody refers to there."""
        node.classes[0] += added
        self.epoch = epoch = self.epoch + 1
        self._pending.append(RefDelta(node.name, node.boot_id, 0, keys, epoch))

    def _emit(self, node: Node, block_class: int, keys: bytes) -> None:
        self.epoch += 1
        self._pending.append(RefDelta(node.name, node.boot_id, block_class, keys, self.epoch))


def _only(steps: Steps, start: int, end: int) -> int | None:
    """The count of all of [start, end), where the last step or none covers it; else None."""
    if not steps or steps[-2] <= start:
        return 0
    if end <= steps[-2] and (len(steps) == 2 or steps[-4] <= start):
        return steps[-1]
    return None
