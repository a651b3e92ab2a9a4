"""What the planner weighed: a line for each split, columns as far as there is room."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from rich.text import Text

from evctl.core.planning import Candidate, PlanDecision
from evctl.tui.look import Look
from evctl.tui.views.figures import ABSENT, rate, seconds
from evctl.tui.views.scene import safe, shortened

LEAST_WHY = 20
"""Cells; with fewer the reason of a verdict is not begun."""
GAP = 2
MOST_VERDICT = 8
MOST_RPS = 99_999.5


class Column(msgspec.Struct, frozen=True):
    """width: in cells. drop: 0 stays, else the largest goes first."""

    title: str
    width: int
    value: Callable[[Candidate], str]
    drop: int = 0


def table(
    decision: PlanDecision,
    candidates: tuple[Candidate, ...],
    look: Look,
    width: int,
    *,
    reasons: bool = True,
) -> list[Text]:
    """A head and a line each; the present split and the chosen one are marked, and say so.
    reasons: say why behind a verdict where there is room."""
    columns = _columns(candidates, look, width)
    splits = max([5, *(len(each.split) for each in candidates)])
    used = 2 + splits + sum(column.width + GAP for column in columns)
    head = Text(f"  {'split':<{splits}}", look.colours.faint)
    for column in columns:
        head.append(f"{'':{GAP}}{column.title:>{column.width}}")
    head.append("  verdict")
    rows = [head]
    for each in candidates:
        row = Text(f"{mark(each, decision, look)} ", look.colours.switching)
        row.append(f"{safe(each.split, look):<{splits}}", look.colours.strong)
        for column in columns:
            row.append(f"{'':{GAP}}{column.value(each):>{column.width}}", look.colours.text)
        row.append("  ").append_text(_verdict(each, look, width - used - GAP if reasons else 0))
        rows.append(row)
    return [shortened(row, width, look) for row in rows]


def _columns(candidates: tuple[Candidate, ...], look: Look, width: int) -> list[Column]:
    by_e2e = any(each.measure == "e2e" for each in candidates)
    columns = [
        Column("req/s", 6, lambda each: _known(each, throughput(each)), 3),
        Column("TTFT s", 6, lambda each: _known(each, seconds(each.forecast.ttft_s)), 5),
        Column("E2E s", 6, lambda each: _known(each, seconds(each.forecast.e2e_s)), 4),
        Column("gain", 11 if by_e2e else 7, lambda each: gain(each, named=by_e2e)),
        Column(f"{look.glyphs.plus_minus}SE", 6, error, 1),
    ]
    longest = max([5, *(len(each.split) for each in candidates)])
    verdict = MOST_VERDICT + GAP
    while columns and 2 + longest + verdict + sum(c.width + GAP for c in columns) > width:
        columns.remove(max(columns, key=lambda column: column.drop))
    return columns


def mark(candidate: Candidate, decision: PlanDecision, look: Look) -> str:
    if candidate.verdict == "current":
        return look.glyphs.live
    return look.glyphs.into if decision.chosen == candidate.split else " "


def gain(candidate: Candidate, *, named: bool = False) -> str:
    """+12.0%; named: with what it is of where that is not the throughput."""
    if candidate.verdict in ("current", "bounded"):
        return ABSENT
    unit = ("  E2E" if candidate.measure == "e2e" else "     ") if named else ""
    value = 100 * candidate.gain
    return (f"{value:+.1f}%" if value < 999.5 else ">999%") + unit


def error(candidate: Candidate) -> str:
    """Standard error of the gain."""
    if not candidate.error or candidate.verdict in ("current", "bounded"):
        return ABSENT
    value = 100 * candidate.error
    return f"{value:.1f}%" if value < 999.5 else ">999%"


def throughput(candidate: Candidate) -> str:
    """Requests a second; a phase that seems to take no time serves any number."""
    value = candidate.forecast.throughput_rps
    return rate(value) if value < MOST_RPS else ">99999"


def _known(candidate: Candidate, figure: str) -> str:
    return ABSENT if candidate.verdict == "bounded" else figure


def _verdict(candidate: Candidate, look: Look, room: int) -> Text:
    colours = look.colours
    style = {
        "current": colours.text,
        "chosen": colours.switching,
        "passed": colours.ok,
        "unsure": colours.text,
        "guarded": colours.warn,
    }.get(candidate.verdict, colours.faint)
    word = safe(candidate.verdict, look)
    text = Text(word, style)
    if room - len(word) >= LEAST_WHY and candidate.verdict != "current":
        gap = max(GAP, MOST_VERDICT + GAP - len(word))
        text.append(" " * gap + safe(candidate.why, look), colours.faint)
    return text
