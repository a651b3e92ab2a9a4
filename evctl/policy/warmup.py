"""Warm-up: a node without a model works for both phases, so that one can be fitted (section 4)."""

from __future__ import annotations

from evctl.core.effects import WarmUp
from evctl.policy.cluster import NodeRecord
from evctl.policy.turn import Turn

PATIENCE = 5.0
"""Times warm_up_s after which a node goes without a model: what it did tells too little."""
LONGEST_GAP_S = 5.0
"""Of a pause between iterations that counts: a cluster that nobody uses learns nothing, and must
not give up for that."""


def begin(turn: Turn, node: NodeRecord) -> None:
    """A node joined. One that has a model needs no warm-up."""
    node.warm_s, node.warm_seen_s = 0.0, None
    node.warming = turn.state.config.warm_up_s > 0.0 and node.coefficients is None
    if node.warming:
        turn.state.nodes_changed()
        turn.do(WarmUp(node.name, on=True))


def on_sample(turn: Turn, node: NodeRecord) -> None:
    """Its first iteration begins the time, and warm-up ends some time, model or not. The fit
    stays open: it may still come from what the node does in its role."""
    if not node.warming:
        return
    since_s = 0.0 if node.warm_seen_s is None else turn.now_s - node.warm_seen_s
    node.warm_s, node.warm_seen_s = node.warm_s + min(since_s, LONGEST_GAP_S), turn.now_s
    if node.warm_s > PATIENCE * turn.state.config.warm_up_s:
        turn.notice("warn", "warm-up ends without a model of its times", node.name)
        end(turn, node)


def end(turn: Turn, node: NodeRecord) -> None:
    """From now on the node works in its role."""
    if node.warming:
        node.warming = False
        turn.state.nodes_changed()
        turn.do(WarmUp(node.name, on=False))
        if not any(one.warming for one in turn.state.nodes.values()):
            # What was measured while nodes served both phases is true of no split.
            turn.state.planner.restart(turn.now_s)
