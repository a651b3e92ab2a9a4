"""Warm-up: a node without a model works for both phases, so that one can be fitted (section 4)."""

from __future__ import annotations

from evctl.core.effects import WarmUp
from evctl.policy.cluster import NodeRecord
from evctl.policy.turn import Turn

PATIENCE = 5.0
"""Times warm_up_s after which a node goes without a model: what it did tells too little."""


def begin(turn: Turn, node: NodeRecord) -> None:
    """A node joined. One that has a model needs no warm-up."""
    node.warm_since_s = None
    node.warming = turn.state.config.warm_up_s > 0.0 and node.coefficients is None
    if node.warming:
        turn.state.nodes_changed()
        turn.do(WarmUp(node.name, on=True))


def on_sample(turn: Turn, node: NodeRecord) -> None:
    """Its first iteration begins the time, and warm-up ends some time, model or not. The fit
    stays open: it may still come from what the node does in its role."""
    if not node.warming:
        return
    if node.warm_since_s is None:
        node.warm_since_s = turn.now_s
    if turn.now_s - node.warm_since_s > PATIENCE * turn.state.config.warm_up_s:
        turn.notice("warn", "warm-up ends without a model of its times", node.name)
        end(turn, node)


def end(turn: Turn, node: NodeRecord) -> None:
    """From now on the node works in its role."""
    if node.warming:
        node.warming = False
        turn.state.nodes_changed()
        turn.do(WarmUp(node.name, on=False))
