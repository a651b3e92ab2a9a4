"""The execution-time models of the nodes: coefficients, their error bars, what is not known."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from evctl.core.brain_status import BrainStatus, ModelStatus, TermStatus
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


def model_rows(brain: BrainStatus, look: Look, width: int) -> list[Text]:
    """Each node with its terms under it, and last what the terms are."""
    rows = [row for model in brain.models for row in _node(model, look, width)]
    told = [term.term for model in brain.models for term in model.terms]
    if told:
        rows += [Text(""), *_legend([term for term in MEANING if term in told], look, width)]
    return rows


def summary(brain: BrainStatus, look: Look) -> Text:
    """How many nodes have a model, and how far off these are."""
    known = [model for model in brain.models if model.terms]
    said = f"{len(known)} of {len(brain.models)} nodes"
    residuals = [model.residual for model in known if model.residual is not None]
    if residuals:
        said += f", off by {percent(max(residuals))} at most"
    unknown = sorted({term for model in known for term in model.unidentified})
    text = Text("iteration times  ", look.colours.faint).append(said, look.colours.text)
    if unknown:
        text.append(f", {' '.join(unknown)} not told by the data", look.colours.warn)
    return text


def _node(model: ModelStatus, look: Look, width: int) -> list[Text]:
    said = SOURCES.get(model.source, safe(model.source, look))
    if any(model.windows):
        prefill, decode = model.windows
        said += f", {prefill} prefill and {decode} decode windows"
    if model.residual is not None:
        said += f", off by {percent(model.residual)}"
    style = look.colours.text if model.terms else look.colours.warn
    head = Text.assemble((f"{safe(model.node, look):<{INDENT - 1}} ", look.colours.strong))
    rows = [shortened(head.append(said, style), width, look)]
    cells = [_term(term, term.term in model.unidentified, look) for term in model.terms]
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
            cell.append(" " * (CELLS - len(cell)))
            row.append_text(cell)
        row.rstrip()
        rows.append(row)
    return rows


def _term(term: TermStatus, unidentified: bool, look: Look) -> Text:
    """Its name, value and relative error; `?` for one that the data cannot tell."""
    text = Text(f"{term.term} ", look.colours.faint)
    if unidentified:
        return text.append("?", look.colours.warn)
    text.append(short(term.value_s), look.colours.strong)
    if term.error is not None:
        text.append(f" {look.glyphs.plus_minus}{percent(term.error)}", look.colours.text)
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
