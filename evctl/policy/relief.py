"""A node that begins to prefill takes its part of what waits elsewhere.

Without that, only what arrives later would come to it: a change of the split that somebody makes
because a queue is long would leave that queue as it is. Those that waited least are called back,
and are placed again by the router, which may well send one where it was, where its KV is.
"""

from __future__ import annotations

from typing import Final

from evctl.core.effects import Recall
from evctl.core.split import Phase
from evctl.policy.candidates import is_late, serves
from evctl.policy.cluster import NodeRecord, RequestRecord, Stage
from evctl.policy.turn import Turn

KEEPS_PLACES: Final = "session"
"""Routing that sends a session where it was, whatever waits there."""


def recall(turn: Turn, node: NodeRecord, record: RequestRecord) -> None:
    """Ask for a request back that has not begun, unless that was done."""
    if record.stage is Stage.WAITING and not record.recalling:
        record.recalling = True
        turn.do(Recall(record.request_id, node.name))


def relieve(turn: Turn) -> None:
    """Call back what waits on nodes beyond their even share of all that is to be computed, in
    tokens; a node that served prefill only while no other did has no share. Each keeps what it
    got first, and of what is beyond up to half a request. Who waited longest is placed first."""
    state = turn.state
    if state.config.routing == KEEPS_PLACES:
        return
    nodes = [n for n in state.nodes.values() if n.alive and not is_late(state, n, turn.now_s)]
    serving = {node.name for node in nodes if serves(node, Phase.PREFILL)}
    fair = sum(_tokens(node) for node in nodes) / max(1, len(serving))
    for node in nodes:
        for record in reversed(_beyond(node, fair if node.name in serving else 0.0)):
            recall(turn, node, record)


def _tokens(node: NodeRecord) -> int:
    return node.load.waiting_tokens + node.load.running_tokens


def _beyond(node: NodeRecord, fair: float) -> list[RequestRecord]:
    """What waits there beyond so many tokens, who came last first."""
    waiting = [r for r in node.load.prefills.values() if r.stage is Stage.WAITING]
    beyond = _tokens(node) - fair - sum(r.uncached_tokens for r in waiting if r.recalling)
    found = []
    for record in reversed(waiting):
        if record.recalling or record.appended or not record.uncached_tokens:
            continue
        if 2 * beyond <= record.uncached_tokens:
            break
        beyond -= record.uncached_tokens
        found.append(record)
    return found
