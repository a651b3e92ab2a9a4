"""Append on decode: few new tokens run where the rest of the prompt lies already (plus).

A decode node keeps the KV of what it decoded in L1. The branch's next request adds little to it,
more often than not: the node computes that little in the iterations of its decodes, with no
queue before and no push after. Those decodes get their next token later, which counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord
from evctl.policy.directory import Match
from evctl.policy.loads import pairs_of
from evctl.policy.standing import standing_of
from evctl.policy.terms import DecodeRow, PrefillTerms

UNDER_WAY = 0.5
"""Of an iteration is left, on average, when a request comes."""


def append_terms(
    state: ClusterState,
    record: RequestRecord,
    match: Match,
    decode: Sequence[DecodeRow],
    prefilling: frozenset[str],
) -> list[PrefillTerms]:
    """Decode nodes that could prefill it: with room, a part of its prompt in L1, and at most
    `append_tokens` of it not. prefilling: nodes that are candidates for prefill anyway."""
    most = state.config.append_tokens
    if not most:
        return []
    found = []
    coverage, leads = match.coverage, state.directory.l1_leads(record.request_id)
    for full, _, _, name, _ in decode:
        if name not in coverage:
            continue  # most nodes
        if full or name in prefilling or name in record.tried:
            continue
        node = state.nodes[name]
        if node.role is not node.settled_role:
            continue  # it is to finish the prefills that it has, not to get new ones
        # What it holds in any tier is no less than what it holds in L1, and known already.
        if _uncached(node, record, coverage.get(name, 0)) > most:
            continue
        blocks = leads.of(name)
        tokens = _uncached(node, record, blocks)
        if blocks and tokens <= most:
            found.append(_terms(state, node, record, tokens))
    return found


def best_append(
    state: ClusterState,
    append: Sequence[PrefillTerms],
    best: PrefillTerms,
    decode: Sequence[DecodeRow],
    chosen: str,
) -> PrefillTerms | None:
    """The one to take instead of `best` and `chosen`: where the request, those that it disturbs
    counted, ends sooner. None where that is nowhere. Outputs are taken for as long as they are
    on average, and what an iteration takes for what it takes now."""
    if not append:
        return None
    iteration_s = {name: next_s for _, next_s, _, name, _ in decode}

    def later_s(term: PrefillTerms) -> float:
        return state.output_tokens * (iteration_s[term.node] - iteration_s[chosen])

    first = min(append, key=lambda t: (t.total_s + later_s(t), t.node))
    return first if first.total_s + later_s(first) < best.total_s else None


def _terms(
    state: ClusterState, node: NodeRecord, record: RequestRecord, tokens: int
) -> PrefillTerms:
    at = standing_of(state, node)
    pairs = pairs_of(tokens, record.prompt_tokens)
    computing_s = at.each_s + at.token_s * tokens + at.pair_s * pairs
    # The iteration under way ends first; its own one carries the decodes too.
    own_s = computing_s + (1.0 + UNDER_WAY) * state.decode_s(node)
    interfering_s = node.load.decoding * computing_s
    return PrefillTerms(
        total_s=at.waiting_s + own_s + interfering_s,
        node=node.name,
        remaining_s=at.remaining_s,
        queued_s=at.queued_s,
        own_s=own_s,
        cached_tokens=record.prompt_tokens - tokens,
        uncached_tokens=tokens,
        interfering_s=interfering_s,
    )


def _uncached(node: NodeRecord, record: RequestRecord, blocks: int) -> int:
    return record.prompt_tokens - min(blocks * node.block_tokens, record.prompt_tokens - 1)
