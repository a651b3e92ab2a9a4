"""Sums of what a node has to do, kept as requests move instead of walking its lists.

All are whole numbers, so that what is added can be taken away exactly; check() recounts them from
the requests themselves (policy/audit.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from evctl.policy.cluster import NodeRecord, RequestRecord


class Share(msgspec.Struct, frozen=True, gc=False):
    """What one request adds to the load of one node; fields as in NodeLoad."""

    waiting: int = 0
    waiting_tokens: int = 0
    waiting_pairs: int = 0
    waiting_restored: int = 0
    fetch_blocks: int = 0
    running: int = 0
    running_tokens: int = 0
    running_pairs: int = 0
    decodes: int = 0
    decoding: int = 0
    meant_blocks: int = 0


class NodeLoad(msgspec.Struct):
    """waiting, running: prompts with tokens left that it has not begun, or has; of these the
    tokens, query-key pairs and tokens that are restored from host memory. fetch_blocks: that
    waiting ones get from peers. decodes: requests that it decodes or will; decoding: of
    those, the ones that it decodes now. meant_blocks: of
    prompts of all its requests. prefills: those whose prompt it still has to compute, in the
    order they came. changes: counts up with each of them.
    """

    waiting: int = 0
    waiting_tokens: int = 0
    waiting_pairs: int = 0
    waiting_restored: int = 0
    fetch_blocks: int = 0
    running: int = 0
    running_tokens: int = 0
    running_pairs: int = 0
    decodes: int = 0
    decoding: int = 0
    meant_blocks: int = 0
    prefills: dict[str, RequestRecord] = {}
    changes: int = 0

    def add(self, share: Share, sign: int) -> None:
        """sign: 1 to add, -1 to take away."""
        self.changes += 1
        self.waiting += sign * share.waiting
        self.waiting_tokens += sign * share.waiting_tokens
        self.waiting_pairs += sign * share.waiting_pairs
        self.waiting_restored += sign * share.waiting_restored
        self.fetch_blocks += sign * share.fetch_blocks
        self.running += sign * share.running
        self.running_tokens += sign * share.running_tokens
        self.running_pairs += sign * share.running_pairs
        self.decodes += sign * share.decodes
        self.decoding += sign * share.decoding
        self.meant_blocks += sign * share.meant_blocks


def pairs_of(tokens: int, prompt_tokens: int) -> int:
    """Query-key pairs of a prompt's last `tokens` tokens, all before them cached (A of Eq. 1)."""
    return tokens * (prompt_tokens - tokens) + tokens * (tokens + 1) // 2


def shares_of(
    nodes: Mapping[str, NodeRecord], record: RequestRecord
) -> tuple[tuple[NodeRecord, Share], ...]:
    """What a placed request adds to the loads of the nodes that know it."""
    found = []
    for name in record.nodes:
        node = nodes[name]
        meant = -(-record.prompt_tokens // node.block_tokens)
        decodes = int(name == record.decode_node)
        if name == record.prefill_node and record.awaits_prefill:
            share = _prefill_share(record, decodes, meant)
        else:
            now = int(decodes and record.decodes_now)
            share = Share(decodes=decodes, decoding=now, meant_blocks=meant)
        found.append((node, share))
    return tuple(found)


def _prefill_share(record: RequestRecord, decodes: int, meant: int) -> Share:
    if record.waits:
        tokens = record.uncached_tokens
        pairs = pairs_of(tokens, record.prompt_tokens)
        restored, fetched = record.to_restore_tokens, record.fetch_blocks
        some = int(tokens > 0)
        return Share(some, tokens, pairs, restored, fetched, 0, 0, 0, decodes, 0, meant)
    tokens = record.remaining_tokens
    pairs = pairs_of(tokens, record.prompt_tokens)
    return Share(0, 0, 0, 0, 0, int(tokens > 0), tokens, pairs, decodes, 0, meant)
