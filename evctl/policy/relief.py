"""A node that begins to prefill takes its part of what waits elsewhere.

Without that, only what arrives later would come to it: a change of the split that somebody makes
because a queue is long would leave that queue as it is. Who waited least is called back first, and
is placed again by the router, which may well send it where it was, where its KV is.
"""

from __future__ import annotations

from typing import Final

from evctl.core.effects import Recall
from evctl.core.split import Role
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
    """Call back what waits on prefill nodes beyond their even share of all that is to be computed,
    in tokens. Each keeps what it got first, and of what is beyond up to half a request."""
    state = turn.state
    if state.config.routing == KEEPS_PLACES:
        return
    nodes = [n for n in state.nodes.values() if n.alive and n.role is Role.PREFILL]
    tokens = {node.name: node.load.waiting_tokens + node.load.running_tokens for node in nodes}
    fair = sum(tokens.values()) / max(1, len(nodes))
    for node in nodes:
        waiting = [r for r in node.load.prefills.values() if r.stage is Stage.WAITING]
        called = sum(record.uncached_tokens for record in waiting if record.recalling)
        beyond = tokens[node.name] - called - fair
        for record in reversed(waiting):
            if record.recalling or record.appended or not record.uncached_tokens:
                continue
            if 2 * beyond <= record.uncached_tokens:
                break
            beyond -= record.uncached_tokens
            recall(turn, node, record)
