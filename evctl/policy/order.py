"""Shortest remaining prefill first, with ageing: who computes before whom on a node.

At each chunk boundary an engine takes the prompt with the least rank: seconds of work left, plus
`ageing` times the second it arrived in. Ranks of waiting requests do not change with time, only
with work, so that an order stays as it is. A request of S seconds of work can be overtaken by
those only that arrive within S / ageing seconds after it: nobody starves.
"""

from __future__ import annotations

from collections.abc import Sequence

from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord, Stage
from evctl.policy.loads import pairs_of


def rank_s(remaining_tokens: float, token_s: float, ageing: float, arrived_s: float) -> float:
    """Least first; ties in the order of arrival. As engines rank (evengine/schedule.py)."""
    return remaining_tokens * token_s + ageing * arrived_s


def left(record: RequestRecord) -> int:
    """New tokens that its prefill node still has to compute."""
    return record.uncached_tokens if record.stage is Stage.WAITING else record.remaining_tokens


def in_order(state: ClusterState, node: NodeRecord) -> Sequence[RequestRecord]:
    """The node's prompts, in the order in which it computes them."""
    ahead = list(node.load.prefills.values())
    if not state.config.shortest_first:
        return ahead
    token_s, ageing = state.token_s(node), state.config.prefill_ageing
    return sorted(ahead, key=lambda r: rank_s(left(r), token_s, ageing, r.arrived_s))


def ahead_s(
    state: ClusterState, node: NodeRecord, tokens: int, arrived_s: float
) -> tuple[float, float]:
    """Seconds of running and of waiting prompts that the node computes before one with so many
    new tokens, as far as is known now. Of a longer one that runs, the chunk under way."""
    token_s, ageing = state.token_s(node), state.config.prefill_ageing
    mine_s = rank_s(tokens, token_s, ageing, arrived_s)
    each_s, new_s, pair_s, restored_s = state.prefill_rates(node)
    running_s = waiting_s = longest_s = 0.0
    for record in node.load.prefills.values():
        work = left(record)
        if not work:
            continue
        pairs = pairs_of(work, record.prompt_tokens)
        cost_s = each_s + new_s * work + pair_s * pairs
        waits = record.stage is Stage.WAITING
        if rank_s(work, token_s, ageing, record.arrived_s) <= mine_s:
            if waits:
                waiting_s += cost_s + restored_s * record.restored_tokens
            else:
                running_s += cost_s
        elif not waits:
            chunk = min(1.0, node.tokens_per_iteration / work)
            longest_s = max(longest_s, cost_s * chunk)
    return running_s + longest_s, waiting_s
