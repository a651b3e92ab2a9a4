"""Where a request runs: the node with the least predicted time to first token prefills it.

Equation 7: T = T_rem + queue + own + max(0, fetch - wait) + lambda * dup. A node computes what it
cannot get from its own tiers or from peers' host memory; what it fetches comes while it waits.
"""

from __future__ import annotations

import msgspec

from evctl.core.effects import Explanation, Prediction
from evctl.core.split import Phase
from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord, Stage
from evctl.policy.directory import Match, Piece
from evctl.policy.fetches import (
    displaced,
    lacking,
    peers_of,
    reach,
    size,
    usable_blocks,
)

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 30.0


class PrefillTerms(msgspec.Struct, frozen=True):
    """One candidate: seconds of running prefills, of queued ones, of this request.

    cached_tokens: its own, promised ones included. fetch_blocks: what it lacks and peers have;
    fetch_s: until it has them, behind what it fetches already; exposed_s: of that, what is left
    when it would begin. displaced_s: cost of the blocks that must make room.
    """

    node: str
    remaining_s: float
    queued_s: float
    own_s: float
    cached_tokens: int
    uncached_tokens: int
    fetch_blocks: int = 0
    fetch_s: float = 0.0
    displaced_s: float = 0.0

    @property
    def exposed_s(self) -> float:
        return max(0.0, self.fetch_s - self.remaining_s - self.queued_s)

    @property
    def total_s(self) -> float:
        computing_s = self.remaining_s + self.queued_s + self.own_s
        return computing_s + self.exposed_s + self.displaced_s

    def predicted(self) -> Prediction:
        wait_s = self.remaining_s + self.queued_s
        ttft_s = wait_s + self.own_s + self.exposed_s
        return Prediction(ttft_s, wait_s, self.own_s, self.fetch_s)

    def as_dict(self) -> dict[str, float]:
        return {
            "total_s": self.total_s,
            "remaining_s": self.remaining_s,
            "queued_s": self.queued_s,
            "own_s": self.own_s,
            "cached_tokens": float(self.cached_tokens),
            "uncached_tokens": float(self.uncached_tokens),
            "fetch_blocks": float(self.fetch_blocks),
            "fetch_s": self.fetch_s,
            "exposed_s": self.exposed_s,
            "displaced_s": self.displaced_s,
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
    """Both nodes of a request, with every candidate's terms. wanted: what the prefill node
    lacks of the prompt, and who has it."""

    prefill: tuple[PrefillTerms, ...]
    decode: tuple[DecodeTerms, ...]
    prefill_node: str
    decode_node: str
    uncached_tokens: int
    predicted: Prediction
    wanted: tuple[Piece, ...] = ()

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
    pieces = _fetchable(state, prefill_nodes, record, match, now_s)
    prefill = tuple(prefill_terms(state, node, record, match, pieces) for node in prefill_nodes)
    best = min(prefill, key=lambda t: (t.total_s, t.node))
    decode = tuple(
        decode_terms(state, node, record) for node in candidates(state, Phase.DECODE, now_s)
    )
    chosen = min(decode, key=lambda t: (not t.has_room, t.decodes, t.node))
    held = held_blocks(match, best.node)
    wanted = lacking(pieces, best.node, held) if best.fetch_blocks else ()
    return Choice(
        prefill=prefill,
        decode=decode,
        prefill_node=best.node,
        decode_node=chosen.node,
        uncached_tokens=best.uncached_tokens,
        predicted=best.predicted(),
        wanted=tuple(wanted),
    )


def held_blocks(match: Match, node: str) -> int:
    """Leading blocks that the node has, or will have once what runs there is computed."""
    return max(match.coverage.get(node, 0), match.promised.get(node, 0))


def _fetchable(
    state: ClusterState,
    nodes: list[NodeRecord],
    record: RequestRecord,
    match: Match,
    now_s: float,
) -> list[Piece]:
    """Who has what in L2 of the blocks that any of the nodes lacks; [] where none can fetch."""
    fetching = [node for node in nodes if node.l2_blocks]
    if not fetching or not match.known:
        return []
    start = min(held_blocks(match, node.name) for node in fetching)
    end = min(match.known, max(usable_blocks(node, record) for node in fetching))
    if start >= end:
        return []
    peers = peers_of(state, now_s)
    found = state.directory.lenders(record.request_id, start, end)
    return [(low, high, holders & peers) for low, high, holders in found]


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
    state: ClusterState,
    node: NodeRecord,
    record: RequestRecord,
    match: Match,
    pieces: list[Piece],
) -> PrefillTerms:
    """What the node must do before it can answer the request. Dispatches that it has not
    acknowledged count as queued, and blocks that they will compute as cached."""
    token_s = state.token_s(node)
    ahead = state.prefills_of(node)
    waiting = [r for r in ahead if r.stage is Stage.WAITING]
    running = [r for r in ahead if r.stage is Stage.PREFILL]
    blocks = held_blocks(match, node.name)
    # The last prompt token is always computed: its output is the first token.
    cached = min(blocks * node.block_tokens, record.prompt_tokens - 1)
    found = cached
    fetch_blocks, fetch_s, gone = 0, 0.0, 0.0
    if pieces and node.l2_blocks:
        fetch_blocks = size(lacking(pieces, node.name, blocks))
    if fetch_blocks:
        found = min(reach(pieces, blocks) * node.block_tokens, record.prompt_tokens - 1)
        behind = sum(r.fetch_blocks for r in waiting)
        fetch_s = state.fetch_s(node, behind + fetch_blocks)
        gone = displaced(state, node, fetch_blocks)
    return PrefillTerms(
        node=node.name,
        remaining_s=token_s * sum(r.remaining_tokens for r in running),
        queued_s=token_s * sum(r.uncached_tokens for r in waiting),
        own_s=token_s * (record.prompt_tokens - found),
        cached_tokens=cached,
        uncached_tokens=record.prompt_tokens - found,
        fetch_blocks=fetch_blocks,
        fetch_s=fetch_s,
        displaced_s=state.config.duplicate_block_s * gone,
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
