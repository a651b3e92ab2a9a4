"""A node's inventory as paths that the directory can take in, each block of a tier once."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from evctl.core.events import KvHeld
from evctl.wire.messages import InventoryBlock


def held_paths(
    blocks: Iterable[InventoryBlock], roots: Container[bytes] = frozenset()
) -> Iterator[KvHeld]:
    """What a node holds, ancestors first: a path goes to a leaf, and what forks off it follows,
    from the leaf up, so that whoever takes it in finds each parent on the path before.

    roots: parents of first blocks as far as they are known. A block of L1 whose parent is not
    held is taken for a first one: L1 keeps all ancestors. L2 does not; a block there whose
    parent is neither held nor a root goes out as the continuation of a block that somebody may
    know. One that does not know its parent is left out, with all that is behind it.
    """
    parents: dict[bytes, bytes] = {}
    tiers: dict[bytes, set[int]] = {}
    for block in blocks:
        tiers.setdefault(block.key, set()).add(block.tier)
        parents[block.key] = block.parent or parents.get(block.key, b"")
    children: dict[bytes, list[bytes]] = {}
    for key, parent in parents.items():
        children.setdefault(parent, []).append(key)
    for top, parent in parents.items():
        if parent in parents or not parent:
            continue
        first = parent in roots or 1 in tiers[top]
        for chain in _chains(top, children):
            for tier, start, end in _pieces(chain, tiers):
                above = chain[start - 1] if start else parents[chain[0]]
                keys = b"".join(chain[start:end])
                yield KvHeld(tier, above, keys, from_root=first and above == parent)


def _chains(top: bytes, children: dict[bytes, list[bytes]]) -> Iterator[list[bytes]]:
    heads = [top]
    while heads:
        chain = [heads.pop()]
        while below := children.get(chain[-1]):
            heads.extend(reversed(below[1:]))
            chain.append(below[0])
        yield chain


def _pieces(chain: list[bytes], tiers: dict[bytes, set[int]]) -> list[tuple[int, int, int]]:
    """(tier, start, end) of what each tier holds of a chain without a gap, by start."""
    found = []
    for tier in (1, 2):
        start = None
        for at, key in enumerate([*chain, b""]):
            held = tier in tiers.get(key, ())
            if held and start is None:
                start = at
            elif not held and start is not None:
                found.append((tier, start, at))
                start = None
    return sorted(found, key=lambda piece: (piece[1], piece[0]))
