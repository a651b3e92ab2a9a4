"""How others choose nodes. They are told the same candidates and terms as our rule, read what
they use, and fetch and hand over with the same engines; decode goes round robin in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

from evctl.core.split import Phase
from evctl.policy.cluster import ClusterState, RequestRecord
from evctl.policy.terms import DecodeRow, PrefillRow

T = TypeVar("T")

CACHE_THRESHOLD = 0.3
BALANCE_ABS_THRESHOLD = 64
BALANCE_REL_THRESHOLD = 1.5
"""Defaults of the SGLang model gateway (sglang_router: --cache-threshold, --balance-...)."""


def cache_aware(
    state: ClusterState,
    record: RequestRecord,
    prefill: Sequence[PrefillRow],
    decode: Sequence[DecodeRow],
) -> tuple[PrefillRow, DecodeRow]:
    """As the SGLang model gateway does: where loads differ much, the least loaded node; else the
    one with the longest prefix if that is more than a part of the prompt, else the one that
    keeps least. It knows its tree by what it sent; ours knows what is there, which favours it."""
    loads = {row[1]: len(state.nodes[row[1]].load.prefills) for row in prefill}
    chosen_decode = round_robin_decode(state, decode)
    least, most = min(loads.values()), max(loads.values())
    if most - least > BALANCE_ABS_THRESHOLD and most > BALANCE_REL_THRESHOLD * least:
        return min(prefill, key=lambda row: (loads[row[1]], row[1])), chosen_decode
    longest = min(prefill, key=lambda row: (-_cached(row), row[1]))
    if _cached(longest) > CACHE_THRESHOLD * record.prompt_tokens:
        return longest, chosen_decode
    kept = {row[1]: sum(state.directory.nodes[row[1]].blocks) for row in prefill}
    return min(prefill, key=lambda row: (kept[row[1]], row[1])), chosen_decode


def fixed_session(
    state: ClusterState,
    record: RequestRecord,
    prefill: Sequence[PrefillRow],
    decode: Sequence[DecodeRow],
) -> tuple[PrefillRow, DecodeRow]:
    """All requests of a session on one node while it is a candidate: the one with the highest
    hash of both names, so that a node that comes or goes moves no other's sessions."""
    session = record.session or record.request_id
    chosen = max(prefill, key=lambda row: (_hash(session, row[1]), row[1]))
    return chosen, round_robin_decode(state, decode)


def round_robin(
    state: ClusterState,
    record: RequestRecord,
    prefill: Sequence[PrefillRow],
    decode: Sequence[DecodeRow],
) -> tuple[PrefillRow, DecodeRow]:
    """One after the other in both phases."""
    del record
    return _next(state, Phase.PREFILL, prefill), round_robin_decode(state, decode)


def round_robin_decode(state: ClusterState, decode: Sequence[DecodeRow]) -> DecodeRow:
    """The next one, among those with KV room while there are some."""
    return _next(state, Phase.DECODE, [row for row in decode if not row[0]] or decode)


def _cached(row: PrefillRow) -> int:
    return row[5][0]


def _next(state: ClusterState, phase: Phase, rows: Sequence[T]) -> T:
    turn = state.turns[phase]
    state.turns[phase] = turn + 1
    return rows[turn % len(rows)]


def _hash(session: str, node: str) -> bytes:
    return blake2b(node.encode(), key=blake2b(session.encode()).digest(), digest_size=8).digest()
