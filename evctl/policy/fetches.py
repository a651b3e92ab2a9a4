"""What a node lacks of a prompt and may get from its peers' host memory (design, section 6).

Only copies in L2 can be fetched, and only from peers that are alive and not late. What running
prefills promise elsewhere is not there yet. All work is by pieces: runs of blocks that the same
nodes hold.
"""

from __future__ import annotations

from collections.abc import Iterable

from evctl.core.kv import FetchPiece
from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord
from evctl.policy.directory import Piece

MOST_SOURCES = 3
"""Peers named for a piece: the first is asked, the others are for when it fails."""
CLASS_WEIGHTS = (0.0, 0.5, 1.0)
"""What a block costs that must go, by its class: unneeded ones nothing."""


def usable_blocks(node: NodeRecord, record: RequestRecord) -> int:
    """Leading blocks of a prompt that spare computing: full ones, and never its last token, for
    its output is the first token."""
    return min((record.prompt_tokens - 1) // node.block_tokens, len(record.keys) // 16)


def lacking(pieces: Iterable[Piece], node: str, held: int) -> list[Piece]:
    """What the node lacks behind its `held` leading blocks, and who has it, up to the first
    block that neither it nor a peer has: what follows that must be computed.

    pieces: without a gap, with the nodes that may be asked; those that it holds itself are left
    out.
    """
    found = []
    for start, end, nodes in pieces:
        if end <= held:
            continue
        if not nodes:
            break
        if node not in nodes:
            found.append((max(start, held), end, nodes))
    return found


def size(pieces: Iterable[Piece]) -> int:
    """Blocks in all."""
    return sum(end - start for start, end, _ in pieces)


def extent(pieces: Iterable[Piece], node: str, held: int) -> tuple[int, int]:
    """Blocks that the node lacks and peers have, as `lacking` tells, and the leading blocks that
    it has then, its own `held` included."""
    blocks = 0
    for start, end, nodes in pieces:
        if end <= held:
            continue
        if not nodes:
            break
        if start < held:
            start = held
        if node not in nodes:
            blocks += end - start
        held = end
    return blocks, held


def plan(state: ClusterState, wanted: Iterable[Piece]) -> tuple[FetchPiece, ...]:
    """Whom to ask for each piece: the peer that the fewest blocks are being read from first,
    ties by name."""
    lives, promised = state.directory.nodes, state.ahead.lent
    load: dict[str, int] = {}
    found = []
    for start, end, nodes in wanted:
        for name in nodes:
            if name not in load:
                load[name] = lives[name].leased + promised.get(name, 0)
        order = sorted(nodes, key=lambda name: (load[name], name))[:MOST_SOURCES]
        load[order[0]] += end - start
        found.append(FetchPiece(start, end, tuple(order)))
    return tuple(found)


def displaced(state: ClusterState, node: NodeRecord, blocks: int) -> float:
    """Blocks that must go from the node's L2 to make room for so many, weighed by class (Eq. 7,
    dup_n). By the last report, and by the directory's classes, which count both tiers."""
    used = node.report.l2_used_blocks if node.report else 0
    needed = max(0, blocks - max(0, node.l2_blocks - used))
    if not needed:
        return 0.0
    life = state.directory.nodes.get(node.name)
    weighed = 0.0
    for count, weight in zip(life.classes if life else (), CLASS_WEIGHTS, strict=False):
        gone = min(needed, count)
        weighed += gone * weight
        needed -= gone
    return weighed


def room(state: ClusterState, node: NodeRecord) -> int:
    """Blocks of L2 that can be filled without the loss of one that a branch needs: free by the
    last report, or unreferenced. 0 before the first report."""
    life = state.directory.nodes.get(node.name)
    if node.report is None or life is None:
        return 0
    return max(0, node.l2_blocks - node.report.l2_used_blocks) + min(
        life.classes[0], life.blocks[2]
    )
