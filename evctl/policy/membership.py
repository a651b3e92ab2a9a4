"""Nodes: joining, reporting, falling silent, getting lost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from evctl.core.effects import Cancel, SetRole
from evctl.core.events import CoefficientsFitted, NodeJoined, NodeLost, NodeReport, Tick
from evctl.core.split import Role
from evctl.policy import ahead, candidates, transition, warmup
from evctl.policy.candidates import is_late, late_at_s
from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord, Stage
from evctl.policy.turn import Turn

_WHENCE: Final = {
    "kept": " from an earlier life: no warm-up",
    "borrowed": ", in part or whole, from nodes that are alike",
}


def on_joined(turn: Turn, event: NodeJoined) -> None:
    """A node said Hello. Whatever it was before has ended: with another boot_id its KV is gone,
    with the same one messages were lost, so that what we know of it cannot be trusted."""
    state = turn.state
    node = state.nodes.get(event.node)
    if node is None:
        node = state.nodes[event.node] = _newcomer(state, event.node)
        turn.do(SetRole(node.name, node.role.value, state.generation))
    if node.alive:
        again = "it restarted" if node.boot_id != event.boot_id else "its connection broke"
        _lose(turn, node, again)
    state.nodes_changed()
    node.alive, node.late = True, False
    node.boot_id = event.boot_id
    node.joins += 1
    state.directory.node_joined(node.name, node.life)
    node.l1_blocks = event.l1_blocks
    node.l2_blocks = event.l2_blocks
    node.block_tokens = event.block_tokens
    node.max_running = event.max_running
    node.seen_s = turn.now_s
    node.report = None
    node.settled_role = node.role
    turn.notice("info", f"joined as {node.role}", node.name)
    warmup.begin(turn, node)


def on_report(turn: Turn, event: NodeReport) -> None:
    """A heartbeat of the present life."""
    node = turn.state.nodes.get(event.node)
    if node is None or not is_present(node, event.boot_id):
        turn.state.tallies.ignored += 1
        return
    node.report, node.standing = event, None
    heard(turn, node)


def on_lost(turn: Turn, event: NodeLost) -> None:
    """A life ended; a report of one that ended before changes nothing."""
    node = turn.state.nodes.get(event.node)
    if node is None or not is_present(node, event.boot_id):
        turn.state.tallies.ignored += 1
        return
    _lose(turn, node, event.reason)


def on_fitted(turn: Turn, event: CoefficientsFitted) -> None:
    """Predict this node's times by its own model from now on."""
    node = turn.state.nodes.get(event.node)
    if node is None:
        turn.state.tallies.ignored += 1
        return
    node.coefficients, node.model_source = event.coefficients, event.source
    warmup.end(turn, node)
    whence = _WHENCE.get(event.source, "")
    unknown = ", ".join(event.coefficients.unidentified)
    lacks = f"; the data cannot tell {unknown}" if unknown else ""
    turn.notice("info", f"execution-time model {event.source}{whence}{lacks}", node.name)


def on_tick(turn: Turn, _: Tick) -> None:
    """Nodes become late by silence alone, branches are expected after a time, holds end."""
    for node in turn.state.nodes.values():
        if node.alive and not node.late and is_late(turn.state, node, turn.now_s):
            node.late = True
            turn.notice("warn", "late: no report for a while, no new work goes there", node.name)
    transition.on_tick(turn)
    turn.state.directory.mark_silent(turn.now_s)
    for effect, explanation in ahead.wake(turn.state, turn.now_s):
        turn.do(effect)
        turn.explanations.append(explanation)


def heard(turn: Turn, node: NodeRecord) -> None:
    """A sign of life."""
    candidates.heard(turn.state, node)
    node.seen_s = turn.now_s
    if node.late:
        node.late = False
        turn.state.late_from_s = None
        turn.notice("info", "reports again", node.name)


def is_present(node: NodeRecord, boot_id: str) -> bool:
    """Whether that life of the node is the present one."""
    return node.alive and node.boot_id == boot_id


def next_tick_s(state: ClusterState, now_s: float) -> float | None:
    """When the next node may become late, a branch is to be fetched for, a hold ends, or a slice
    of the planner's does; None while no node reports and nothing of the others can be."""
    if state.late_from_s is None or now_s >= state.late_from_s:
        # Later signs of life only move it on: until it comes, asking each node again is for
        # nothing, for a tick too early does no harm.
        state.late_from_s = min(_late_times_s(state), default=math.inf)
    times_s = [state.late_from_s] if state.late_from_s < math.inf else []
    slice_ends_s = state.planner.meter.end_s
    if times_s and slice_ends_s is not None:
        times_s.append(slice_ends_s)
    ahead_s = state.ahead.next_s()
    if ahead_s is not None:
        times_s.append(ahead_s)
    if state.held_until_s is not None:
        times_s.append(state.held_until_s)
    return min(times_s, default=None)


def _late_times_s(state: ClusterState) -> Iterator[float]:
    return (late_at_s(state, n) for n in state.nodes.values() if n.alive and not n.late)


def _lose(turn: Turn, node: NodeRecord, reason: str) -> None:
    """What the node owned and had begun ends; what it had not begun goes elsewhere. Requests that
    it only was to decode stay where they are prefilled, as their engine does too once it hears
    that its peer is gone."""
    state = turn.state
    state.nodes_changed()
    node.alive = node.late = False
    node.report = None
    state.directory.node_lost(node.name, node.life)
    ahead.forget_node(state, node.name)
    failed = moved = 0
    for record in state.requests_of(node):
        owner = record.decode_node if record.stage is Stage.DECODE else record.prefill_node
        if owner != node.name:
            turn.decode_in_place(record)
            continue
        if record.stage is Stage.WAITING and _place_again(turn, record, node.name):
            moved += 1
            continue
        failed += 1
        turn.fail(record, f"node {node.name} was lost: {reason}")
    went = f", {_requests(moved)} moved" if moved else ""
    turn.notice("fail", f"lost: {reason}; {_requests(failed)} failed{went}", node.name)


def _place_again(turn: Turn, record: RequestRecord, lost: str) -> bool:
    turn.unplace(record)
    if not turn.place(record, f"{lost} was lost"):
        return False
    turn.do(Cancel(record.request_id, (lost,)))  # it may only have been silent
    return True


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _newcomer(state: ClusterState, name: str) -> NodeRecord:
    """A node that the configuration did not name joins the smaller side."""
    split = state.split
    role = Role.PREFILL if split.prefill_nodes < split.decode_nodes else Role.DECODE
    return NodeRecord(name, role, role)
