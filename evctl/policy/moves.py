"""The change of the split that is under way, followed node by node."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from evctl.core.effects import MoveEnded, TransitionEnded
from evctl.core.split import Phase, Role
from evctl.core.status import SplitWrite
from evctl.core.transitions import LOST, SETTLED, SUPERSEDED, NodeMove, Transition
from evctl.policy.changes import OpenMove, OpenTransition, Transitions
from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord, Stage


def begin(
    state: ClusterState, write: SplitWrite, now_s: float
) -> Iterator[MoveEnded | TransitionEnded]:
    """Open the record of an accepted change; call it before any role is changed. One that is open
    ends as superseded; nodes that go on to where it sent them go on as part of the new one."""
    transitions = state.transitions
    transitions.last += 1
    number = transitions.last
    moved = {move.node for move in write.moves}
    carried: list[OpenMove] = []
    if transitions.open is not None:
        unfinished = [part for part in transitions.open.parts if not part.move.outcome]
        carried = [
            OpenMove(part.move, part.life, dict(part.left))
            for part in unfinished
            if part.move.node not in moved
        ]
        yield from _supersede(transitions, number, now_s)
    head = Transition(
        number, write.generation, write.by, write.reason, write.before, write.after, now_s, ()
    )
    parts = [_open(state, state.nodes[move.node], Role(move.after), now_s) for move in write.moves]
    transitions.open = OpenTransition(head, [*carried, *parts])


def follow(
    state: ClusterState, now_s: float, dropped: Collection[str]
) -> Iterator[MoveEnded | TransitionEnded]:
    """After every event: note what left the moving nodes and what has settled. dropped: requests
    that this event ended without success."""
    transitions = state.transitions
    change = transitions.open
    if change is None:
        return
    for part in change.parts:
        if not part.move.outcome and _advance(state, part, now_s, dropped):
            yield MoveEnded(change.head.number, part.move)
    outcomes = {part.move.outcome for part in change.parts}
    if "" not in outcomes:
        transitions.open = None
        yield _end(transitions, change, LOST if LOST in outcomes else SETTLED, now_s)


def check(state: ClusterState) -> list[str]:
    """Violations of what holds between two steps."""
    change, problems = state.transitions.open, []
    parts = change.parts if change is not None else []
    under_way = {part.move.node for part in parts if not part.move.outcome}
    if change is not None and not under_way:
        problems.append(f"change {change.head.number} is open, and no node moves")
    for node in state.nodes.values():
        moving = node.alive and node.role is not node.settled_role
        if moving and node.name not in under_way:
            problems.append(f"{node.name} moves and belongs to no change")
    return problems


def old_work(state: ClusterState, node: NodeRecord, phase: Phase) -> list[RequestRecord]:
    """Requests of a phase that the node must still serve."""
    return state.prefills_of(node) if phase is Phase.PREFILL else state.decodes_of(node)


def _supersede(
    transitions: Transitions, number: int, now_s: float
) -> Iterator[MoveEnded | TransitionEnded]:
    change = transitions.open
    assert change is not None
    for part in change.parts:
        if not part.move.outcome:
            part.move = msgspec.structs.replace(part.move, outcome=SUPERSEDED)
            yield MoveEnded(change.head.number, part.move)
    change.head = msgspec.structs.replace(change.head, superseded_by=number)
    transitions.open = None
    yield _end(transitions, change, SUPERSEDED, now_s)


def _end(
    transitions: Transitions, change: OpenTransition, outcome: str, now_s: float
) -> TransitionEnded:
    ended = msgspec.structs.replace(change.so_far(), outcome=outcome, ended_s=now_s)
    transitions.ended.append(ended)
    return TransitionEnded(ended)


def _open(state: ClusterState, node: NodeRecord, after: Role, now_s: float) -> OpenMove:
    records = old_work(state, node, node.role.phase)
    running = sum(_runs_there(record, node) for record in records)
    move = NodeMove(
        node=node.name,
        before=node.role.value,
        after=after.value,
        cordoned_s=now_s,
        running=running,
        queued=len(records) - running,
    )
    left = {record.request_id: None for record in records}
    return OpenMove(move, node.life if node.alive else "", left)


def _runs_there(record: RequestRecord, node: NodeRecord) -> bool:
    if record.stage is Stage.DECODE:
        return record.decode_node == node.name
    return record.stage is Stage.PREFILL and record.prefill_node == node.name


def _advance(state: ClusterState, part: OpenMove, now_s: float, dropped: Collection[str]) -> bool:
    """Note what this event changed for one node; whether its part is over."""
    move, node = part.move, state.nodes[part.move.node]
    if part.life and (not node.alive or node.life != part.life):
        part.move = msgspec.structs.replace(move, outcome=LOST)
        part.left.clear()
        return True
    if part.seen == node.load.changes and node.settled_role is not node.role:
        return False  # as most events leave it
    part.seen = node.load.changes
    phase = Phase(move.before)
    records = old_work(state, node, phase) if node.alive else []
    finished, requeued = _gone(state, part.left, records, phase, dropped)
    part.left = {record.request_id: None for record in records}
    flipped_s, settled_s, outcome = move.flipped_s, None, ""
    waits = phase is Phase.PREFILL and any(r.stage is Stage.WAITING for r in records)
    if flipped_s is None and not waits:
        flipped_s = now_s
    if node.settled_role is node.role:
        flipped_s = now_s if flipped_s is None else flipped_s
        settled_s, outcome = now_s, SETTLED
    elif (finished, requeued, flipped_s) == (0, 0, move.flipped_s):
        return False
    part.move = msgspec.structs.replace(
        move,
        flipped_s=flipped_s,
        settled_s=settled_s,
        finished=move.finished + finished,
        requeued=move.requeued + requeued,
        outcome=outcome,
    )
    return bool(outcome)


def _gone(
    state: ClusterState,
    left: Collection[str],
    records: Sequence[RequestRecord],
    phase: Phase,
    dropped: Collection[str],
) -> tuple[int, int]:
    """How many of those that were left finished there, and how many went elsewhere."""
    there = {record.request_id for record in records}
    finished = requeued = 0
    for request_id in left:
        if request_id in there or request_id in dropped:
            continue
        record = state.requests.get(request_id)
        if record is not None and (phase is Phase.DECODE or record.awaits_prefill):
            requeued += 1
        else:
            finished += 1
    return finished, requeued
