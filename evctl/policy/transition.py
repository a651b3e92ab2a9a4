"""Changes of the split: which nodes move, and what becomes of the work on them.

An engine has no role, so a move sends nothing to it. The router sends other work there from now
on; what has not begun is called back and routed again within its phase; what runs finishes.
"""

from __future__ import annotations

from evctl.core.effects import Explanation, Recall, SetRole, SplitWritten
from evctl.core.errors import UsageError
from evctl.core.events import Override, RecallDenied, Recalled
from evctl.core.split import Role, Split, parse_split
from evctl.core.status import Move, SplitWrite
from evctl.policy.cluster import ClusterState, NodeRecord, Stage, fit_split
from evctl.policy.turn import Turn

MODES = ("hold", "advise")


def plan_moves(state: ClusterState, split: Split) -> tuple[Move, ...]:
    """The moves that lead to `split`, cheapest nodes first: fewest running requests, then name.

    Raises UsageError (EV-1103) when the split is for another number of nodes.
    """
    fit_split(split, len(state.nodes))
    surplus = state.split.prefill_nodes - split.prefill_nodes
    before, after = (Role.PREFILL, Role.DECODE) if surplus > 0 else (Role.DECODE, Role.PREFILL)
    movable = cheapest_first(state, before)
    chosen = movable[: abs(surplus)]
    if _leaves_a_phase_dead(state, chosen, after):
        # Moving lost nodes changes nothing now, but keeps an alive one on either side.
        chosen = sorted(movable, key=lambda node: node.alive)[: abs(surplus)]
    return tuple(_move(state, node, after) for node in chosen)


def cheapest_first(state: ClusterState, role: Role) -> list[NodeRecord]:
    """Nodes of a role in the order that they would leave it: alive ones, fewest running requests,
    then name."""
    return sorted(
        (node for node in state.nodes.values() if node.role is role),
        key=lambda node: (not node.alive, state.running_on(node), node.name),
    )


def move(turn: Turn, split: Split, *, by: str, reason: str) -> tuple[Move, ...]:
    """Change the split within the present mode. Raises UsageError (EV-1103) when it is for
    another number of nodes."""
    moves = plan_moves(turn.state, split)
    _write(turn, moves, by=by, reason=reason)
    return moves


def on_override(turn: Turn, event: Override) -> None:
    """Take on a mode and a split. One that cannot be is refused in a Notice and changes nothing;
    the shell checks before, so that its caller hears of it."""
    state = turn.state
    try:
        moves = plan_moves(state, parse_split(event.split)) if event.mode == "hold" else ()
    except UsageError as error:
        turn.notice("warn", f"override by {event.by} ignored: {error}")
        return
    if event.mode not in MODES:
        turn.notice("warn", f"override by {event.by} ignored: no mode {event.mode!r}")
        return
    state.mode = event.mode
    held = event.mode == "hold"
    state.held_by, state.hold_reason = (event.by, event.reason) if held else ("", "")
    _write(turn, moves, by=event.by, reason=event.reason, forced=event.forced)


def on_recalled(turn: Turn, node: str, fact: Recalled) -> None:
    """A request came back unbegun: it is routed again, within its phase."""
    record = turn.state.requests.get(fact.request_id)
    if record is None or record.prefill_node != node or record.stage is not Stage.WAITING:
        turn.state.tallies.ignored += 1
        return
    turn.unplace(record)
    if not turn.place(record, "recalled"):
        turn.fail(record, "no node is left to run it", cancel=False)


def on_recall_denied(turn: Turn, node: str, fact: RecallDenied) -> None:
    """It had begun: it finishes in place."""
    record = turn.state.requests.get(fact.request_id)
    if record is not None and record.prefill_node == node:
        record.recalling = False


def state_after(state: ClusterState, moves: tuple[Move, ...]) -> str:
    """The split once `moves` are made."""
    gained = sum(1 if move.after == Role.PREFILL else -1 for move in moves)
    now = state.split
    return str(Split(now.prefill_nodes + gained, now.decode_nodes - gained))


def explain(state: ClusterState, moves: tuple[Move, ...]) -> Explanation:
    """Why these nodes move: each one's cost beside that of its peers."""
    terms = {
        node.name: {
            "moves": float(any(move.node == node.name for move in moves)),
            "running": float(state.running_on(node)),
            "queued": float(state.queued_on(node)),
        }
        for node in state.nodes.values()
        if node.role == moves[0].before
    }
    return Explanation("split", f"{state.split} -> {state_after(state, moves)}", terms)


def _write(
    turn: Turn, moves: tuple[Move, ...], *, by: str, reason: str, forced: bool = False
) -> None:
    """Tell a write to split and mode, and make its moves."""
    state = turn.state
    state.generation += 1
    write = SplitWrite(
        mode=state.mode,
        before=str(state.split),
        after=state_after(state, moves),
        by=by,
        reason=reason,
        generation=state.generation,
        moves=moves,
        forced=forced,
    )
    turn.do(SplitWritten(write))
    if moves:
        turn.explanations.append(explain(state, moves))
    for one in moves:
        _change_role(turn, state.nodes[one.node], Role(one.after))


def _change_role(turn: Turn, node: NodeRecord, role: Role) -> None:
    node.role = role
    turn.state.nodes_changed()
    turn.do(SetRole(node.name, role.value, turn.state.generation))
    turn.state.directory.role_changed(node.name, role.phase)
    if role is not Role.DECODE:
        return
    for record in turn.state.prefills_of(node):
        if record.stage is Stage.WAITING and not record.recalling:
            record.recalling = True
            turn.do(Recall(record.request_id, node.name))


def _leaves_a_phase_dead(state: ClusterState, chosen: list[NodeRecord], after: Role) -> bool:
    names = {node.name for node in chosen}
    alive = [node for node in state.nodes.values() if node.alive]
    roles = {after if node.name in names else node.role for node in alive}
    return len(alive) > 1 and len(roles) < len(Role)


def _move(state: ClusterState, node: NodeRecord, after: Role) -> Move:
    return Move(
        node=node.name,
        before=node.role.value,
        after=after.value,
        running=state.running_on(node),
        queued=state.queued_on(node),
    )
