"""The planner's panel: who decides, what was decided last and on what, what is under way."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from evctl.core.brain_status import BrainStatus
from evctl.core.planning import PlanDecision
from evctl.core.status import ClusterStatus
from evctl.core.transitions import NodeMove
from evctl.tui.look import Look
from evctl.tui.views import candidates
from evctl.tui.views.figures import age, duration
from evctl.tui.views.models import summary
from evctl.tui.views.predictions import prediction_line
from evctl.tui.views.scene import Scene, lines, safe, shortened, time_of_day, waiting

SAID: Final = {
    "move": "moves",
    "stay": "stays",
    "advise": "would move",
    "blind": "decides nothing",
    "idle": "has nothing to weigh",
    "cooldown": "waits out the cooldown",
    "settling": "waits for a change",
    "revert": "takes its move back",
    "failed": "could not decide",
}
"""What the planner does, by the verdict of its decision."""
NOT_TOLD = "this control plane does not tell"
SEPARATOR = "   "
ROOMY = 8
"""From so many rows on a verdict may have two of them."""
LEAST_TABLE = 3
"""Rows of a table of candidates: its head, the present split, and one beside it."""


def planner_panel(scene: Scene, width: int, height: int) -> Text:
    """As much of it as there is room for, the verdict first and always."""
    status, look = scene.model.status, scene.value_look
    if status is None:
        return waiting(look)
    brain = status.brain
    if brain is None:
        return Text(NOT_TOLD, look.colours.faint)
    verdict = wrapped(verdict_line(status, brain, scene), width, 1 if height < ROOMY else 2, look)
    rows = [head_line(status, brain, scene, width), *verdict]
    rows += change_lines(scene, 1 if height < LEAST_TABLE + 3 else 2)
    rows = verdict[:1] if height < 2 else rows[:height]
    room = height - len(rows)
    if brain.decision is not None and brain.decision.candidates and room:
        rows += _weighed(brain, brain.decision, look, width, room)
    last = [summary(status.times, look)] if any(m.coefficients for m in status.times) else []
    last += prediction_line(status.predictions, look)
    most = 2 if len(rows) + 2 * len(last) <= height else 1
    rows = [*rows, *(row for one in last for row in wrapped(one, width, most, look))][:height]
    return lines(*(shortened(row, width, look) for row in rows))


def _weighed(
    brain: BrainStatus, decision: PlanDecision, look: Look, width: int, room: int
) -> list[Text]:
    if room < LEAST_TABLE:
        return [_best(decision, look)]
    everything = len(decision.candidates)
    hidden = everything + 1 > room or bool(brain.left_out)
    shown = decision.foremost(room - 1 - hidden) if room > LEAST_TABLE else decision.foremost(2)
    rows = candidates.table(decision, shown, look, width)
    left = everything - len(shown) + brain.left_out
    if left and len(rows) < room:
        rows.append(Text(f"  and {left} more", look.colours.faint))
    return rows


def _best(decision: PlanDecision, look: Look) -> Text:
    """The chosen candidate, or else what promises most, in one line."""
    others = [each for each in decision.foremost(2) if each.verdict != "current"]
    if not others:
        return Text("there is no other split", look.colours.faint)
    best = others[0]
    return Text.assemble(
        (f"{candidates.mark(best, decision, look)} ", look.colours.switching),
        (safe(best.split, look), look.colours.strong),
        (f"  {candidates.throughput(best)} req/s", look.colours.text),
        (f"  gain {candidates.gain(best, named=best.measure == 'e2e')}", look.colours.text),
        (f"  {look.glyphs.plus_minus} {candidates.error(best)}", look.colours.text),
        (f"  {safe(best.verdict, look)}", look.colours.text),
    )


def wrapped(text: Text, width: int, most: int, look: Look) -> list[Text]:
    """Whole words on at most so many lines, the last of which is cut where there are more."""
    rows = [Text()]
    for word in text.split(" "):
        row = rows[-1]
        if not row or len(row) + 1 + len(word) <= width or len(rows) == most:
            rows[-1] = Text.assemble(row, " ", word) if row else word
        else:
            rows.append(Text.assemble("  ", word))
    return [shortened(row, width, look) for row in rows]


# ------------------------------------------------------------------------------- its lines


def head_line(status: ClusterStatus, brain: BrainStatus, scene: Scene, width: int) -> Text:
    """Mode, who holds it and until when; when the next decision comes. What has no room goes,
    the last first."""
    look = scene.value_look
    parts = [Text(status.mode.upper(), look.colours.strong).append(_holder(status, scene))]
    parts.append(Text(next_words(brain, scene), look.colours.text))
    if brain.slices_seen < brain.slices:
        seen = f"{brain.slices_seen} of {brain.slices} slices"
        parts.append(Text(seen, look.colours.faint))
    if cooldown := cooldown_words(brain, scene):
        parts.append(Text(cooldown, look.colours.warn))
    line = parts[0]
    for part in parts[1:]:
        if len(line) + len(SEPARATOR) + len(part) <= width:
            line = Text.assemble(line, SEPARATOR, part)
    return line


def _holder(status: ClusterStatus, scene: Scene) -> Text:
    look = scene.value_look
    if status.mode != "hold":
        return Text()
    text = Text(f" {status.target_split}", look.colours.strong)
    if status.held_by:
        text.append(f" by {safe(status.held_by, look).partition('@')[0]}", look.colours.text)
    if status.held_until_s is not None:
        until = time_of_day(status.held_until_s, scene.zone)
        text.append(f" until {until}, then {safe(status.mode_after, look)}", look.colours.warn)
    return text


def verdict_line(status: ClusterStatus, brain: BrainStatus, scene: Scene) -> Text:
    """The last decision in words; before the first, how far it is from one."""
    look, decision = scene.value_look, brain.decision
    if decision is None:
        return Text(learning_words(status, brain), look.colours.text)
    said = SAID.get(decision.verdict, safe(decision.verdict, look))
    style = {
        "move": look.colours.switching,
        "advise": look.colours.switching,
        "stay": look.colours.ok,
        "blind": look.colours.warn,
        "revert": look.colours.warn,
        "failed": look.colours.fail,
    }.get(decision.verdict, look.colours.text)
    return Text.assemble(
        (f"{age(since(decision.time_s, brain, scene))} ago: ", look.colours.faint),
        (said, style),
        (f": {safe(decision.why, look)}", look.colours.text),
    )


def learning_words(status: ClusterStatus, brain: BrainStatus) -> str:
    known, nodes = sum(model.source != "prior" for model in status.times), len(status.times)
    if known < nodes:
        return f"learning iteration times: {known} of {nodes} nodes"
    return f"no decision yet: {brain.slices_seen} of {brain.slices} slices seen"


def change_lines(scene: Scene, most: int) -> list[Text]:
    """A line for each node that changes its role."""
    status, look = scene.model.status, scene.value_look
    change = None if status is None else status.transition
    if status is None or change is None:
        return []
    draining = {} if status.brain is None else status.brain.draining
    under_way = [move for move in change.moves if not move.outcome]
    rows = [_moving(move, draining.get(move.node), scene) for move in under_way[:most]]
    if len(under_way) > most:
        rows[-1].append(f"   and {len(under_way) - most} more", look.colours.faint)
    return rows


def _moving(move: NodeMove, left: int | None, scene: Scene) -> Text:
    look = scene.value_look
    flip_s = move.to_flip_s
    said, status = "cordoned", scene.model.status
    if status is not None and status.brain is not None:
        said += f" {age(since(move.cordoned_s, status.brain, scene))} ago"
    if flip_s is not None:
        said += f", flipped after {duration(flip_s)}"
    if left is not None:
        said += f", draining {left} request{'' if left == 1 else 's'}"
    roles = f"{move.before}{look.glyphs.into}{move.after}"
    return Text.assemble(
        (f"{look.glyphs.switching} {safe(move.node, look)} {roles}", look.colours.switching),
        (f"  {said}", look.colours.text),
    )


# ----------------------------------------------------------------------------------- times


def since(moment_s: float, brain: BrainStatus, scene: Scene) -> float:
    """Seconds from a moment on the control plane's clock to what is shown, 0 at least."""
    return max(0.0, -until(moment_s, brain, scene))


def until(moment_s: float, brain: BrainStatus, scene: Scene) -> float:
    """Seconds from what is shown to a moment on the control plane's clock; it counts down
    between two statuses too."""
    return moment_s - brain.now_s - max(0.0, scene.shown_s - scene.model.status_s)


def next_words(brain: BrainStatus, scene: Scene) -> str:
    if brain.due_s is None:
        return "no window yet"
    left_s = until(brain.due_s, brain, scene)
    return f"next decision in {clock(left_s)}" if left_s > 0 else "next decision is due"


def cooldown_words(brain: BrainStatus, scene: Scene) -> str:
    if brain.cooldown_ends_s is None:
        return ""
    left_s = until(brain.cooldown_ends_s, brain, scene)
    return f"cooldown {clock(left_s)}" if left_s > 0 else ""


def clock(seconds: float) -> str:
    """3:12, 1:02:05."""
    whole = int(seconds + 0.999)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
