"""Where a request runs: the node with the least predicted time to first token prefills it.

Equation 7 (section 5) on what is known so far: T = T_rem + queue + own time. Fetching from peers
and the cost of duplicates join when the pool and its directory do.
"""

from __future__ import annotations

import msgspec

from evctl.core.effects import Explanation
from evctl.core.split import Phase
from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord, Stage
from evctl.policy.directory import Match

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 30.0


class PrefillTerms(msgspec.Struct, frozen=True):
    """One candidate: seconds of running prefills, of queued ones, of this request."""

    node: str
    remaining_s: float
    queued_s: float
    own_s: float
    cached_tokens: int
    uncached_tokens: int

    @property
    def total_s(self) -> float:
        return self.remaining_s + self.queued_s + self.own_s

    def as_dict(self) -> dict[str, float]:
        return {
            "total_s": self.total_s,
            "remaining_s": self.remaining_s,
            "queued_s": self.queued_s,
            "own_s": self.own_s,
            "cached_tokens": float(self.cached_tokens),
            "uncached_tokens": float(self.uncached_tokens),
        }


class DecodeTerms(msgspec.Struct, frozen=True):
    """One candidate: requests it decodes or will, and blocks of L1 that nobody needs."""

    node: str
    decodes: int
    free_blocks: int
    has_room: bool

    def as_dict(self) -> dict[str, float]:
        return {
            "decodes": float(self.decodes),
            "free_blocks": float(self.free_blocks),
            "has_room": float(self.has_room),
        }


class Choice(msgspec.Struct, frozen=True):
    """Both nodes of a request, with every candidate's terms."""

    prefill: tuple[PrefillTerms, ...]
    decode: tuple[DecodeTerms, ...]
    prefill_node: str
    decode_node: str
    uncached_tokens: int

    def explain(self, request_id: str, decision: str) -> Explanation:
        terms = {f"prefill {t.node}": t.as_dict() for t in self.prefill}
        terms.update({f"decode {t.node}": t.as_dict() for t in self.decode})
        where = f"prefill on {self.prefill_node}, decode on {self.decode_node}"
        return Explanation(f"request {request_id}", f"{decision}: {where}", terms)


def can_serve(state: ClusterState) -> bool:
    """Whether any node is alive."""
    return any(node.alive for node in state.nodes.values())


def choose(
    state: ClusterState, record: RequestRecord, match: Match, now_s: float
) -> Choice | None:
    """Nodes for a request that is on none. None if every alive node has refused it."""
    prefill_nodes = candidates(state, Phase.PREFILL, now_s, record.tried)
    if not prefill_nodes:
        return None
    prefill = tuple(prefill_terms(state, node, record, match) for node in prefill_nodes)
    best = min(prefill, key=lambda t: (t.total_s, t.node))
    decode = tuple(
        decode_terms(state, node, record) for node in candidates(state, Phase.DECODE, now_s)
    )
    chosen = min(decode, key=lambda t: (not t.has_room, t.decodes, t.node))
    return Choice(prefill, decode, best.node, chosen.node, best.uncached_tokens)


def candidates(
    state: ClusterState, phase: Phase, now_s: float, exclude: tuple[str, ...] = ()
) -> list[NodeRecord]:
    """Nodes that may get work of `phase`: alive, not late, of that role.

    If the phase has none such, any alive node that is not late serves it; a late node gets
    work only when all are late, for then lateness says more about this machine than of nodes.
    """
    alive = [n for n in state.nodes.values() if n.alive and n.name not in exclude]
    on_time = [n for n in alive if not is_late(state, n, now_s)]
    usable = on_time or alive
    return [n for n in usable if n.role.phase is phase] or usable


def late_at_s(state: ClusterState, node: NodeRecord) -> float:
    """When the node's silence makes it late."""
    return node.seen_s + state.config.node_late_after_s


def is_late(state: ClusterState, node: NodeRecord, now_s: float) -> bool:
    """Whether the node has been silent too long to get new work."""
    return now_s >= late_at_s(state, node)


def prefill_terms(
    state: ClusterState, node: NodeRecord, record: RequestRecord, match: Match
) -> PrefillTerms:
    """What the node must do before it can answer the request. Dispatches that it has not
    acknowledged count as queued, and blocks that they will compute as cached."""
    token_s = state.token_s(node)
    ahead = state.prefills_of(node)
    waiting = [r for r in ahead if r.stage is Stage.WAITING]
    running = [r for r in ahead if r.stage is Stage.PREFILL]
    blocks = max(match.coverage.get(node.name, 0), match.promised.get(node.name, 0))
    # The last prompt token is always computed: its output is the first token.
    cached = min(blocks * node.block_tokens, record.prompt_tokens - 1)
    uncached = record.prompt_tokens - cached
    return PrefillTerms(
        node=node.name,
        remaining_s=token_s * sum(r.remaining_tokens for r in running),
        queued_s=token_s * sum(r.uncached_tokens for r in waiting),
        own_s=token_s * uncached,
        cached_tokens=cached,
        uncached_tokens=uncached,
    )


def decode_terms(state: ClusterState, node: NodeRecord, record: RequestRecord) -> DecodeTerms:
    """Room is what is neither in use by the last report nor meant for requests under way."""
    decodes = state.decodes_of(node)
    meant = sum(_blocks(node, r.prompt_tokens) for r in state.requests_of(node))
    used = node.report.l1_used_blocks if node.report else 0
    free = node.l1_blocks - max(used, meant)
    needed = _blocks(node, record.prompt_tokens + 1)
    has_room = free >= needed and len(decodes) < node.max_running
    return DecodeTerms(node.name, len(decodes), free, has_room)


def retry_after_s(state: ClusterState, now_s: float) -> float:
    """When a request that is turned away may fit: as the shortest queue drains by half."""
    loads = [
        state.token_s(node) * sum(r.remaining_tokens for r in state.prefills_of(node))
        for node in candidates(state, Phase.PREFILL, now_s)
    ]
    wait_s = min(loads, default=0.0) / 2
    return min(MAX_RETRY_AFTER_S, max(MIN_RETRY_AFTER_S, wait_s))


def _blocks(node: NodeRecord, tokens: int) -> int:
    return -(-tokens // node.block_tokens)
