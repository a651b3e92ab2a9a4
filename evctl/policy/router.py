"""Where a request runs: the node with the least predicted time to first token prefills it.

The terms are in policy/terms.py, what others do instead in policy/baselines/routing.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from evctl.core.split import Phase
from evctl.policy.append import append_terms, best_append
from evctl.policy.baselines.routing import cache_aware, fixed_session, round_robin
from evctl.policy.candidates import (
    Candidates,
    can_serve,
    candidates,
    find,
    is_late,
    known,
    late_at_s,
)
from evctl.policy.choice import Choice
from evctl.policy.cluster import ClusterState, RequestRecord
from evctl.policy.directory import Match, Piece
from evctl.policy.fetches import lacking
from evctl.policy.standing import standing_of
from evctl.policy.terms import (
    DecodeRow,
    PrefillRow,
    PrefillTerms,
    decode_rows,
    held_blocks,
    prefill_rows,
    prefill_terms,
)

__all__ = [
    "ROUTINGS",
    "Choice",
    "can_serve",
    "candidates",
    "choose",
    "held_blocks",
    "is_late",
    "late_at_s",
    "retry_after_s",
]

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 30.0

Rule = Callable[
    [ClusterState, RequestRecord, Sequence[PrefillRow], Sequence[DecodeRow]],
    tuple[PrefillRow, DecodeRow],
]
"""Picks one of the candidates for prefill, of which there is at least one, and one for decode.
It may advance counters of the state that are for it, and changes nothing else."""


def predicted(
    state: ClusterState,
    record: RequestRecord,
    prefill: Sequence[PrefillRow],
    decode: Sequence[DecodeRow],
) -> tuple[PrefillRow, DecodeRow]:
    """Least predicted time to first token (Eq. 7); least predicted iteration after admission among
    those with room, then by count; ties by name. So rows are ordered."""
    del state, record
    return min(prefill), min(decode)


ROUTINGS: Final[dict[str, Rule]] = {
    "predicted": predicted,
    "cache-aware": cache_aware,
    "session": fixed_session,
    "round-robin": round_robin,
}


def choose(
    state: ClusterState, record: RequestRecord, match: Match, now_s: float
) -> Choice | None:
    """Nodes for a request that is on none. None if every alive node has refused it."""
    found = find(state, now_s, record.tried) if record.tried else known(state, now_s)
    if not found.prefill:
        return None
    pieces = _fetchable(state, found, record, match)
    prefill = prefill_rows(state, found.prefill, record, match, pieces)
    decoding = found.decode if not record.tried else known(state, now_s).decode
    decode = decode_rows(state, decoding, record.prompt_tokens)
    best, chosen = ROUTINGS[state.config.routing](state, record, prefill, decode)
    terms = prefill_terms(best)
    append: Sequence[PrefillTerms] = ()
    if state.config.append_tokens:
        append = append_terms(state, record, match, decode, found.prefilling)
        sooner = best_append(state, append, terms, decode, chosen[3])
        if sooner is not None:
            return Choice(prefill, decode, sooner, sooner.node, append, appended=True)
    wanted: list[Piece] = []
    if terms.fetch_blocks:
        wanted = lacking(pieces, terms.node, held_blocks(match, terms.node))
    return Choice(prefill, decode, terms, chosen[3], append, wanted=tuple(wanted))


def _fetchable(
    state: ClusterState, found: Candidates, record: RequestRecord, match: Match
) -> list[Piece]:
    """Who has what in L2 of the blocks that any of the nodes lacks; [] where none can fetch. Only
    what spares computing: full blocks, and never the last token, whose output is the first."""
    fetching, coverage = found.fetching, match.coverage
    if not fetching or not match.known:
        return []
    start = min(map(coverage.__getitem__, fetching)) if fetching <= coverage.keys() else 0
    end = min(match.known, (record.prompt_tokens - 1) // found.least_block_tokens)
    if start >= end:
        return []
    pieces = state.directory.lenders(record.request_id, start, end)
    return [(low, high, found.of_peers(holders)) for low, high, holders in pieces]


def retry_after_s(state: ClusterState, now_s: float) -> float:
    """When a request that is turned away may fit: as the shortest queue drains by half."""
    nodes = candidates(state, Phase.PREFILL, now_s)
    wait_s = min((standing_of(state, node).waiting_s for node in nodes), default=0.0) / 2
    return min(MAX_RETRY_AFTER_S, max(MIN_RETRY_AFTER_S, wait_s))
