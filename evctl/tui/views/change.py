"""The modal of a split change: verb and object, forecast, diff, what it touches, the same as a
command."""

from __future__ import annotations

from rich.text import Text

from evctl.core.split import Role
from evctl.core.status import Move, SplitChange
from evctl.tui.change import COOLDOWN_HINT, Draft, Failure, Stage, cli_line, obstacle
from evctl.tui.look import Look
from evctl.tui.views.figures import number_of
from evctl.tui.views.forecast import forecast_rows
from evctl.tui.views.scene import Scene, cut, lines, safe, time_of_day

MOST_MOVES = 4
"""With more, a low terminal would lose the buttons."""


def change_title(draft: Draft, scene: Scene) -> str:
    status = scene.live.status
    name = "" if status is None else safe(status.cluster, scene.look)
    verb = (
        "Hold the split" if status and draft.split == status.target_split else "Change the split"
    )
    return f"{verb} of {name}"


def change_text(draft: Draft, scene: Scene, width: int) -> Text:
    """All between the field and the buttons."""
    look, status = scene.look, scene.live.status
    if status is None:
        return Text("not connected yet", look.colours.warn)
    goal = draft.split or "?"
    rows = [
        Text.assemble(
            ("now ", look.colours.faint),
            (status.split, look.colours.strong),
            (f"  {look.glyphs.arrow}  ", look.colours.faint),
            (goal, look.colours.switching if draft.split else look.colours.faint),
            (f"   and hold it; generation {status.generation}", look.colours.faint),
        ),
        *forecast_rows(draft.split, scene, width),
        Text(""),
        *_outcome(draft, scene, width),
        Text(""),
        same_as(cli_line(draft, scene.ui.flag), look),
    ]
    blocked = obstacle(draft, scene.live, scene.now_s, scene.ui.protected)
    waiting = blocked == "planning" or draft.failure is not None
    if blocked and not waiting:
        rows.append(Text(cut(safe(blocked, look), width, look), look.colours.warn))
    elif draft.stage is Stage.SENDING:
        rows.append(Text(f"sending{look.glyphs.cut}", look.colours.warn))
    else:
        rows.append(_hint(draft, look))
    return lines(*rows)


def _hint(draft: Draft, look: Look) -> Text:
    said = "enter reviews, esc leaves"
    if draft.stage is Stage.REVIEW:
        said = "y applies, e edits, esc leaves"
    return Text(said, look.colours.faint)


def same_as(command: str, look: Look) -> Text:
    return Text.assemble(("same as  ", look.colours.faint), (command, look.colours.key))


def _outcome(draft: Draft, scene: Scene, width: int) -> list[Text]:
    look = scene.look
    if draft.failure is not None:
        return failure_rows(draft.failure, look, width)
    if draft.plan is not None:
        return [*_diff(draft.plan, look, width), *_cooldown(draft, draft.plan, scene)]
    said = f"planning{look.glyphs.cut}" if draft.split else ""
    return [Text(said, look.colours.faint)]


def _cooldown(draft: Draft, plan: SplitChange, scene: Scene) -> list[Text]:
    if plan.refused_until_s is None:
        return []
    until = time_of_day(plan.refused_until_s, scene.zone)
    rule = f"(cooldown {plan.cooldown_s:.0f} s after the last move)"
    if plan.settling:
        until, rule = f"{plan.cooldown_s:.0f} s after", "the change under way has settled"
    if draft.force:
        said = f"--force passes the rule that holds until {until} {rule}"
    else:
        said = f"refused until {until} {rule} unless --force"
    return [Text(said, scene.look.colours.warn)]


def failure_rows(failure: Failure, look: Look, width: int) -> list[Text]:
    said = [("", failure.what), ("why:  ", failure.why), ("next: ", failure.next_step)]
    rows = [
        Text.assemble((head, look.colours.faint), cut(safe(body, look), width - len(head), look))
        for head, body in said
        if body
    ]
    rows[0].stylize(look.colours.fail)
    if failure.refused:
        rows.append(Text(COOLDOWN_HINT, look.colours.warn))
    return rows


def _diff(plan: SplitChange, look: Look, width: int) -> list[Text]:
    if plan.unchanged:
        return [Text("it is held so already: nothing to change", look.colours.ok)]
    if not plan.moves:
        return [Text("no node changes role", look.colours.ok)]
    rows = [_move(move, look) for move in plan.moves[:MOST_MOVES]]
    if len(plan.moves) > MOST_MOVES:
        rows.append(Text(f"and {len(plan.moves) - MOST_MOVES} more", look.colours.faint))
    running = sum(move.running for move in plan.moves)
    queued = sum(move.queued for move in plan.moves)
    said = (
        f"{number_of(len(plan.moves), 'node')} changes role: " if len(plan.moves) == 1 else ""
    ) or f"{len(plan.moves)} nodes change role: "
    ends = "finishes" if running == 1 else "finish"
    if plan.moves[0].before == Role.DECODE:
        coming = f" and {queued} to come" if queued else ""
        ends = "finishes" if running + queued == 1 else "finish"
        said += f"{number_of(running, 'running request')}{coming} {ends} in place"
    else:
        said += f"{number_of(running, 'running request')} {ends} in place, "
        said += f"{queued} queued {'moves' if queued == 1 else 'move'}"
    rows.append(Text(cut(said, width, look), look.colours.text))
    return rows


def _queued(move: Move) -> str:
    """A node that decoded keeps what is being prefilled for it; what waited for prefill moves."""
    return "to come" if move.before == Role.DECODE else "queued"


def _move(move: Move, look: Look) -> Text:
    (before, before_style), (after, after_style) = look.role(move.before), look.role(move.after)
    return Text.assemble(
        (f"  {safe(move.node, look):<14} ", look.colours.strong),
        (f"{before} {move.before}", before_style),
        (f" {look.glyphs.arrow} ", look.colours.faint),
        (f"{after} {move.after}", after_style),
        (f"   {move.running} running, {move.queued} {_queued(move)}", look.colours.faint),
    )
