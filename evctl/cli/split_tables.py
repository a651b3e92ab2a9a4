"""Splits, their changes and their history, for people and programs."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from evctl.cli.moments import ago, iso, left
from evctl.cli.output import table
from evctl.core.planning import Forecast
from evctl.core.split import Role
from evctl.core.status import (
    ClusterStatus,
    EventRecord,
    Move,
    SplitChange,
    SplitWrite,
    length_of,
)
from evctl.core.transitions import Transition

MOST_MOVES: Final = 4
LEAST_WHY: Final = 24
"""Characters of a reason that stands in a column of its own."""
STATUS_NAMES: Final = (
    "split", "target_split", "mode", "generation", "held_by", "hold_reason", "mode_after",
)  # fmt: skip
HISTORY_HEAD: Final = (
    "WHEN", "GEN", "SPLIT", "MODE", "NODES", "FLIP", "WHOLE", "OUTCOME", "BY", "WHY",
)  # fmt: skip


def status_line(now: ClusterStatus) -> str:
    """The split, its mode, and who holds it until when."""
    moving = now.split != now.target_split
    held = f" by {now.held_by}" if now.held_by else ""
    if now.held_until_s is not None:
        held += f" for another {left(now.held_until_s)}, then {now.mode_after}"
    split = f"{now.split} -> {now.target_split}" if moving else now.split
    return f"{split}, {now.mode}{held}, generation {now.generation}"


def status_values(now: ClusterStatus) -> dict[str, Any]:
    until = None if now.held_until_s is None else iso(now.held_until_s)
    change = None if now.transition is None else change_values(now.transition)
    return {
        "cluster": now.cluster,
        **{name: getattr(now, name) for name in STATUS_NAMES},
        "held_until": until,
        "transition": change,
    }


# ---------------------------------------------------------------- a change to come


def until(planned: SplitChange) -> str:
    """When a change that is refused now would be taken."""
    assert planned.refused_until_s is not None
    if planned.settling:
        return f"{planned.cooldown_s:.0f} s after the change that is under way has settled"
    when = time.strftime("%H:%M:%S", time.localtime(planned.refused_until_s))
    return f"{when} (cooldown: {planned.cooldown_s:.0f} s after the last change has settled)"


def difference(change: SplitChange) -> str:
    if not change.moves:
        return f"{change.after}: no node moves"
    lines = [f"{change.before} -> {change.after}"]
    lines += [
        f"  {one.node}: {one.before} -> {one.after}; {_left_behind(one)}" for one in change.moves
    ]
    return "\n".join(lines)


def _left_behind(move: Move) -> str:
    """What becomes of the work there. A node that decoded keeps what is being prefilled for it."""
    if move.before == Role.DECODE and move.queued:
        ends = "finishes" if move.running + move.queued == 1 else "finish"
        return f"{move.running} running and {move.queued} to come {ends} there"
    running = f"{move.running} running {'finishes' if move.running == 1 else 'finish'} there"
    if move.before == Role.DECODE:
        return running
    return f"{running}, {move.queued} queued {'moves' if move.queued == 1 else 'move'}"


class Outlook(msgspec.Struct, frozen=True):
    """What is expected of the split in force and of another; unknown: why nothing is."""

    now: Forecast | None = None
    then: Forecast | None = None
    unknown: str = ""


def outlook_text(outlook: Outlook) -> str:
    now, then = outlook.now, outlook.then
    if now is None or then is None:
        return f"forecast: not known yet: {outlook.unknown}"
    pairs = [f"{now.throughput_rps:.2f} -> {then.throughput_rps:.2f} req/s"]
    for name, before_s, after_s in (
        ("TTFT", now.ttft_s, then.ttft_s),
        ("E2E", now.e2e_s, then.e2e_s),
    ):
        if before_s is not None and after_s is not None:
            pairs.append(f"{name} {before_s:.2f} -> {after_s:.2f} s")
    return f"forecast: {', '.join(pairs)}"


# ---------------------------------------------------------------- history


class Entry(msgspec.Struct, frozen=True):
    """A write, and the change of the split that its moves made, once that has ended."""

    event: EventRecord
    write: SplitWrite
    change: Transition | None


def entries(events: Iterable[EventRecord]) -> list[Entry]:
    """Writes, oldest first. Generations tell which change is whose: numbers could be of a
    cluster that was made anew since."""
    known = list(events)
    ended = {one.transition.generation: one.transition for one in known if one.transition}
    return [
        Entry(one, one.write, ended.get(one.write.generation) if one.write.moves else None)
        for one in known
        if one.write is not None
    ]


def history_table(found: list[Entry], width: int | None) -> str:
    """A line each; where there is no room for that, nodes, BY and WHY stand below."""
    rows = [_history_row(one) for one in found]
    lines = table(HISTORY_HEAD[:-1], [row[:-1] for row in rows], right=(1, 5, 6)).splitlines()
    if width is None or max(map(len, lines)) + len("  ") + LEAST_WHY <= width:
        return table(HISTORY_HEAD, rows, right=(1, 5, 6), width=width)
    shown = (0, 1, 2, 3, 5, 6, 7)
    head, *lines = table(
        [HISTORY_HEAD[i] for i in shown],
        [[row[i] for i in shown] for row in rows],
        right=(1, 4, 5),
    ).splitlines()
    indent = " " * head.index("SPLIT")
    told = [head]
    for row, line in zip(rows, lines, strict=True):
        nodes, by, why = row[4], row[8], row[9]
        below = (
            (f"{nodes}; " if nodes != "-" else "")
            + f"by {by}"
            + (f": {why}" if why != "-" else "")
        )
        told.append(line)
        told += textwrap.wrap(
            below, max(width, 2 * len(indent)), initial_indent=indent, subsequent_indent=indent
        )
    return "\n".join(told)


def history_values(found: list[Entry]) -> list[dict[str, Any]]:
    return [
        {
            "time": iso(one.event.time_s),
            **msgspec.to_builtins(one.write),
            "transition": None if one.change is None else change_values(one.change),
        }
        for one in found
    ]


def change_values(change: Transition) -> dict[str, Any]:
    """Spans instead of moments, which are on a clock that nobody else has."""
    moves = [
        {
            "node": move.node,
            "before": move.before,
            "after": move.after,
            "running": move.running,
            "queued": move.queued,
            "finished": move.finished,
            "requeued": move.requeued,
            "outcome": move.outcome,
            "flip_s": _rounded(move.to_flip_s),
            "whole_s": _rounded(move.whole_s),
        }
        for move in change.moves
    ]
    return {
        "number": change.number,
        "generation": change.generation,
        "before": change.before,
        "after": change.after,
        "outcome": change.outcome,
        "superseded_by": change.superseded_by or None,
        "flip_s": _rounded(_longest(move.to_flip_s for move in change.moves)),
        "whole_s": _rounded(_longest(move.whole_s for move in change.moves)),
        "moves": moves,
    }


def _history_row(one: Entry) -> tuple[str, ...]:
    write, change = one.write, one.change
    moves = ", ".join(f"{m.node} {m.before}>{m.after}" for m in write.moves[:MOST_MOVES])
    if len(write.moves) > MOST_MOVES:
        moves += f" +{len(write.moves) - MOST_MOVES}"
    flips = [move.to_flip_s for move in change.moves] if change else []
    wholes = [move.whole_s for move in change.moves] if change else []
    lasts = f" for {length_of(write.for_s)}" if write.for_s is not None else ""
    return (
        ago(one.event.time_s),
        str(write.generation),
        f"{write.before} -> {write.after}" if write.moves else write.after,
        f"{write.mode}{lasts}",
        moves or "-",
        _span(_longest(flips)),
        _span(_longest(wholes)),
        change.outcome if change else "-",
        write.by,
        " ".join(filter(None, (write.reason, "(--force)" if write.forced else ""))) or "-",
    )


def _longest(spans: Iterable[float | None]) -> float | None:
    return max((span for span in spans if span is not None), default=None)


def _rounded(span: float | None) -> float | None:
    """To microseconds."""
    return None if span is None else round(span, 6)


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
