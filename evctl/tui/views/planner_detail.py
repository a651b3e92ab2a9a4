"""Everything of the planner: its rule of the moment, what it weighed, what it computes with."""

from __future__ import annotations

from rich.text import Text

from evctl.core.brain_status import BrainStatus
from evctl.core.planning import PlanDecision
from evctl.core.status import ClusterStatus
from evctl.tui.look import Look
from evctl.tui.views.candidates import table
from evctl.tui.views.models import model_rows
from evctl.tui.views.planner import (
    NOT_TOLD,
    change_lines,
    clock,
    head_line,
    until,
    verdict_line,
    wrapped,
)
from evctl.tui.views.predictions import prediction_rows
from evctl.tui.views.scene import Scene, lines, safe, shortened, waiting

MANY = 1_000
LEAST_BESIDE = 96
"""Cells; with fewer the reason of a verdict stands under it."""


def planner_detail(scene: Scene, width: int) -> Text:
    """As long as it takes; the screen scrolls."""
    status, look = scene.model.status, scene.value_look
    if status is None:
        return waiting(look)
    brain = status.brain
    if brain is None:
        return Text(NOT_TOLD, look.colours.faint)
    rows = [
        head_line(status, brain, scene, width),
        *_told_once(brain, scene, width),
        *wrapped(verdict_line(status, brain, scene), width, MANY, look),
        *(shortened(row, width, look) for row in change_lines(scene, MANY)),
    ]
    if brain.decision is not None and brain.decision.candidates:
        rows += [Text(""), *_candidates(status, brain, brain.decision, look, width)]
    if errors := prediction_rows(status.predictions, look):
        rows += [Text(""), *errors]
    rows += [Text(""), Text("iteration times", look.colours.strong)]
    return lines(*rows, *model_rows(status.times, look, width))


def _told_once(brain: BrainStatus, scene: Scene, width: int) -> list[Text]:
    """What is rarely so."""
    look, rows = scene.value_look, []
    if brain.trial:
        said = f"{brain.trial} is on probation: it is taken back if waits are not as forecast"
        rows.append(Text(said, look.colours.warn))
    if brain.barred and brain.barred_until_s is not None:
        left_s = until(brain.barred_until_s, brain, scene)
        said = f"{brain.barred} was taken back, and is not chosen for {clock(max(0.0, left_s))}"
        rows.append(Text(said, look.colours.warn))
    return [shortened(row, width, look) for row in rows]


def _candidates(
    status: ClusterStatus, brain: BrainStatus, decision: PlanDecision, look: Look, width: int
) -> list[Text]:
    """Each with its reason under it, where there is no room for that beside it."""
    title = Text(f"decision {decision.number}", look.colours.strong)
    title.append(f", weighed against {decision.current}", look.colours.faint)
    if decision.current != status.target_split:
        title.append(f"; the split is {status.target_split} by now", look.colours.warn)
    beside = width >= LEAST_BESIDE
    head, *rows = table(decision, decision.candidates, look, width, reasons=beside)
    told = [title, head]
    for candidate, row in zip(decision.candidates, rows, strict=True):
        told.append(row)
        why = safe(candidate.why, look)
        if why not in row.plain and candidate.verdict != "current":
            told.append(shortened(Text(f"    {why}", look.colours.faint), width, look))
    if brain.left_out:
        told.append(Text(f"  and {brain.left_out} more, which promise less", look.colours.faint))
    return told
