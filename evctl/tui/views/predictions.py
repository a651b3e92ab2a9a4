"""How far off predictions were."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from evctl.core.predictions import PREDICTED, ErrorStatus, PredictionStatus
from evctl.tui.look import Look
from evctl.tui.views.figures import ABSENT, count

NAMES: Final = {"ttft": "TTFT"}


def prediction_line(predictions: PredictionStatus | None, look: Look) -> list[Text]:
    """Medians of what there was, as one line; none before the first."""
    told = [f"{name} {percent(found.median)}" for name, found in _known(predictions)]
    if not told:
        return []
    return [
        Text("predictions off by ", look.colours.faint).append(", ".join(told), look.colours.text)
    ]


def prediction_rows(predictions: PredictionStatus | None, look: Look) -> list[Text]:
    """A line for each kind, under a head; nothing before there is one."""
    known = dict(_known(predictions))
    if not known:
        return []
    head = Text(f"{'predictions':<14}", look.colours.strong)
    head.append(f"{'median off':>10}{'90% within':>12}{'bias':>8}{'of':>8}", look.colours.faint)
    rows = [head]
    for what in PREDICTED:
        name = NAMES.get(what, what)
        row = Text(f"  {name:<12}", look.colours.text)
        if found := known.get(name):
            bias = f"{min(9.99, found.bias):+.0%}"
            row.append(f"{percent(found.median):>10}{percent(found.p90):>12}", look.colours.strong)
            row.append(f"{bias:>8}{count(found.count):>8}", look.colours.text)
        else:
            row.append(f"{ABSENT:>10}{ABSENT:>12}{ABSENT:>8}{ABSENT:>8}", look.colours.faint)
        rows.append(row)
    return rows


def _known(predictions: PredictionStatus | None) -> list[tuple[str, ErrorStatus]]:
    if predictions is None:
        return []
    found = [(NAMES.get(what, what), getattr(predictions, what)) for what in PREDICTED]
    return [(name, errors) for name, errors in found if errors is not None]


def percent(error: float) -> str:
    """A relative error, which may be far above 1."""
    return f"{error:.0%}" if error < 9.995 else ">999%"
