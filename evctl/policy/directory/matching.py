"""How much of a prompt is where: the router's question, asked once for every request."""

from __future__ import annotations

from itertools import compress, pairwise

import msgspec

from evctl.core.blocks import KEY_BYTES
from evctl.policy.directory import spans
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.spans import Spans

_MOST_CACHED = 256
_BITS = bytes.maketrans(b"01", b"\x00\x01")


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
        self._cache: dict[int, dict[str, int]] = {}

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
        return node

    def free(self, node: Node) -> None:
        """That life is over."""
        self.nodes[node.bit.bit_length() - 1] = None
        self._cache.clear()

    def among(self, mask: int, blocks: int) -> dict[str, int]:
        """name -> blocks for every node in the mask."""
        if not mask & (mask - 1):
            return {self.names[mask.bit_length() - 1]: blocks} if mask else {}
        named = self._cache.get(mask)
        if named is None:
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            named = self._cache[mask] = dict.fromkeys(compress(self.names, _selectors(mask)), 0)
        return dict.fromkeys(named, blocks)

    def each(self, mask: int) -> list[Node]:
        """Nodes in the mask."""
        if not mask & (mask - 1):
            nodes = [self.nodes[mask.bit_length() - 1]] if mask else []
        else:
            nodes = list(compress(self.nodes, _selectors(mask)))
        return [node for node in nodes if node is not None]


def _selectors(mask: int) -> bytes:
    return f"{mask:b}"[::-1].encode().translate(_BITS)


def match(names: Names, path: list[Run], end: int, total: int) -> Match:
    """What nodes hold of the first `end` blocks of a path."""
    if not path:
        return Match(total, 0, 0, 0, {}, {})
    coverage: dict[str, int] = {}
    alive = path[0].full
    broken = promises = None
    for run in path:
        full, start = run.full, run.start
        if run.promised:
            promises = run
        if not full and broken is None:
            broken = run
        if start == 0:
            if run.part:
                alive |= _partial(names, run, run.part, end, coverage)
        elif alive & full != alive:
            partly = alive & run.part
            if partly:
                full |= _partial(names, run, partly, end, coverage)
            out = alive & ~(full | partly)
            if out & (out - 1):
                coverage.update(names.among(out, start))
            elif out:
                coverage[names.names[out.bit_length() - 1]] = start
            alive &= full
        elif not alive and broken is not None and promises is not None:
            break
    if alive:
        whole = names.among(alive, end)
        if coverage:
            coverage.update(whole)
        else:
            coverage = whole
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
    first, second = run.tiers
    for node in names.each(among):
        held = first.get(node) or second[node]
        if (node in first and node in second) or len(held) > 2:
            reach = spans.lead(run.present(node), start)
        else:
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


def blocks_in(keys: bytes) -> int:
    """Number of whole keys."""
    return len(keys) // KEY_BYTES
