"""Changes of the split: which nodes move, and what becomes of the work on them.

An engine has no role, so a move sends nothing to it. The router sends other work there from now
on (the cordon); what has not begun is called back and routed again within its phase, and once none
is left the node has flipped; what runs finishes in place, and then the node has settled. Each
change is a Transition (core/transitions.py), followed by policy/moves.py.
"""

from __future__ import annotations

from typing import Final

from evctl.core.effects import Explanation, SetRole, SplitWritten
from evctl.core.errors import EvctlError, RefusedError
from evctl.core.events import Override, RecallDenied, Recalled
from evctl.core.split import Role, Split, parse_split
from evctl.core.status import Move, SplitWrite
from evctl.policy.cluster import ClusterState, NodeRecord, Stage, fit_split
from evctl.policy.moves import begin
from evctl.policy.relief import recall, relieve
from evctl.policy.turn import Turn

AUTO: Final = "auto"
HOLD: Final = "hold"
ADVISE: Final = "advise"
MODES: Final = (AUTO, HOLD, ADVISE)
EXPIRY: Final = "evctl"
"""Who writes when a hold ends by itself."""


def plan_moves(state: ClusterState, split: Split) -> tuple[Move, ...]:
    """The moves that lead to `split`, cheapest nodes first: those that are on their way from the
    role that they would get, then fewest running requests, then name.

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
    """Nodes of a role in the order that they would leave it: alive ones, those that have not
    settled in it, fewest running requests, then name."""
    return sorted(
        (node for node in state.nodes.values() if node.role is role),
        key=lambda node: (
            not node.alive,
            node.settled_role is role,
            state.running_on(node),
            node.name,
        ),
    )


def move(turn: Turn, split: Split, *, by: str, reason: str) -> tuple[Move, ...]:
    """Change the split by decision of the planner.

    It takes the place of a change that is under way, as a person's would: whoever decides waits
    for that as long as he wants to. Raises UsageError (EV-1103) when the split is for another
    number of nodes, RefusedError (EV-1359) unless the mode is auto: an override is an input of the
    planner, which never fights it.
    """
    state = turn.state
    if state.mode != AUTO:
        held = f", by {state.held_by}" if state.held_by else ""
        raise RefusedError(
            what=f"the split was not changed to {split}",
            why=f"the mode is {state.mode}{held}",
            next_step="release the split: evctl split auto",
            code="EV-1359",
        )
    moves = plan_moves(state, split)
    _write(turn, moves, by, reason)
    return moves


def on_override(turn: Turn, event: Override) -> None:
    """Take on a mode and a split. One that cannot be is refused in a Notice and changes nothing;
    the shell checks before, so that its caller hears of it."""
    state = turn.state
    moves: tuple[Move, ...] = ()
    why = _why_not(turn, event)
    if not why and event.mode == HOLD:
        try:
            moves = plan_moves(state, parse_split(event.split))
        except EvctlError as error:
            why = str(error)
    if why:
        turn.notice("warn", f"override by {event.by} ignored: {why}")
        return
    _set_mode(state, event)
    for_s = None if state.held_until_s is None else state.held_until_s - turn.now_s
    _write(turn, moves, event.by, event.reason, forced=event.forced, for_s=for_s)


def on_tick(turn: Turn) -> None:
    """End a hold whose time is over."""
    state = turn.state
    if state.held_until_s is None or turn.now_s < state.held_until_s:
        return
    whose = f" by {state.held_by}" if state.held_by else ""
    state.mode = state.mode_after
    _release(state)
    _write(turn, (), EXPIRY, f"the time of the hold{whose} is over")


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


def _why_not(turn: Turn, event: Override) -> str:
    """Why an override cannot be, before its split is looked at."""
    if event.mode not in MODES:
        return f"no mode {event.mode!r}"
    present = turn.state.generation
    if event.generation is not None and event.generation != present:
        return f"it was for generation {event.generation}, the present one is {present}"
    if event.mode == HOLD and event.until_s is not None and event.until_s <= turn.now_s:
        return "its time is over already"
    return ""


def _set_mode(state: ClusterState, event: Override) -> None:
    if event.mode != HOLD:
        state.mode = event.mode
        _release(state)
        return
    if state.mode != HOLD:
        state.mode_after = state.mode
    state.mode, state.held_by, state.hold_reason = HOLD, event.by, event.reason
    state.held_until_s = event.until_s


def _release(state: ClusterState) -> None:
    state.held_by = state.hold_reason = ""
    state.held_until_s = None


def _write(
    turn: Turn,
    moves: tuple[Move, ...],
    by: str,
    reason: str,
    *,
    forced: bool = False,
    for_s: float | None = None,
) -> None:
    """An accepted write: a new generation, and the moves that it makes."""
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
        for_s=for_s,
        change=state.transitions.last + 1 if moves else 0,
    )
    turn.do(SplitWritten(write))
    if not moves:
        return
    turn.explanations.append(explain(state, moves))
    turn.effects.extend(begin(state, write, turn.now_s))
    for one in moves:
        _change_role(turn, state.nodes[one.node], Role(one.after))
    if any(one.after == Role.PREFILL for one in moves):
        relieve(turn)


def _change_role(turn: Turn, node: NodeRecord, role: Role) -> None:
    node.role = role
    turn.state.nodes_changed()
    turn.do(SetRole(node.name, role.value, turn.state.generation))
    turn.state.directory.role_changed(node.name, role.phase)
    if role is not Role.DECODE:
        return
    for record in turn.state.prefills_of(node):
        recall(turn, node, record)


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
