"""What of a prompt is where, by the advice that came with it."""

from __future__ import annotations

from collections.abc import Sequence

from evctl.core.kv import FetchPiece

MOST_PIECES = 1024
MOST_NODES = 8
"""Of one piece or advice; what goes beyond is not looked at."""


def sources(
    pieces: Sequence[FetchPiece], first: int, end: int, most: int
) -> dict[int, tuple[str, ...]]:
    """Whom to ask for each of the blocks [first, end) that a piece names; `most` of them.

    Pieces come in any order and may overlap (then the one that starts first counts) or lie
    outside. Costs O(blocks named + pieces log pieces).
    """
    found: dict[int, tuple[str, ...]] = {}
    for piece in sorted(pieces[:MOST_PIECES], key=lambda piece: piece.start):
        if not piece.nodes:
            continue
        stop = min(piece.end, end)
        for depth in range(max(piece.start, first), stop):
            if len(found) >= most:
                return found
            found[depth] = piece.nodes[:MOST_NODES]
        first = max(first, stop)
    return found
