"""The execution-time models of the nodes: coefficients, their error bars, what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from evctl.core.times_status import NodeTimes
from evctl.tui.look import Look
from evctl.tui.views.predictions import percent
from evctl.tui.views.scene import safe, shortened

MEANING: Final = {
    "c0": "a prefill iteration",
    "c1": "a new token",
    "c2": "a query-key pair",
    "c3": "a restored token",
    "d0": "a decode iteration",
    "d1": "all experts",
    "d2": "a request",
    "d3": "a token of context",
}
SOURCES: Final = {
    "fitted": "fitted",
    "kept": "kept from an earlier life",
    "borrowed": "borrowed from nodes alike",
    "prior": "none yet: the node is learning",
}
CELLS: Final = 17
INDENT: Final = 4
MOST_ERROR: Final = 9.995
"""Of a term's value: more has no room in its cell."""


def model_rows(times: Sequence[NodeTimes], look: Look, width: int) -> list[Text]:
    """Each node with its terms under it, and last what the terms are."""
    rows = [row for model in times for row in _node(model, look, width)]
    told = [term for model in times for term in model.coefficients]
    if told:
        rows += [Text(""), *_legend([term for term in MEANING if term in told], look, width)]
    return rows


def summary(times: Sequence[NodeTimes], look: Look) -> Text:
    """How many nodes have a model, and how far off these are."""
    known = [model for model in times if model.coefficients]
    said = f"{len(known)} of {len(times)} nodes"
    residuals = [model.residual for model in known if model.residual is not None]
    if residuals:
        said += f", off by {percent(max(residuals))} at most"
    unknown = sorted({term for model in known for term in model.unidentified})
    text = Text("iteration times  ", look.colours.faint).append(said, look.colours.text)
    if unknown:
        text.append(f", {' '.join(unknown)} not told by the data", look.colours.warn)
    return text


def _node(model: NodeTimes, look: Look, width: int) -> list[Text]:
    said = SOURCES.get(model.source, safe(model.source, look))
    if any(model.windows):
        prefill, decode = model.windows
        said += f", {prefill} prefill and {decode} decode windows"
    if model.residual is not None:
        said += f", off by {percent(model.residual)}"
    style = look.colours.text if model.coefficients else look.colours.warn
    head = Text.assemble((f"{safe(model.node, look):<{INDENT - 1}} ", look.colours.strong))
    rows = [shortened(head.append(said, style), width, look)]
    cells = [_term(model, term, look) for term in model.coefficients]
    for kind in ("c", "d"):
        rows += _columns([cell for cell in cells if cell.plain.startswith(kind)], width)
    return rows


def _columns(cells: list[Text], width: int) -> list[Text]:
    """As many cells a line as there is room for."""
    each = max(1, (width - INDENT) // CELLS)
    rows = []
    for first in range(0, len(cells), each):
        row = Text(" " * INDENT)
        for cell in cells[first : first + each]:
            cell.append(" " * max(1, CELLS - len(cell)))
            row.append_text(cell)
        row.rstrip()
        rows.append(row)
    return rows


def _term(model: NodeTimes, term: str, look: Look) -> Text:
    """Its name, value and relative error; `?` for one that the data cannot tell."""
    text = Text(f"{safe(term, look)} ", look.colours.faint)
    if term in model.unidentified:
        return text.append("?", look.colours.warn)
    value_s, error_s = model.coefficients[term], model.errors.get(term)
    text.append(short(value_s), look.colours.strong)
    if error_s is not None and value_s > 0.0:
        off = percent(error_s / value_s) if error_s < MOST_ERROR * value_s else ">9x"
        text.append(f" {look.glyphs.plus_minus}{off}", look.colours.text)
    return text


def short(seconds: float) -> str:
    """Three digits with a unit: 11.0 ms, 12.3 us, 200 ns, 0.20 ns; 0 is 0."""
    if not seconds:
        return "0"
    scales = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
    unit, scale = next((each for each in scales if seconds >= 0.9995 * each[1]), scales[-1])
    value = seconds / scale
    if value < 0.01:
        return f"{value:.0e} {unit}"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def _legend(terms: list[str], look: Look, width: int) -> list[Text]:
    items = [f"{term} {MEANING[term]}" for term in terms]
    items.append(f"{look.glyphs.plus_minus} standard error")
    items.append("? the data cannot tell")
    rows: list[str] = []
    for item in items:
        if rows and len(rows[-1]) + 2 + len(item) <= width:
            rows[-1] += f", {item}"
        else:
            rows.append(item)
    return [Text(row, look.colours.faint) for row in rows]
