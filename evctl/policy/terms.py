"""Each candidate's predicted terms (Eq. 7), and what is kept of them to explain a choice.

T = T_rem + queue + own + max(0, fetch - wait) + lambda * dup. Times come from the execution-time
model of the node, or its measured seconds a token until there is one. A node computes what it
cannot get from its own tiers or from peers' host memory; what it fetches comes while it waits.

A decision compares plain rows; terms with names are made of them when somebody reads them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evctl.core.effects import Prediction
from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord
from evctl.policy.directory import L1Leads, Match, Piece
from evctl.policy.fetches import displaced, extent
from evctl.policy.loads import pairs_of
from evctl.policy.standing import KINDS, standing_of

Need = tuple[int, int, int, int, int]
"""Of a prompt on a node: cached tokens, tokens to compute, query-key pairs of these, blocks to
fetch, tokens that are restored from host memory."""
PrefillRow = tuple[float, str, float, float, float, Need, float, float, float]
"""total_s, node, remaining_s, queued_s, own_s, need, fetch_s, exposed_s, displaced_s. Least first
is least total first, ties by name."""
DecodeRow = tuple[bool, float, int, str, int]
"""Has no room, seconds of an iteration with the request in it, decodes, node, free blocks."""


class PrefillTerms(msgspec.Struct, frozen=True, gc=False):
    """One candidate: seconds of running prefills, of queued ones, of this request.

    total_s: all terms of Eq. 7. cached_tokens: its own, promised ones included. fetch_blocks:
    what it lacks and peers have; fetch_s: until it has them, behind what it fetches already;
    exposed_s: of that, what is left when it would begin. displaced_s: cost of the blocks that
    must make room. restored_tokens: from its host memory, where they are or to which they come.
    interfering_s: what others lose by it, for one that would run on a decode node.
    """

    node: str
    total_s: float
    remaining_s: float
    queued_s: float
    own_s: float
    cached_tokens: int
    uncached_tokens: int
    fetch_blocks: int = 0
    fetch_s: float = 0.0
    exposed_s: float = 0.0
    displaced_s: float = 0.0
    restored_tokens: int = 0
    interfering_s: float = 0.0

    def predicted(self) -> Prediction:
        wait_s = self.remaining_s + self.queued_s
        ttft_s = wait_s + self.own_s + self.exposed_s
        return Prediction(ttft_s, wait_s, self.own_s, self.fetch_s)

    def as_dict(self) -> dict[str, float]:
        return _numbers(self)


class DecodeTerms(msgspec.Struct, frozen=True, gc=False):
    """One candidate: requests it decodes or will, blocks of L1 that nobody needs, seconds of an
    iteration with this request in it (0 where some candidate has no model)."""

    node: str
    decodes: int
    free_blocks: int
    has_room: bool
    iteration_s: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return _numbers(self)


def held_blocks(match: Match, node: str) -> int:
    """Leading blocks that the node has, or will have once what runs there is computed."""
    return max(match.coverage.get(node, 0), match.promised.get(node, 0))


class Needs:
    """What nodes need for one prompt, asked for one node after the other.

    It depends on the leading blocks that a node holds, and on who has what follows; hardly any
    node holds some of that. So it is found once for each number of leading blocks.
    """

    __slots__ = ("_pieces", "_prompt", "known")

    def __init__(self, prompt_tokens: int, pieces: Sequence[Piece]) -> None:
        self._prompt = prompt_tokens
        self._pieces = pieces
        self.known: dict[int, tuple[Need, frozenset[str]]] = {}
        """By KINDS * leading blocks + kind of node: what all such nodes need but for those named,
        which hold some of what follows."""

    def find(self, key: int) -> tuple[Need, frozenset[str]]:
        """The same, for a key that is not known."""
        held = key // KINDS
        sets = [nodes for _, end, nodes in self._pieces if end > held and nodes]
        behind = sets[0].union(*sets[1:]) if sets else frozenset[str]()
        found = self.known[key] = self.of(key, ""), behind
        return found

    def of(self, key: int, name: str) -> Need:
        """Of that node."""
        held, kind = divmod(key, KINDS)
        block_tokens, fetches = divmod(kind, 2)
        prompt = self._prompt
        # The last prompt token is always computed: its output is the first token.
        cached = reached = min(held * block_tokens, prompt - 1)
        lacked = 0
        if fetches and self._pieces:
            lacked, held = extent(self._pieces, name, held)
            if lacked:
                reached = min(held * block_tokens, prompt - 1)
        tokens = prompt - reached
        return cached, tokens, pairs_of(tokens, prompt), lacked, reached - cached


def prefill_rows(
    state: ClusterState,
    nodes: Sequence[NodeRecord],
    record: RequestRecord,
    match: Match,
    pieces: Sequence[Piece],
) -> list[PrefillRow]:
    """What each node must do before it can answer the request. Dispatches that it has not
    acknowledged count as queued, and blocks that they will compute as cached."""
    needs = Needs(record.prompt_tokens, pieces)
    common, most = _common(nodes, match), record.prompt_tokens - 1
    leads: L1Leads | None = None
    known, coverage, promised = needs.known, match.coverage, match.promised
    weight_s, fetch_of = state.config.duplicate_block_s, state.fetch_s
    aged_s = state.config.prefill_ageing * record.arrived_s
    rows: list[PrefillRow] = []
    for node in nodes:
        at = standing_of(state, node)
        name = at.name
        held = stored = coverage.get(name, 0)
        if promised and name in promised:
            held = max(held, promised[name])
        key = held * KINDS + at.kind
        need, behind = known.get(key) or needs.find(key)
        if name in behind:
            need = needs.of(key, name)
        if stored > common and at.restored_s:
            leads = leads or state.directory.l1_leads(record.request_id)
            in_l1 = leads.of(name)
            if in_l1 < stored:
                size = at.block_tokens
                own = min(stored * size, most) - min(in_l1 * size, most)
                need = (*need[:4], need[4] + own)
        _, tokens, pairs, lacked, restored = need
        token_s = at.token_s
        own_s = at.each_s + token_s * tokens + at.pair_s * pairs + at.restored_s * restored
        if at.queue is None:
            remaining_s, queued_s, waiting_s = at.remaining_s, at.queued_s, at.waiting_s
        else:
            remaining_s, queued_s = at.queue.ahead_s(token_s * tokens + aged_s)
            waiting_s = remaining_s + queued_s
        total_s = waiting_s + own_s
        fetch_s = exposed_s = gone_s = 0.0
        if lacked:
            fetch_s = fetch_of(node, at.fetch_blocks + lacked)
            if fetch_s > waiting_s:
                exposed_s = fetch_s - waiting_s
            if weight_s:
                gone_s = weight_s * displaced(state, node, lacked)
            total_s = total_s + exposed_s + gone_s
        rows.append(
            (total_s, name, remaining_s, queued_s, own_s, need, fetch_s, exposed_s, gone_s)
        )
    return rows


def _common(nodes: Sequence[NodeRecord], match: Match) -> int:
    """Leading blocks that every node holds. Whether these lie in L1 or L2 is not looked into: it
    is asked of a hundred nodes, and hardly differs between them."""
    coverage = match.coverage
    if len(coverage) < len(nodes):
        return 0
    return min([coverage.get(node.name, 0) for node in nodes], default=0)


def decode_rows(
    state: ClusterState, nodes: Sequence[NodeRecord], prompt_tokens: int
) -> list[DecodeRow]:
    """Times are compared where all nodes have them: one without a model would win, or lose, for
    that alone. Where not all have, requests are."""
    rows: list[DecodeRow] = []
    modelled = True
    for node in nodes:
        at = standing_of(state, node)
        # Room for one token more than the prompt has.
        full = at.free_blocks <= prompt_tokens // at.block_tokens or not at.has_slot
        next_s = at.next_s
        if next_s is None:
            modelled, next_s = False, 0.0
        rows.append((full, next_s, at.decodes, at.name, at.free_blocks))
    if not modelled:
        return [(full, 0.0, decodes, name, free) for full, _, decodes, name, free in rows]
    return rows


def prefill_terms(row: PrefillRow) -> PrefillTerms:
    """The row with names."""
    total_s, name, remaining_s, queued_s, own_s, need, fetch_s, exposed_s, gone_s = row
    cached, tokens, _, lacked, restored = need
    return PrefillTerms(
        node=name,
        total_s=total_s,
        remaining_s=remaining_s,
        queued_s=queued_s,
        own_s=own_s,
        cached_tokens=cached,
        uncached_tokens=tokens,
        fetch_blocks=lacked,
        fetch_s=fetch_s,
        exposed_s=exposed_s,
        displaced_s=gone_s,
        restored_tokens=restored,
    )


def decode_terms(row: DecodeRow) -> DecodeTerms:
    """The row with names."""
    full, iteration_s, decodes, name, free = row
    return DecodeTerms(name, decodes, free, not full, iteration_s)


def _numbers(terms: PrefillTerms | DecodeTerms) -> dict[str, float]:
    names = terms.__struct_fields__
    return {name: float(getattr(terms, name)) for name in names if name != "node"}
