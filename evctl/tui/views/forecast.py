"""What the planner expects of a split that a person has typed, beside the present one."""

from __future__ import annotations

from rich.text import Text

from evctl.core.planning import Candidate, Forecast, PlanDecision
from evctl.core.status import ClusterStatus
from evctl.tui.look import Look
from evctl.tui.views.candidates import error, gain, throughput
from evctl.tui.views.figures import age, seconds
from evctl.tui.views.planner import learning_words, since, wrapped
from evctl.tui.views.scene import Scene, safe, shortened

TITLE = "forecast"


def forecast_rows(split: str, scene: Scene, width: int) -> list[Text]:
    """One line for the split aimed at, one for `split` where it is another; or why there are
    none. Always at least one, two at most."""
    status, look = scene.live.status, scene.look
    if status is None or not split:
        return []
    brain = status.brain
    decision = None if brain is None else brain.decision
    known = {} if decision is None else _by_split(decision)
    if brain is None or decision is None or split not in known:
        said = f"{TITLE} of {split}: {_unknown(status, split)}"
        return wrapped(Text(safe(said, look), look.colours.faint), width, 2, look)
    both = dict.fromkeys((status.target_split, split))
    rows = [_row(each, known.get(each), decision, status.target_split, look) for each in both]
    title = Text(f"{TITLE}  ", look.colours.faint)
    before = Text(" " * len(title))
    rows = [title.append_text(rows[0]), *(Text.assemble(before, row) for row in rows[1:])]
    ago = f"  {age(since(decision.time_s, brain, scene))} ago"
    if len(rows[-1]) + len(ago) <= width:
        rows[-1].append(ago, look.colours.faint)
    return [shortened(row, width, look) for row in rows]


def _by_split(decision: PlanDecision) -> dict[str, Candidate]:
    return {each.split: each for each in decision.candidates if each.verdict != "bounded"}


def _row(
    split: str, candidate: Candidate | None, decision: PlanDecision, target: str, look: Look
) -> Text:
    text = Text(f"{safe(split, look):<6} ", look.colours.strong)
    if candidate is None:
        return text.append("not known", look.colours.faint)
    text.append(_figures(candidate, candidate.forecast), look.colours.text)
    if candidate.verdict == "current":
        return text
    told = f"  {gain(candidate, named=candidate.measure == 'e2e')}"
    if candidate.error:
        told += f" {look.glyphs.plus_minus}{error(candidate)}"
    if decision.current != target:  # both are of the split that was in force then
        return text.append(f"{told} over {decision.current}", look.colours.text)
    text.append(told, look.colours.text)
    return text.append(f", {safe(candidate.verdict, look)}", look.colours.switching)


def _figures(candidate: Candidate, forecast: Forecast) -> str:
    waits = (("TTFT", forecast.ttft_s), ("E2E", forecast.e2e_s))
    told = [f"{name} {seconds(value)}" for name, value in waits if value is not None]
    return ", ".join([f"{throughput(candidate)} req/s", *told]) + (" s" if told else "")


def _unknown(status: ClusterStatus, split: str) -> str:
    """Why there is none."""
    brain = status.brain
    if brain is None or brain.decision is None:
        return "not known yet" + ("" if brain is None else f", {learning_words(status, brain)}")
    decision = brain.decision
    found = next((each for each in decision.candidates if each.split == split), None)
    if found is not None:
        return f"none, {found.why}"
    if not decision.candidates:
        return f"not known, the last decision weighed nothing: {decision.why}"
    return "not known, the last decision leaves it out"
