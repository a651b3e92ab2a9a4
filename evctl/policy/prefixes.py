"""Which node holds, or has promised, which blocks.

The router needs one answer of it: how long a prefix a node can serve without computing. The
radix directory with branches and references takes its place later, behind the same calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from evctl.core.blocks import KEY_BYTES, BlockKey

TIERS = (1, 2)


def split_keys(block_keys: bytes) -> tuple[BlockKey, ...]:
    """The keys that `block_keys` holds, 16 bytes each. A remainder is dropped."""
    ends = range(KEY_BYTES, len(block_keys) + 1, KEY_BYTES)
    return tuple(block_keys[end - KEY_BYTES : end] for end in ends)


class PrefixIndex:
    """Blocks by node: stored ones by tier, promised ones by how many requests promise them.

    Stored: what an engine reported and has not taken back. Promised: a prompt that was sent
    there and is not computed yet. Both are dropped with the node's life.
    """

    def __init__(self) -> None:
        self._tiers: dict[str, dict[BlockKey, int]] = {}
        self._promised: dict[str, dict[BlockKey, int]] = {}

    def stored(self, node: str, tier: int, keys: Iterable[BlockKey]) -> None:
        """Blocks became readable. Idempotent; a tier other than 1 and 2 is ignored."""
        if tier not in TIERS:
            return
        held = self._tiers.setdefault(node, {})
        for key in keys:
            held[key] = held.get(key, 0) | tier

    def evicted(self, node: str, tier: int, keys: Iterable[BlockKey]) -> None:
        """Blocks are gone from a tier. Idempotent."""
        held = self._tiers.get(node, {})
        for key in keys:
            left = held.get(key, 0) & ~tier
            if left:
                held[key] = left
            else:
                held.pop(key, None)

    def promise(self, node: str, keys: Iterable[BlockKey]) -> None:
        """A request that computes these blocks was sent there."""
        counts = self._promised.setdefault(node, {})
        for key in keys:
            counts[key] = counts.get(key, 0) + 1

    def release(self, node: str, keys: Iterable[BlockKey]) -> None:
        """That request computes them no more: done, or gone. Once for each `promise`."""
        counts = self._promised.get(node, {})
        for key in keys:
            left = counts.get(key, 0) - 1
            if left > 0:
                counts[key] = left
            else:
                counts.pop(key, None)

    def forget(self, node: str) -> None:
        """The node's life ended, and with it every block that it stored.

        Promises stay: whoever made them releases them.
        """
        self._tiers.pop(node, None)

    def leading_blocks(self, node: str, keys: Sequence[BlockKey]) -> int:
        """How many of the first `keys` the node has or will have, without a gap."""
        held, promised = self._tiers.get(node, {}), self._promised.get(node, {})
        for index, key in enumerate(keys):
            if key not in held and key not in promised:
                return index
        return len(keys)

    def stored_blocks(self, node: str) -> int:
        return len(self._tiers.get(node, {}))

    def check(
        self, promises: Mapping[str, Mapping[BlockKey, int]], alive: Iterable[str]
    ) -> list[str]:
        """Violations. promises: by node, recomputed from the requests."""
        problems = []
        for node in sorted({*self._promised, *promises}):
            if self._promised.get(node, {}) != promises.get(node, {}):
                problems.append(f"promised blocks of {node} differ from those of its requests")
        known = set(alive)
        problems.extend(
            f"blocks of {node} are known, but it is not alive"
            for node in sorted(self._tiers)
            if node not in known
        )
        return problems
