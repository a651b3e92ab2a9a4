"""The reducer: one event in, what to do out. The live shell and the simulator both call it.

No await, no callback, no clock, no randomness; ties break by id. The same events give the same
effects, byte for byte, which is what replay of a journal proves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from evctl.core.events import (
    BranchSignalled,
    CoefficientsFitted,
    DispatchFailed,
    Event,
    FetchAheadEnded,
    FetchEnded,
    FirstToken,
    FromNode,
    IterationSample,
    KvEvicted,
    KvHeld,
    KvStored,
    NodeJoined,
    NodeLost,
    NodeReport,
    Override,
    PrefillStarted,
    RecallDenied,
    Recalled,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Tick,
    TransferDone,
    TransferFailed,
)
from evctl.policy import ahead, branches, membership, planning, requests, transition
from evctl.policy.audit import check
from evctl.policy.cluster import (
    ClusterState,
    NodeRecord,
    PolicyConfig,
    RequestRecord,
    Stage,
)
from evctl.policy.turn import StepResult, Turn

__all__ = [
    "ClusterState",
    "NodeRecord",
    "PolicyConfig",
    "RequestRecord",
    "Stage",
    "StepResult",
    "check",
    "step",
]


def step(state: ClusterState, event: Event, now_s: float) -> StepResult:
    """Take in an event: changes `state` and returns what to do about it.

    now_s: seconds on any clock that does not go back. Call it again with a Tick at
    `next_tick_s` at the latest. An event about a request or a life that is over is ignored and
    counted, so that late and repeated facts do no harm.
    """
    turn = Turn(state, now_s)
    planning.advance(turn)
    if isinstance(event, FromNode):
        _from_node(turn, event)
    else:
        _HANDLERS[type(event)](turn, event)
    turn.settle()
    return StepResult(
        tuple(turn.effects),
        tuple(turn.explanations),
        membership.next_tick_s(state, now_s),
        turn.failure,
    )


def _from_node(turn: Turn, event: FromNode) -> None:
    """A fact counts if it comes from the present life of its node."""
    node = turn.state.nodes.get(event.node)
    if node is None or not membership.is_present(node, event.boot_id):
        turn.state.tallies.ignored += 1
        return
    membership.heard(turn, node)
    _FACT_HANDLERS[type(event.fact)](turn, node, event.fact)


def _on_stored(turn: Turn, node: NodeRecord, fact: KvStored) -> None:
    turn.state.directory.stored(
        node.name, node.life, fact.tier, fact.parent, fact.keys, fact.request_id
    )


def _on_held(turn: Turn, node: NodeRecord, fact: KvHeld) -> None:
    directory = turn.state.directory
    if fact.from_root:
        directory.add_root(fact.root_key)
    directory.held(node.name, node.life, fact.tier, fact.root_key, fact.keys)
    # Not told that nobody refers to it: whose it was is forgotten, and may come back.
    turn.tell(delta for delta in directory.deltas() if delta.block_class)


def _on_evicted(turn: Turn, node: NodeRecord, fact: KvEvicted) -> None:
    turn.state.directory.evicted(node.name, node.life, fact.tier, fact.keys)


_HANDLERS: Final[dict[type, Callable[[Turn, Any], None]]] = {
    RequestArrived: requests.on_arrived,
    RequestCancelled: requests.on_cancelled,
    BranchSignalled: branches.on_signalled,
    DispatchFailed: requests.on_dispatch_failed,
    NodeJoined: membership.on_joined,
    NodeReport: membership.on_report,
    NodeLost: membership.on_lost,
    Override: transition.on_override,
    CoefficientsFitted: membership.on_fitted,
    Tick: membership.on_tick,
}

_FACT_HANDLERS: Final[dict[type, Callable[[Turn, NodeRecord, Any], None]]] = {
    PrefillStarted: requests.on_prefill_started,
    FirstToken: requests.on_first_token,
    RequestDone: requests.on_done,
    KvStored: _on_stored,
    KvHeld: _on_held,
    KvEvicted: _on_evicted,
    TransferDone: requests.on_transfer_done,
    TransferFailed: requests.on_transfer_failed,
    IterationSample: requests.on_sample,
    Recalled: lambda turn, node, fact: transition.on_recalled(turn, node.name, fact),
    RecallDenied: lambda turn, node, fact: transition.on_recall_denied(turn, node.name, fact),
    FetchEnded: requests.on_fetch_ended,
    FetchAheadEnded: lambda turn, node, fact: ahead.on_ended(turn.state, node, fact),
}
