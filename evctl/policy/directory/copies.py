"""Copies: what nodes report as stored and evicted, whatever the order and however often."""

from __future__ import annotations

from collections.abc import Iterator

from evctl.core.blocks import KEY_BYTES
from evctl.policy.directory import spans
from evctl.policy.directory.counts import Counts
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.spans import Spans
from evctl.policy.directory.tree import Tree

TIERS = (1, 2)
_SCAN_KEYS = 8
"""From so many keys on, one pass over a node's blocks is cheaper than a search for each."""


class Copies:
    """Which node holds which block in which tier. The only writer of a run's `tiers`."""

    def __init__(self, tree: Tree, counts: Counts) -> None:
        self._tree = tree
        self._counts = counts

    # ------------------------------------------------------------ facts

    def store(
        self, node: Node, tier: int, parent: bytes, keys: bytes, hint: tuple[Run, int] | None
    ) -> tuple[Run, int] | None:
        """Blocks became readable, children of `parent`. Returns where they end in the tree;
        None when the parent is not known."""
        tree = self._tree
        run = tree.index.get(parent)
        if run is not None and not run.kids and run.keys.endswith(parent):
            held = run.tiers[tier - 1].get(node)
            if held is not None and held[-1] == run.end:
                self._append(run, node, tier, held, parent, keys)
                return run, run.end
        found = self._find_parent(node, parent, keys, hint)
        if found is None:
            return None
        run, position = found
        end = position + len(keys) // KEY_BYTES
        reached = position
        if position < run.end or run.kids:
            run, reached = tree.descend(keys, run, position, position)
        if reached < end:
            run = tree.extend(run, reached, keys[(reached - position) * KEY_BYTES :])
        self._hold(run, position, end, node, tier)
        return run, end

    def evict(self, node: Node, tier: int, keys: bytes) -> int:
        """Blocks are readable no more. Returns how many of them were held in that tier."""
        gone = 0
        inside: set[bytes] | None = None
        while keys:
            key = keys[-KEY_BYTES:]
            run = self._tree.index.get(key)
            if run is None:
                # Not at the end of a copy: rare, for nodes evict the deepest block first.
                if inside is None:
                    inside = self._inside(node, tier, keys)
                run = self._search(node, tier, key) if key in inside else None
            if run is None or node not in run.tiers[tier - 1]:
                keys = keys[:-KEY_BYTES]
                continue
            end = run.boundary(key) or run.find(key)
            count = _matching_tail(run, end, keys)
            gone += self._drop(run, end - count, end, node, tier)
            keys = keys[: -count * KEY_BYTES]
        return gone

    def drop_tier(self, node: Node, tier: int) -> None:
        """The node emptied that tier."""
        runs = [run for run in node.runs if node in run.tiers[tier - 1]]
        for run in runs:
            self.put(run, node, tier, ())
        for run in runs:
            self._tree.trim(run)

    def drop_node(self, node: Node) -> None:
        """The node's life is over; references to it are gone already."""
        keep = ~node.bit
        for run in node.runs:
            first, second = run.tiers
            one, two = first.pop(node, ()), second.pop(node, ())
            run.full &= keep
            run.part &= keep
            if run.expect:
                run.expect &= keep
            if run.ends:
                self._unindex(run, one, ())
                self._unindex(run, two, ())
        runs, node.runs = node.runs, {}
        # Most runs may be nobody's now. To prune thousands at once would hold up everybody.
        self._tree.doubtful += [run for run in runs if not run.kids and not run.full]
        node.blocks = [0, 0, 0]
        node.classes = [0, 0, 0]

    # ------------------------------------------------------------ one run

    def put(self, run: Run, node: Node, tier: int, held: Spans) -> None:
        """The node holds exactly `held` of the run in that tier."""
        table = run.tiers[tier - 1]
        old = table.get(node, ())
        if old == held:
            return
        if node not in run.tiers[2 - tier] and len(old) == len(held) == 2 and old[0] == held[0]:
            self._lengthen(run, node, tier, old[1], held)
            return
        other = run.tiers[2 - tier].get(node, ())
        before, after = spans.union(old, other), spans.union(held, other)
        if held:
            table[node] = held
        else:
            del table[node]
        node.blocks[tier] += spans.size(held) - spans.size(old)
        self._reindex(run, old, held)
        if before == after:
            return
        for start, end in spans.pairs(spans.minus(after, before)):
            self._counts.appeared(run, node, start, end)
        for start, end in spans.pairs(spans.minus(before, after)):
            self._counts.vanished(run, node, start, end)
        if after:
            node.runs[run] = None
        else:
            del node.runs[run]
        run.tell(node)

    def _lengthen(self, run: Run, node: Node, tier: int, old_end: int, held: Spans) -> None:
        """A copy of one piece, in one tier, ends elsewhere."""
        end = held[1]
        run.tiers[tier - 1][node] = held
        node.blocks[tier] += end - old_end
        self._reindex(run, (held[0], old_end), held)
        if end > old_end:
            self._counts.appeared(run, node, old_end, end)
        else:
            self._counts.vanished(run, node, end, old_end)
        run.tell(node)

    def _append(
        self, run: Run, node: Node, tier: int, held: Spans, parent: bytes, keys: bytes
    ) -> None:
        """A copy that reached the end of its run goes on: what a decode does for each block."""
        tree, start, bit = self._tree, run.end, node.bit
        first, second = run.tiers
        at_tail = 0  # other copies that end there
        if len(first) + len(second) > 1:
            at_tail = sum(other[-1] == start for other in (*first.values(), *second.values())) - 1
        if at_tail:
            run.ends = run.ends or {}
            run.ends[start] = at_tail
        else:
            tree.index.pop(parent, None)
        if isinstance(run.keys, bytes):
            run.keys = bytearray(run.keys)
        run.keys += keys
        added = len(keys) // KEY_BYTES
        run.end = end = start + added
        tree.index[keys[-KEY_BYTES:]] = run
        tree.blocks += added
        run.tiers[tier - 1][node] = held = (*held[:-1], end)
        node.blocks[tier] += added
        run.part |= run.full
        run.full = run.expect = 0
        if held[0] == run.start and len(held) == 2:
            run.full = bit
            run.part &= ~bit
        if run.promised or not run.full:
            run.tell(node)
        self._counts.appeared(run, node, start, end)

    def _hold(self, run: Run, start: int, end: int, node: Node, tier: int) -> None:
        """The node holds [start, end) of the path that `run` ends."""
        while True:
            low = max(start, run.start)
            if low < end:
                held = run.tiers[tier - 1].get(node, ())
                self.put(run, node, tier, spans.union(held, (low, end)))
            if start >= run.start:
                return
            end = low
            assert run.parent is not None
            run = run.parent

    def _drop(self, run: Run, start: int, end: int, node: Node, tier: int) -> int:
        held = run.tiers[tier - 1].get(node, ())
        kept = spans.minus(held, (start, end))
        self.put(run, node, tier, kept)
        self._tree.trim(run)
        return spans.size(held) - spans.size(kept)

    # ------------------------------------------------------------ index of ends

    def _reindex(self, run: Run, old: Spans, new: Spans) -> None:
        for end in new[1::2]:
            if end != run.end and end not in old[1::2]:
                if run.ends is None:
                    run.ends = {}
                count = run.ends.get(end, 0)
                run.ends[end] = count + 1
                if not count:
                    self._tree.index[run.key(end)] = run
        self._unindex(run, old, new)

    def _unindex(self, run: Run, old: Spans, new: Spans) -> None:
        for end in old[1::2]:
            if end in new[1::2] or end == run.end:
                continue
            assert run.ends is not None
            run.ends[end] -= 1
            if not run.ends[end]:
                del run.ends[end]
                self._tree.index.pop(run.key(end), None)
        if not run.ends:
            run.ends = None

    # ------------------------------------------------------------ where a key is

    def _find_parent(
        self, node: Node, parent: bytes, keys: bytes, hint: tuple[Run, int] | None
    ) -> tuple[Run, int] | None:
        """The position that `parent` names. It is nearly always the end of a copy; else on the
        path of the request that stored; else among the node's own blocks."""
        tree = self._tree
        run = tree.index.get(parent)
        if run is not None:
            return run, run.boundary(parent)
        if parent in tree.roots:
            return tree.root, 0
        at: Run | None = hint[0] if hint else None
        while at is not None and at.parent is not None:
            position = at.find(parent)
            if position:
                return at, position
            at = at.parent
        run = tree.index.get(keys[-KEY_BYTES:])
        if run is not None:
            found = self._above(run, run.boundary(keys[-KEY_BYTES:]), parent, keys)
            if found is not None:
                return found
        for run in node.runs:
            position = run.find(parent)
            if position:
                return run, position
        return None

    def _above(self, run: Run, end: int, parent: bytes, keys: bytes) -> tuple[Run, int] | None:
        """The parent of blocks whose last one ends at `end`: as many blocks further up."""
        position = end - len(keys) // KEY_BYTES
        while run.parent is not None and position <= run.start:
            run = run.parent
        if position <= 0 or run.parent is None or run.key(position) != parent:
            return None
        return run, position

    def _inside(self, node: Node, tier: int, keys: bytes) -> set[bytes]:
        """Those of `keys` that the node may hold in the tier, however deep inside a copy."""
        wanted = set(_each(keys))
        if len(wanted) <= _SCAN_KEYS:
            return wanted
        held: set[bytes] = set()
        for run in node.runs:
            for start, end in spans.pairs(run.tiers[tier - 1].get(node, ())):
                held.update(wanted.intersection(_each(run.slice(start, end))))
        return held

    def _search(self, node: Node, tier: int, key: bytes) -> Run | None:
        for run in node.runs:
            if node in run.tiers[tier - 1] and run.find(key):
                return run
        return None


def _each(keys: bytes) -> Iterator[bytes]:
    for at in range(0, len(keys), KEY_BYTES):
        yield keys[at : at + KEY_BYTES]


def _matching_tail(run: Run, end: int, keys: bytes) -> int:
    """How many blocks at the end of `keys` are those of the run before `end`, in its order."""
    low, high = 1, min(end - run.start, len(keys) // KEY_BYTES)
    while low < high:
        middle = (low + high + 1) // 2
        if keys.endswith(run.slice(end - middle, end)):
            low = middle
        else:
            high = middle - 1
    return low
