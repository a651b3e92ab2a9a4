"""Copies: what nodes report as stored and evicted, whatever the order and however often."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from evctl.core.blocks import KEY_BYTES
from evctl.policy.directory import spans
from evctl.policy.directory.counts import Counts
from evctl.policy.directory.places import above, at_either, matching_tail, on_path
from evctl.policy.directory.requests import Hint, Request, Requests
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.spans import Spans
from evctl.policy.directory.tree import Tree, ending

TIERS = (1, 2)
_SCAN_KEYS = 4
"""From so many keys on, one pass over a node's blocks is cheaper than a search for each."""


class Copies:
    """Which node holds which block in which tier. The only writer of a run's `tiers`."""

    def __init__(self, tree: Tree, counts: Counts, requests: Requests) -> None:
        self._tree = tree
        self._counts = counts
        self._requests = requests

    # ------------------------------------------------------------ facts

    def store(
        self, node: Node, tier: int, parent: bytes, keys: bytes, request: Request | None
    ) -> bool:
        """Blocks became readable, children of `parent`, for that request. False when the parent
        is not known."""
        tree = self._tree
        run = tree.index.get(parent)
        if run is not None:
            table = run.l2 if tier == 2 else run.l1
            held = table.get(node) if table is not None else None
            if held is not None:
                position, end = held[-1], run.end
                if position == end:
                    if not run.kids and run.keys.endswith(parent):
                        if request is None:
                            self._append(run, node, tier, held, parent, keys)
                        else:
                            self._generated(run, node, tier, keys, request)
                        return True
                elif self._goes_on(run, node, tier, held, parent, keys, request):
                    return True
        hint = self._requests.hint(request) if request is not None else None
        found = self._find_parent(node, parent, keys, hint)
        if found is None:
            return False
        run, position = found
        run, end = self._put_there(run, position, keys)
        if request is not None:
            self._requests.grew(request, node, position, run, end)
        self._hold(run, position, end, node, tier)
        return True

    def store_held(self, node: Node, tier: int, parent: bytes, keys: bytes) -> bool:
        """Blocks of an inventory; where their parent may be is told in Directory.held. False
        when it is not there."""
        tree = self._tree
        found: tuple[Run, int] | None = None
        run = tree.index.get(parent)
        if run is not None:
            found = run, self._position(run, node, tier, parent)
        elif tree.is_root(parent):
            found = tree.root, 0
        else:
            found = above(node.latest, parent)
        if found is None:
            return False
        position = found[1]
        run, end = self._put_there(*found, keys)
        self._hold(run, position, end, node, tier)
        node.latest = run
        return True

    def _put_there(self, run: Run, position: int, keys: bytes) -> tuple[Run, int]:
        """Make sure that the tree has `keys` after a position. Returns the run in which they
        end, and where."""
        tree = self._tree
        end = position + len(keys) // KEY_BYTES
        reached = position
        if position < run.end or run.kids:
            run, reached = tree.descend(keys, run, position, position)
        if reached < end:
            run = tree.extend(run, reached, keys[(reached - position) * KEY_BYTES :])
        return run, end

    def evict(self, node: Node, tier: int, keys: bytes) -> int:
        """Blocks are readable no more. Returns how many of them were held in that tier."""
        gone = 0
        inside: Callable[[bytes], Run | None] | None = None
        while keys:
            key = keys[-KEY_BYTES:]
            run = self._tree.index.get(key)
            if run is None:
                # Not at the end of a copy: rare, for nodes evict the deepest block first.
                inside = inside or self._inside(node, tier, keys)
                run = inside(key)
            if run is None or not run.held(node, tier):
                keys = keys[:-KEY_BYTES]
                continue
            end = self._position(run, node, tier, key)
            count = matching_tail(run, end, keys)
            gone += self._drop(run, end - count, end, node, tier)
            keys = keys[: -count * KEY_BYTES]
        return gone

    def drop_tier(self, node: Node, tier: int) -> None:
        """The node emptied that tier."""
        runs = [run for run in node.runs if run.held(node, tier)]
        for run in runs:
            self.put(run, node, tier, ())
        for run in runs:
            self._tree.trim(run)

    def drop_node(self, node: Node) -> None:
        """The node's life is over; references to it are gone already."""
        keep = ~node.bit
        for run in node.runs:
            table = run.l2
            if table is not None and node in table:
                held = table.pop(node)
                if not table:
                    run.l2 = None
                if run.ends:
                    self._unindex(run, held, ())
            table = run.l1
            if table is not None and node in table:
                held = table.pop(node)
                if not table:
                    run.l1 = None
                if run.ends:
                    self._unindex(run, held, ())
            run.full &= keep
            run.part &= keep
            if run.expect:
                run.expect &= keep
        runs, node.runs, node.latest = node.runs, {}, None
        # Most runs may be nobody's now. To prune thousands at once would hold up everybody.
        self._tree.doubtful += [run for run in runs if not run.kids and not run.full]
        node.blocks = [0, 0, 0]
        node.classes = [0, 0, 0]

    # ------------------------------------------------------------ one run

    def put(self, run: Run, node: Node, tier: int, held: Spans) -> None:
        """The node holds exactly `held` of the run in that tier."""
        old = run.held(node, tier)
        if old == held:
            return
        other = run.held(node, 3 - tier)
        if not other and len(old) == len(held) == 2 and old[0] == held[0]:
            self._lengthen(run, node, tier, old, held[1])
            return
        before, after = spans.union(old, other), spans.union(held, other)
        run.hold(node, tier, held)
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

    def _lengthen(self, run: Run, node: Node, tier: int, old: Spans, end: int) -> None:
        """A copy of one piece, in one tier, ends elsewhere in its run."""
        start, old_end = old
        table = run.l2 if tier == 2 else run.l1
        assert table is not None
        bit, last = node.bit, run.end
        if end == last and start == run.start:
            table[node] = run.whole
            run.full |= bit
            run.part &= ~bit
        else:
            table[node] = (start, end)
            run.full &= ~bit
            run.part |= bit
        node.blocks[tier] += end - old_end
        if end != last:
            self._index_end(run, end)
        if old_end != last:
            self._unindex_end(run, old_end)
        if end > old_end:
            self._counts.appeared(run, node, old_end, end)
        else:
            self._counts.vanished(run, node, end, old_end)
        if run.promised:
            run.tell_expected(node)

    def _goes_on(
        self,
        run: Run,
        node: Node,
        tier: int,
        held: Spans,
        parent: bytes,
        keys: bytes,
        request: Request | None,
    ) -> bool:
        """A copy that ends inside its run reaches further: what a prefill does, whose request
        put its prompt there. False, and nothing done, where it is not as simple as that."""
        if len(held) != 2:
            return False
        position, known = held[1], run.keys
        at = (position - run.start) * KEY_BYTES
        if known[at - KEY_BYTES : at] != parent:
            return False
        end = position + len(keys) // KEY_BYTES
        if end > run.end or not known.startswith(keys, at) or run.held(node, 3 - tier):
            return False
        if request is not None and self._requests.grew(request, node, position, run, end):
            return False
        self._lengthen(run, node, tier, held, end)
        return True

    def _generated(self, run: Run, node: Node, tier: int, keys: bytes, request: Request) -> None:
        """What a request's decode appends. Its branch refers to it before it is there, so that
        nothing is to be told about it."""
        position = run.end
        self._tree.extend(run, position, keys)
        self._requests.grew(request, node, position, run, run.end)
        held = run.held(node, tier)
        if len(held) == 2 and not run.held(node, 3 - tier):
            self._lengthen(run, node, tier, held, run.end)
        else:
            self._hold(run, position, run.end, node, tier)

    def _append(
        self, run: Run, node: Node, tier: int, held: Spans, parent: bytes, keys: bytes
    ) -> None:
        """A copy that reached the end of its run goes on: what a node does that is alone there
        with its output."""
        tree, start = self._tree, run.end
        table = run.l2 if tier == 2 else run.l1
        other = run.l1 if tier == 2 else run.l2
        assert table is not None
        index = tree.index
        at_tail = 0  # other copies that end there
        alone = not other and len(table) == 1
        if not alone:
            at_tail = ending(run, start) - 1
        if at_tail:
            if run.ends is None:
                run.ends = {}
            run.ends[start] = at_tail
        else:
            index.pop(parent, None)
        if len(keys) == KEY_BYTES:
            added, index[keys] = 1, run
        else:
            added, index[keys[-KEY_BYTES:]] = len(keys) // KEY_BYTES, run
        known = run.keys
        if isinstance(known, bytes):
            known = run.keys = bytearray(known)
        known += keys
        first = run.start
        run.end = end = start + added
        whole = (first, end)
        tree.blocks += added
        node.blocks[tier] += added
        if held is run.whole:
            table[node] = whole
            if not alone:
                bit = node.bit
                run.part = (run.part | run.full) & ~bit
                run.full = bit
        else:
            all_of_it = len(held) == 2 and held[0] == first
            table[node] = whole if all_of_it else (*held[:-1], end)
            run.part |= run.full
            run.full = 0
        run.whole = whole
        if run.promised or not run.full:
            run.expect = 0
            run.tell(node)
        if run.refs is None:
            self._counts.unnamed(node, added, keys)
        else:
            self._counts.appeared(run, node, start, end)

    def _hold(self, run: Run, start: int, end: int, node: Node, tier: int) -> None:
        """The node holds [start, end) of the path that `run` ends."""
        while True:
            low = max(start, run.start)
            if low < end:
                piece = run.whole if low == run.start and end == run.end else (low, end)
                self.put(run, node, tier, spans.union(run.held(node, tier), piece))
            if start >= run.start:
                return
            end = low
            assert run.parent is not None
            run = run.parent

    def _drop(self, run: Run, start: int, end: int, node: Node, tier: int) -> int:
        held = run.held(node, tier)
        kept = spans.minus(held, (start, end))
        self.put(run, node, tier, kept)
        self._tree.trim(run)
        return spans.size(held) - spans.size(kept)

    # ------------------------------------------------------------ index of ends

    def _reindex(self, run: Run, old: Spans, new: Spans) -> None:
        last = run.end
        for end in new[1::2]:
            if end != last and end not in old[1::2]:
                self._index_end(run, end)
        self._unindex(run, old, new)

    def _unindex(self, run: Run, old: Spans, new: Spans) -> None:
        last = run.end
        for end in old[1::2]:
            if end != last and end not in new[1::2]:
                self._unindex_end(run, end)

    def _index_end(self, run: Run, end: int) -> None:
        """One copy more ends there, before the last block."""
        ends = run.ends
        if ends is None:
            ends = run.ends = {}
        count = ends.get(end, 0)
        ends[end] = count + 1
        if not count:
            self._tree.index[run.key(end)] = run

    def _unindex_end(self, run: Run, end: int) -> None:
        """One less."""
        ends = run.ends
        assert ends is not None
        count = ends[end] - 1
        if count:
            ends[end] = count
            return
        del ends[end]
        self._tree.index.pop(run.key(end), None)
        if not ends:
            run.ends = None

    # ------------------------------------------------------------ where a key is

    def _position(self, run: Run, node: Node, tier: int, key: bytes) -> int:
        """Where a key is in a run that is said to have it; 0: it is not."""
        held = run.held(node, tier)
        if held and run.key(held[-1]) == key:
            return held[-1]
        return run.boundary(key) or run.find(key)

    def _find_parent(
        self, node: Node, parent: bytes, keys: bytes, hint: Hint | None
    ) -> tuple[Run, int] | None:
        """The position that `parent` names. It is nearly always the end of a copy; else on the
        path of the request that stored; else among the node's own blocks."""
        tree = self._tree
        run = tree.index.get(parent)
        if run is not None:
            return run, self._position(run, node, 2, parent)
        if tree.is_root(parent):
            return tree.root, 0
        last = keys[-KEY_BYTES:]
        if hint is not None:
            at, ends, root = hint
            if parent == root:
                return tree.root, 0
            found = at_either(at, ends, parent, last, len(keys) // KEY_BYTES)
            if found is not None:
                return found
        run = tree.index.get(last)
        if run is not None:
            end = self._position(run, node, 2, last)
            found = on_path(run, end - len(keys) // KEY_BYTES, parent)
            if found is not None:
                return found
        found = above(hint[0], parent) if hint is not None else None
        if found is not None:
            return found
        for run in node.runs:
            position = run.find(parent)
            if position:
                return run, position
        return None

    def _inside(self, node: Node, tier: int, keys: bytes) -> Callable[[bytes], Run | None]:
        """Finds the run in which the node holds a key of `keys`, however deep inside a copy.
        All that the node holds is looked at: 0.4 us a run and key, or 35 ns a block."""
        if len(keys) <= _SCAN_KEYS * KEY_BYTES:
            return partial(_search, node, tier)
        wanted = set(_heads(keys))
        held: dict[int, Run] = {}
        for run in node.runs:
            for start, end in spans.pairs(run.held(node, tier)):
                found = wanted.intersection(_heads(run.slice(start, end)))
                if found:
                    held.update(dict.fromkeys(found, run))

        def look(key: bytes) -> Run | None:
            run = held.get(_heads(key)[0])
            if run is None or (run.parent is not None and key in run.keys):
                return run
            return _search(node, tier, key)  # an eviction joined it with another since

        return look


def _search(node: Node, tier: int, key: bytes) -> Run | None:
    for run in node.runs:
        if key in run.keys and run.held(node, tier) and run.find(key):
            return run
    return None


def _heads(keys: bytes) -> list[int]:
    """The first halves of keys, as numbers."""
    return memoryview(keys).cast("Q")[::2].tolist()
