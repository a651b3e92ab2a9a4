"""What a node's state says to every request alike: kept until the node changes.

A decision over a hundred nodes cannot afford to derive it from each node again. It is a value, so
that a decision can keep it as it was, to explain itself later.
"""

from __future__ import annotations

import msgspec

from evctl.core.costs import Coefficients
from evctl.policy.cluster import ClusterState, NodeRecord
from evctl.policy.order import Queue, queue_of

KINDS = 1 << 20
"""More than any Standing.kind."""


class Standing(msgspec.Struct, frozen=True, gc=False):
    """each_s, token_s, pair_s, restored_s: ClusterState.prefill_rates. remaining_s, queued_s:
    of prompts that it computes, and that wait, first come first served; waiting_s: both.
    decodes: requests that it decodes or will; next_s: an iteration with one more, None without
    a model; free_blocks: of L1, neither in use by the last report nor meant for requests under
    way; has_slot: whether one more may decode there. queue: its prompts by rank, where the
    shortest goes first. kind: equal where what a prompt needs depends on its held blocks alone.
    """

    name: str
    block_tokens: int
    fetches: bool
    each_s: float
    token_s: float
    pair_s: float
    restored_s: float
    remaining_s: float
    queued_s: float
    waiting_s: float
    fetch_blocks: int
    decodes: int
    next_s: float | None
    free_blocks: int
    has_slot: bool
    queue: Queue | None
    kind: int
    model: Coefficients | None
    tokens_per_iteration: float


def standing_of(state: ClusterState, node: NodeRecord) -> Standing:
    """The node's, made anew if anything that it is made of has changed."""
    kept: Standing | None = node.standing
    if kept is not None and kept.model is node.coefficients:
        if kept.model is None:
            same = kept.token_s == state.token_s(node)
        else:
            same = kept.tokens_per_iteration == node.tokens_per_iteration
        if same:
            return kept
    made = node.standing = make(state, node)
    return made


def make(state: ClusterState, node: NodeRecord) -> Standing:
    """From the node's sums, model and last report."""
    load, model = node.load, node.coefficients
    each_s, token_s, pair_s, restored_s = state.prefill_rates(node)
    remaining_s = each_s * load.running + token_s * load.running_tokens
    remaining_s += pair_s * load.running_pairs
    queued_s = each_s * load.waiting + token_s * load.waiting_tokens
    queued_s += pair_s * load.waiting_pairs + restored_s * load.waiting_restored
    used = node.report.l1_used_blocks if node.report else 0
    return Standing(
        name=node.name,
        block_tokens=node.block_tokens,
        fetches=node.l2_blocks > 0,
        each_s=each_s,
        token_s=token_s,
        pair_s=pair_s,
        restored_s=restored_s,
        remaining_s=remaining_s,
        queued_s=queued_s,
        waiting_s=remaining_s + queued_s,
        fetch_blocks=load.fetch_blocks,
        decodes=load.decodes,
        next_s=model.decode_s(load.decodes + 1) if model is not None else None,
        free_blocks=node.l1_blocks - max(used, load.meant_blocks),
        has_slot=load.decodes < node.max_running,
        queue=queue_of(state, node) if state.config.shortest_first else None,
        kind=node.block_tokens * 2 + (node.l2_blocks > 0),
        model=model,
        tokens_per_iteration=node.tokens_per_iteration,
    )
