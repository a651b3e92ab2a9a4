"""How much of a prompt is where: the router's question, asked once for every request."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress, pairwise

import msgspec

from evctl.core.blocks import KEY_BYTES
from evctl.policy.directory import spans
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.spans import Spans

_MOST_CACHED = 256
_FEW_BITS = 16
_BITS = bytes.maketrans(b"01", b"\x00\x01")


Piece = tuple[int, int, frozenset[str]]
"""Blocks from a position to before another, and who holds them."""


class Match(msgspec.Struct, frozen=True):
    """Where the leading blocks of a prompt are. All values count blocks from the root.

    known: blocks that the tree knows, whether or not a copy is left. stored: longest prefix of
    which every block is readable somewhere. expected: the same, blocks of running prefills
    included. coverage: node -> its own leading blocks, in whatever tier, no gap, none of 0.
    promised: node -> leading blocks once its running prefills are done, where that is more.
    """

    total: int
    known: int
    stored: int
    expected: int
    coverage: dict[str, int]
    promised: dict[str, int]


class Names:
    """Nodes by the bit they have in masks; a bit is given again once its node is gone."""

    def __init__(self) -> None:
        self.nodes: list[Node | None] = []
        self.names: list[str] = []
        self._cache: dict[int, tuple[int, dict[str, int]]] = {}
        """Mask -> what it was last asked for: a copy of a dict costs a tenth of a new one."""
        self._sets: dict[int, frozenset[str]] = {}

    def take(self, name: str, boot_id: str) -> Node:
        """A new life with the lowest free bit."""
        at = self.nodes.index(None) if None in self.nodes else len(self.nodes)
        node = Node(name, boot_id, 1 << at)
        if at == len(self.nodes):
            self.nodes.append(node)
            self.names.append(name)
        else:
            self.nodes[at], self.names[at] = node, name
        self._cache.clear()
        self._sets.clear()
        return node

    def free(self, node: Node) -> None:
        """That life is over."""
        self.nodes[node.bit.bit_length() - 1] = None
        self._cache.clear()
        self._sets.clear()

    def among(self, mask: int, blocks: int) -> dict[str, int]:
        """name -> blocks for every node in the mask."""
        if not mask & (mask - 1):
            return {self.names[mask.bit_length() - 1]: blocks} if mask else {}
        named = self._cache.get(mask)
        if named is None:
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            names = compress(self.names, _selectors(mask))
            named = self._cache[mask] = (blocks, dict.fromkeys(names, blocks))
        elif named[0] != blocks:
            named = self._cache[mask] = (blocks, dict.fromkeys(named[1], blocks))
        return named[1].copy()

    def named(self, mask: int) -> frozenset[str]:
        """Names of the nodes in the mask."""
        found = self._sets.get(mask)
        if found is None:
            if len(self._sets) >= _MOST_CACHED:
                self._sets.clear()
            found = self._sets[mask] = frozenset(node.name for node in self.each(mask))
        return found

    def each(self, mask: int) -> list[Node]:
        """Nodes in the mask."""
        nodes: list[Node | None]
        if mask.bit_count() <= _FEW_BITS:
            nodes = []
            while mask:
                bit = mask & -mask
                nodes.append(self.nodes[bit.bit_length() - 1])
                mask ^= bit
        else:
            nodes = list(compress(self.nodes, _selectors(mask)))
        return [node for node in nodes if node is not None]


def _selectors(mask: int) -> bytes:
    return f"{mask:b}"[::-1].encode().translate(_BITS)


def match(names: Names, path: list[Run], end: int, total: int) -> Match:
    """What nodes hold of the first `end` blocks of a path.

    `alive` are the nodes that hold all of it up to a run. Where some drop out, what they reached
    is noted; those that go on may be noted too, for they are noted again further down.
    """
    if not path:
        return Match(total, 0, 0, 0, {}, {})
    coverage: dict[str, int] = {}
    first = path[0]
    alive = first.full
    broken = promises = None
    if first.part:
        alive |= _partial(names, first, first.part, end, coverage)
    for run in path:
        full = run.full
        if run.promised:
            promises = run
        if not full and broken is None:
            broken = run
        if alive & full == alive:
            if alive or broken is None or promises is None:
                continue
            break
        if not run.start:
            continue
        partly = alive & run.part
        out = alive & ~(full | partly)
        if out:
            if not out & (out - 1):
                coverage[names.names[out.bit_length() - 1]] = run.start
            elif coverage:
                coverage.update(names.among(out, run.start))
            else:  # sets of those that are alive recur, so that names are at hand
                coverage = names.among(alive, run.start)
        alive &= full
        if partly:
            alive |= _partial(names, run, partly, end, coverage)
    if alive:
        if not coverage:
            coverage = names.among(alive, end)
        elif alive & (alive - 1):
            coverage.update(names.among(alive, end))
        else:
            coverage[names.names[alive.bit_length() - 1]] = end
    stored = expected = end if broken is None else _anywhere(path, end, promised=False)
    promised: dict[str, int] = {}
    if promises is not None:
        expected = _anywhere(path, end, promised=True)
        promised = _promised(path, end, coverage)
    return Match(total, end, stored, expected, coverage, promised)


def _partial(names: Names, run: Run, among: int, end: int, coverage: dict[str, int]) -> int:
    """Nodes of `among` that hold some of the run and not all: notes how far each reaches, and
    returns those that reach the end of the path all the same."""
    reaching = 0
    start = run.start
    first, second = run.l1, run.l2
    table = second if not first else first if not second else None
    for node in names.each(among):
        held = run.present(node) if table is None else table[node]
        reach = held[1] if held[0] <= start else start
        if reach >= end:
            reaching |= node.bit
        elif reach:
            coverage[node.name] = reach
    return reaching


def _anywhere(path: list[Run], end: int, *, promised: bool) -> int:
    """Longest prefix of which every block is somewhere."""
    for run in path:
        if run.full or (promised and run.expect):
            continue
        held: Spans = ()
        for node in run.holders():
            held = spans.union(held, run.present(node))
        if promised and run.promised:
            for steps in run.promised.values():
                held = spans.union(held, spans.positive(steps, run.start))
        reach = spans.lead(held, run.start)
        if reach < run.end:
            return min(reach, end)
    return end


def _promised(path: list[Run], end: int, coverage: dict[str, int]) -> dict[str, int]:
    """Leading blocks with what is promised, where that is more than what is stored."""
    more: dict[str, int] = {}
    for node in dict.fromkeys(node for run in path for node in run.promised or ()):
        reach = 0
        for run in path:
            if (run.full | run.expect) & node.bit:
                reach = run.end
                continue
            reach = spans.lead(run.expected(node), run.start)
            if reach < run.end:
                break
        reach = min(reach, end)
        if reach > coverage.get(node.name, 0):
            more[node.name] = reach
    return more


def tier_coverage(path: list[Run], end: int, tier: int) -> dict[str, int]:
    """node -> leading blocks that it holds in that tier alone."""
    if not path:
        return {}
    reached: dict[str, int] = {}
    alive = list(path[0].tiers[tier - 1])
    for run in path:
        table = run.tiers[tier - 1]
        kept = []
        for node in alive:
            reach = min(spans.lead(table.get(node, ()), run.start), end)
            if reach:
                reached[node.name] = reach
            if reach == run.end:
                kept.append(node)
        alive = kept
    return reached


class L1Leads:
    """Leading blocks of one path that nodes hold in L1, asked for one node after the other."""

    __slots__ = ("_end", "_lives", "_path")

    def __init__(self, path: list[Run], end: int, lives: Mapping[str, Node]) -> None:
        self._path = path
        self._end = end
        self._lives = lives

    def of(self, name: str) -> int:
        """Of the node; 0 where it is not known."""
        node = self._lives.get(name)
        if node is None:
            return 0
        for run in self._path:
            table = run.l1
            if table is None:
                return min(run.start, self._end)
            held = table.get(node, ())
            if held is not run.whole:
                reach = spans.lead(held, run.start)
                if reach < run.end:
                    return min(reach, self._end)
        return self._end


def sources(path: list[Run], end: int, tier: int) -> list[tuple[int, int, tuple[str, ...]]]:
    """(start, end, nodes) for the pieces of a path, in order: who can send which blocks.

    tier: 1 or 2. A piece that nobody holds has no nodes.
    """
    pieces: list[tuple[int, int, tuple[str, ...]]] = []
    for run in path:
        last = min(run.end, end)
        table = run.tiers[tier - 1]
        cuts = {run.start, last}
        for held in table.values():
            cuts.update(at for at in held if run.start < at < last)
        ordered = sorted(cuts)
        for low, high in pairwise(ordered):
            nodes = tuple(
                sorted(n.name for n, held in table.items() if spans.clip(held, low, high))
            )
            if pieces and pieces[-1][2] == nodes:
                pieces[-1] = (pieces[-1][0], high, nodes)
            else:
                pieces.append((low, high, nodes))
    return pieces


def lenders(names: Names, run: Run, start: int, end: int) -> list[Piece]:
    """Blocks [start, end) of the path that `run` ends, in order and without a gap, by the nodes
    that hold them in L2; who has the same neighbours is one piece."""
    path = []
    while run.parent is not None and run.end > start:
        path.append(run)
        run = run.parent
    found: list[tuple[int, int, int]] = []
    for run in reversed(path):
        for low, high, mask in _l2_masks(run, max(start, run.start), min(end, run.end)):
            if found and found[-1][2] == mask:
                found[-1] = (found[-1][0], high, mask)
            elif low < high:
                found.append((low, high, mask))
    return [(low, high, names.named(mask)) for low, high, mask in found]


def _l2_masks(run: Run, start: int, end: int) -> list[tuple[int, int, int]]:
    table, whole = run.l2, run.whole
    if not table:
        return [(start, end, 0)]
    if not run.l1 and not run.part:
        return [(start, end, run.full)]
    mask = 0
    parts = None
    for node, held in table.items():
        if held is whole:
            mask |= node.bit
        elif parts is None:
            parts = [held]
        else:
            parts.append(held)
    if parts is None:  # mostly
        return [(start, end, mask)]
    cuts = {start, end}
    for held in parts:
        cuts.update(at for at in held if start < at < end)
    if len(cuts) == 2:  # copies of a part may still cover all that is asked for
        for node, held in table.items():
            if held is not whole and spans.lead(held, start) >= end:
                mask |= node.bit
        return [(start, end, mask)]
    return [
        (low, high, sum(n.bit for n, held in table.items() if spans.lead(held, low) >= high))
        for low, high in pairwise(sorted(cuts))
    ]


def blocks_in(keys: bytes) -> int:
    """Number of whole keys."""
    return len(keys) // KEY_BYTES
