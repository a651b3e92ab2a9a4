"""The rows of `evctl bench planner`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from msgspec import UNSET

from evctl.bench.measurement import Measurement, Row, machine
from evctl.bench.planner.cases import BEST, CASES, SLICES, WINDOW_S, Case
from evctl.bench.planner.run import PATIENCE, RULES, Plan, Played, Truths, all_played

FALSE_MOVES: Final = 0.05
RIGHT_MOVES: Final = 0.90
SURE_CASE: Final = "15 %"
LEAST_WINDOWS: Final = 20
"""A goal of 5 % is neither met nor missed in fewer."""
HALF: Final = 0.5
"""A move is right if it wins half of what the best one would."""
PAPER: Final = "paper"
JUDGED: Final = "plus"
"""The sound test with the forecast that it goes with. On Theta of Eq. 5 (rule "sound") it is as
careful about a figure that is off where the phases balance: shown, without a goal."""


def measure(plan: Plan, progress: Callable[[int, int], None]) -> Measurement:
    """Play, and hold what the rules did against what is true."""
    began_s, load = time.monotonic(), os.getloadavg()[0]
    played, truths = all_played(plan, progress)
    counts = sum(plan.windows_of(one.case) for one in played)
    return Measurement(
        subject="planner",
        peer="paper rule",
        input=f"{counts} windows of {SLICES} slices of {WINDOW_S / SLICES:g} s, seed {plan.seed}",
        repeats=1,
        wall_s=round(time.monotonic() - began_s, 1),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        machine=machine(),
        rows=judged(rows(played, truths), plan.windows),
    )


def judged(found: list[Row], windows: int) -> list[Row]:
    """With the verdicts of the goals left out where so many windows of a case cannot tell."""
    if windows >= LEAST_WINDOWS:
        return found
    return [msgspec.structs.replace(row, ok=UNSET) for row in found]


def rows(played: list[Played], truths: Truths) -> list[Row]:
    """False and right moves of each rule beside the paper's; then what is true of the cases."""
    found: list[Row] = []
    likes = sorted({one.autocorrelation for one in played})
    for rule in RULES:
        if rule == PAPER:
            continue
        for like in likes:
            under = [one for one in played if one.autocorrelation == like]
            found.append(_false_row(rule, like, [o for o in under if o.case.name == BEST]))
        for name in dict.fromkeys(case.name for case in CASES if case.name != BEST):
            for like in likes:
                under = [o for o in played if o.autocorrelation == like and o.case.name == name]
                found += _right_rows(rule, like, name, under, truths)
    return found + _truth_rows(truths) + _likeness_rows(played, likes)


def _false_row(rule: str, like: float, under: list[Played]) -> Row:
    """Of windows at whose end the rule moved away from the best split."""

    def share(name: str) -> float:
        return _share(bool(s) for one in under for s in (*one.first[name], *one.later[name]))

    value = share(rule)
    row = Row(
        name=f"{rule}: false moves per window, autocorrelation {like:g}",
        value=value,
        unit="%",
        peer=share(PAPER),
    )
    if rule != JUDGED:
        return row
    goal = f"at most {FALSE_MOVES:.0%}"
    return msgspec.structs.replace(row, ok=value <= 100 * FALSE_MOVES, goal=goal)


def _right_rows(
    rule: str, like: float, name: str, under: list[Played], truths: Truths
) -> list[Row]:
    def share(which: str, by: str) -> float:
        return _share(
            _is_right(split, one.case, truths)
            for one in under
            for split in getattr(one, which)[by]
        )

    value = share("first", rule)
    first = Row(
        name=f"{rule}: right moves in one window, {name} better, autocorrelation {like:g}",
        value=value,
        unit="%",
        peer=share("first", PAPER),
    )
    if name == SURE_CASE and rule == JUDGED:
        goal = f"at least {RIGHT_MOVES:.0%}"
        return [msgspec.structs.replace(first, ok=value >= 100 * RIGHT_MOVES, goal=goal)]
    later = Row(
        name=f"{rule}: right moves in {PATIENCE} windows, {name} better, autocorrelation {like:g}",
        value=share("within", rule),
        unit="%",
        peer=share("within", PAPER),
    )
    return [first, later]


def _is_right(split: str, case: Case, truths: Truths) -> bool:
    known = truths[case]
    now = known[case.split]
    most = max(known.values()) - now
    return bool(split) and known.get(split, 0.0) - now >= HALF * most


def _truth_rows(truths: Truths) -> list[Row]:
    found = []
    for case, known in truths.items():
        others = {split: rps for split, rps in known.items() if split != case.split}
        best = max(others, key=others.__getitem__)
        found.append(
            Row(
                name=f"true gain of {best} over {case.split} ({case.name})",
                value=100 * (others[best] / known[case.split] - 1.0),
                unit="%",
            )
        )
    return found


def _likeness_rows(played: list[Played], likes: list[float]) -> list[Row]:
    """What the meter sees of the autocorrelation: the tails' noise dilutes it."""
    return [
        Row(
            name=f"correlation of neighbouring slices' demand, autocorrelation {like:g}",
            value=_mean(one.likeness for one in played if one.autocorrelation == like),
            unit="",
        )
        for like in likes
    ]


def _share(hits: Iterable[bool]) -> float:
    return 100 * _mean(float(hit) for hit in hits)


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
