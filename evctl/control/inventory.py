"""A node's inventory as paths from the root, which is how the directory takes blocks in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from evctl.wire.messages import InventoryBlock


def held_paths(blocks: Iterable[InventoryBlock], tier: int) -> Iterator[tuple[bytes, bytes]]:
    """(root key, keys) of each path to a block of `tier` without a child there.

    Paths that share a beginning repeat it. A block whose ancestors are not all there begins a
    path at a parent that is no root of ours: whoever takes it in drops it.
    """
    parents = {block.key: block.parent for block in blocks if block.tier == tier}
    inner = set(parents.values())
    for leaf in parents:
        if leaf in inner:
            continue
        path = [leaf]
        while (above := parents[path[-1]]) in parents:
            path.append(above)
        yield above, b"".join(reversed(path))
