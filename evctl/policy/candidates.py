"""Who may get work: found once, and kept until a node changes or may have become late."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evctl.core.split import Phase
from evctl.policy.cluster import ClusterState, NodeRecord

MOST_ASKED = 256


class Candidates(msgspec.Struct, frozen=True):
    """Nodes that may get work, kept until a node changes or one may have become late.

    until_s: not to be used from then on. late: alive ones that were late then; a sign of life of
    one of them ends this too. usable: alive and on time, or alive where all are late. prefill,
    decode: of those, the ones of that role, or all where none has it. peers: names of those that
    others may fetch from. prefilling, fetching:
    names of those for prefill, and of those that fetch. asked: sets of nodes ->
    peers among them.
    """

    until_s: float
    late: frozenset[str]
    usable: tuple[NodeRecord, ...]
    prefill: tuple[NodeRecord, ...]
    decode: tuple[NodeRecord, ...]
    peers: frozenset[str]
    prefilling: frozenset[str]
    fetching: frozenset[str]
    least_block_tokens: int
    asked: dict[frozenset[str], frozenset[str]]

    def of_peers(self, nodes: frozenset[str]) -> frozenset[str]:
        """Those of the nodes that may be asked; the same sets come again and again."""
        found = self.asked.get(nodes)
        if found is None:
            if len(self.asked) >= MOST_ASKED:
                self.asked.clear()
            found = self.asked[nodes] = nodes & self.peers
        return found


def can_serve(state: ClusterState) -> bool:
    """Whether any node is alive."""
    return any(node.alive for node in state.nodes.values())


def candidates(
    state: ClusterState, phase: Phase, now_s: float, exclude: tuple[str, ...] = ()
) -> Sequence[NodeRecord]:
    """Nodes that may get work of `phase`: alive, not late, of that role.

    If the phase has none such, any alive node that is not late serves it; a late node gets
    work only when all are late, for then lateness says more about this machine than of nodes.
    """
    if exclude:
        found = find(state, now_s, exclude)
    else:
        found = known(state, now_s)
    return found.prefill if phase is Phase.PREFILL else found.decode


def known(state: ClusterState, now_s: float) -> Candidates:
    """All that may get work now."""
    found = state.eligible
    if found is None or now_s >= found.until_s:
        found = state.eligible = find(state, now_s)
    return found


def find(state: ClusterState, now_s: float, exclude: tuple[str, ...] = ()) -> Candidates:
    """The same from the nodes themselves, without those named."""
    alive = [n for n in state.nodes.values() if n.alive and n.name not in exclude]
    on_time = [n for n in alive if not is_late(state, n, now_s)]
    usable = tuple(on_time or alive)
    by_phase = {phase: tuple(n for n in usable if serves(n, phase)) or usable for phase in Phase}
    return Candidates(
        until_s=min((late_at_s(state, n) for n in on_time), default=float("inf")),
        late=frozenset(n.name for n in alive if is_late(state, n, now_s)),
        usable=usable,
        prefill=by_phase[Phase.PREFILL],
        decode=by_phase[Phase.DECODE],
        peers=frozenset(n.name for n in on_time if n.l2_blocks),
        prefilling=frozenset(n.name for n in by_phase[Phase.PREFILL]),
        fetching=frozenset(n.name for n in by_phase[Phase.PREFILL] if n.l2_blocks),
        least_block_tokens=min((n.block_tokens for n in usable), default=1),
        asked={},
    )


def serves(node: NodeRecord, phase: Phase) -> bool:
    """Whether the node gets work of the phase while others do too: by its role, or because it is
    in warm-up, unless it changes its role then: its old work must end. Whoever changes what this
    depends on calls ClusterState.nodes_changed."""
    return node.role.phase is phase or (node.warming and node.role is node.settled_role)


def late_at_s(state: ClusterState, node: NodeRecord) -> float:
    """When the node's silence makes it late."""
    return node.seen_s + state.config.node_late_after_s


def is_late(state: ClusterState, node: NodeRecord, now_s: float) -> bool:
    """Whether the node has been silent too long to get new work."""
    return now_s >= late_at_s(state, node)


def heard(state: ClusterState, node: NodeRecord) -> None:
    """The node is not late any more, if it was."""
    if state.eligible is not None and node.name in state.eligible.late:
        state.eligible = None
