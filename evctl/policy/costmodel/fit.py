"""Coefficients of Eq. 1 and 2 from the windows of one node (paper section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from evctl.core.costs import TERMS, Coefficients
from evctl.core.split import Phase
from evctl.policy.costmodel.regression import Array, Identification, Solution, solve
from evctl.policy.costmodel.windows import WindowRow

PREFILL_TERMS = ("c0", "c1", "c2", "c3")
LEAST_WINDOWS = 3
LEAST_ITERATIONS = 24
LEAST_ROWS = 8
"""Of each kind; below, the fit says not yet."""


class ModelShape(msgspec.Struct, frozen=True):
    """What is known of the model beforehand. experts, experts_per_token: routed ones, 0 of a dense
    model. forwarded_tokens: t_fwd, tokens that a request feeds into a decode iteration.
    context_term: fit d3 beside the paper's terms."""

    experts: int = 0
    experts_per_token: int = 0
    forwarded_tokens: float = 1.0
    context_term: bool = False

    @property
    def decode_terms(self) -> tuple[str, ...]:
        moe = ("d1",) if self.experts else ()
        context = ("d3",) if self.context_term else ()
        return ("d0", *moe, "d2", *context)


class NotYet(msgspec.Struct, frozen=True):
    """There is too little to fit; why says of what."""

    why: str


class Half(NotYet, frozen=True):
    """There is enough of `phase` alone: its terms are in the coefficients, those of the other
    phase are 0 and mean nothing."""

    phase: Phase
    coefficients: Coefficients


class Fitted(msgspec.Struct, frozen=True):
    """reports: of prefill and decode; None of a phase whose terms were kept."""

    coefficients: Coefficients
    prefill: Identification | None
    decode: Identification | None


def fit(
    rows: Sequence[WindowRow], shape: ModelShape, before: Coefficients | None = None
) -> Fitted | Half | NotYet:
    """Fit both equations. before: coefficients whose terms stay for a phase that has too few rows
    (a node in one role re-fits what it runs); without them that gives a Half.

    A term that the regression cannot tell from others, or whose regressor was always 0, is named
    in `unidentified` with an infinite error. Its value is what fits best together with the others.
    """
    blank = _blank(shape)
    prefill = [row for row in rows if row.phase is Phase.PREFILL]
    decode = [row for row in rows if row.phase is Phase.DECODE]
    lacking = {"prefill": _lacking(prefill), "decode": _lacking(decode)}
    missing = [f"{kind}: {why}" for kind, why in lacking.items() if why]
    if len(missing) == 2:
        return NotYet("; ".join(missing))
    first = second = None
    if not lacking["prefill"]:
        first = solve(PREFILL_TERMS, *_columns(prefill, PREFILL_TERMS, blank))
    if not lacking["decode"]:
        second = solve(shape.decode_terms, *_columns(decode, shape.decode_terms, blank))
    if not missing or before is not None:
        return _fitted(blank, before, (first, second), (prefill, decode))
    phase = Phase.DECODE if first is None else Phase.PREFILL
    rows_of = ([], decode) if first is None else (prefill, [])
    return Half(missing[0], phase, _fitted(blank, None, (first, second), rows_of).coefficients)


def _lacking(rows: Sequence[WindowRow]) -> str:
    iterations = sum(row.iterations for row in rows)
    windows = len({row.start_s for row in rows})
    if iterations < LEAST_ITERATIONS:
        return f"{iterations} of {LEAST_ITERATIONS} iterations"
    if windows < LEAST_WINDOWS:
        return f"{windows} of {LEAST_WINDOWS} windows"
    if len(rows) < LEAST_ROWS:
        return f"{len(rows)} of {LEAST_ROWS} sizes and windows"
    return ""


def _columns(
    rows: Sequence[WindowRow], terms: tuple[str, ...], blank: Coefficients
) -> tuple[Array, Array, Array]:
    """Sums of each term's regressor, busy seconds, iterations."""
    sums = np.array([[_regressor(term, row, blank) for term in terms] for row in rows])
    busy_s = np.array([row.busy_s for row in rows])
    return sums, busy_s, np.array([float(row.iterations) for row in rows])


def _regressor(term: str, row: WindowRow, blank: Coefficients) -> float:
    """Sum over the row's iterations of what the term is multiplied by."""
    if term in ("c0", "d0"):
        return float(row.iterations)
    if term in ("c2", "d3"):
        return row.pairs
    if term == "d1":
        return row.iterations * blank.phi(row.batch)
    if term == "d2":
        return float(row.iterations * row.batch)
    return float(row.tokens if term == "c1" else row.restored)


def _fitted(
    blank: Coefficients,
    before: Coefficients | None,
    solutions: tuple[Solution | None, Solution | None],
    rows: tuple[Sequence[WindowRow], Sequence[WindowRow]],
) -> Fitted:
    base = before or blank
    values = {term: getattr(base, f"{term}_s") for term in TERMS}
    errors = dict.fromkeys(TERMS, 0.0) | dict(zip(TERMS, base.errors, strict=False))
    unidentified = set(base.unidentified)
    windows = list(base.windows)
    for index, solution in enumerate(solutions):
        if solution is None:
            continue
        terms = solution.report.terms
        values |= dict(zip(terms, solution.values, strict=True))
        errors |= dict(zip(terms, solution.errors, strict=True))
        unidentified = unidentified - set(terms) | set(solution.report.unidentified)
        windows[index] = len({row.start_s for row in rows[index]})
    requests = sum(row.iterations * row.batch for row in rows[1])
    context = sum(row.pairs for row in rows[1]) / requests if requests else base.context_tokens
    coefficients = msgspec.structs.replace(
        blank,
        context_tokens=context,
        **{f"{term}_s": value for term, value in values.items()},
        errors=tuple(errors[term] for term in TERMS),
        unidentified=tuple(term for term in TERMS if term in unidentified),
        windows=(windows[0], windows[1]),
    )
    off = [
        abs(row_s(coefficients, row) - row.busy_s) / row.busy_s for half in rows for row in half
    ]
    residual = float(np.median(off))
    first, second = (one.report if one else None for one in solutions)
    return Fitted(msgspec.structs.replace(coefficients, residual=residual), first, second)


def row_s(model: Coefficients, row: WindowRow) -> float:
    """Seconds that the model says for the iterations of a row."""
    n = row.iterations
    if row.phase is Phase.DECODE:
        return n * model.decode_s(row.batch, row.pairs / n)
    return n * model.prefill_s(row.tokens / n, row.pairs / n, row.restored / n)


def _blank(shape: ModelShape) -> Coefficients:
    return Coefficients(
        *(0.0,) * 7,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        forwarded_tokens=shape.forwarded_tokens,
    )
