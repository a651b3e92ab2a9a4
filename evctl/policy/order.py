"""Shortest remaining prefill first, with ageing: who computes before whom on a node.

At each chunk boundary an engine takes the prompt with the least rank: seconds of work left, plus
`ageing` times the second it arrived in. Ranks of waiting requests do not change with time, only
with work, so that an order stays as it is. A request of S seconds of work can be overtaken by
those only that arrive within S / ageing seconds after it: nobody starves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord
from evctl.policy.loads import pairs_of


def rank_s(remaining_tokens: float, token_s: float, ageing: float, arrived_s: float) -> float:
    """Least first; ties in the order of arrival. As engines rank
    (evengine/order.py): the engine is told how long a request has waited since arrived_s."""
    return remaining_tokens * token_s + ageing * arrived_s


def left(record: RequestRecord) -> int:
    """New tokens that its prefill node still has to compute."""
    return record.uncached_tokens if record.waits else record.remaining_tokens


def in_order(state: ClusterState, node: NodeRecord) -> Sequence[RequestRecord]:
    """The node's prompts, in the order in which it computes them."""
    ahead = list(node.load.prefills.values())
    if not state.config.shortest_first:
        return ahead
    token_s, ageing = state.prefill_rates(node)[1], state.config.prefill_ageing
    return sorted(ahead, key=lambda r: rank_s(left(r), token_s, ageing, r.arrived_s))


class Queue(msgspec.Struct, frozen=True, gc=False):
    """A node's prompts by rank. running, waiting: seconds of the first so many that run, or wait.
    chunks: of those after so many, the longest chunk of one that runs: it may be under way."""

    ranks: tuple[float, ...]
    running: tuple[float, ...]
    waiting: tuple[float, ...]
    chunks: tuple[float, ...]

    def ahead_s(self, rank: float) -> tuple[float, float]:
        """Seconds of running and of waiting prompts that are computed before one of that rank, as
        far as is known now."""
        place = bisect_right(self.ranks, rank)
        return self.running[place] + self.chunks[place], self.waiting[place]


def queue_of(state: ClusterState, node: NodeRecord) -> Queue:
    """From the node's requests."""
    each_s, token_s, pair_s, restored_s = state.prefill_rates(node)
    ageing = state.config.prefill_ageing
    found: list[tuple[float, float, float, float]] = []
    for record in node.load.prefills.values():
        work = left(record)
        if not work:
            continue
        rank = rank_s(work, token_s, ageing, record.arrived_s)
        cost_s = each_s + token_s * work + pair_s * pairs_of(work, record.prompt_tokens)
        if record.waits:
            found.append((rank, 0.0, cost_s + restored_s * record.to_restore_tokens, 0.0))
        else:
            chunk_s = cost_s * min(1.0, node.tokens_per_iteration / work)
            found.append((rank, cost_s, 0.0, chunk_s))
    found.sort()
    chunks = list(accumulate((chunk_s for *_, chunk_s in reversed(found)), max, initial=0.0))
    return Queue(
        ranks=tuple(rank for rank, *_ in found),
        running=tuple(accumulate((running_s for _, running_s, *_ in found), initial=0.0)),
        waiting=tuple(accumulate((waiting_s for *_, waiting_s, _ in found), initial=0.0)),
        chunks=tuple(reversed(chunks)),
    )
