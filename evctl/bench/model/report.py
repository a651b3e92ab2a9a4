"""Rows of `evctl bench model`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import mean, median

import msgspec

from evctl.bench.measurement import Measurement, Row
from evctl.bench.model.predictors import Predictor
from evctl.bench.model.traffic import Alone, Seen
from evctl.core.costs import TERMS, Coefficients

GOAL = 10.0
"""Per cent that a prediction may be off, beside what repeating the same work differs by."""
UNITS = {
    "c0": ("ms", 1e3),
    "c1": ("us/token", 1e6),
    "c2": ("ns/pair", 1e9),
    "c3": ("us/token", 1e6),
    "d0": ("ms", 1e3),
    "d1": ("ms", 1e3),
    "d2": ("us/request", 1e6),
    "d3": ("ns/token", 1e9),
}


class ModelMeasurement(Measurement, frozen=True, kw_only=True):
    """coefficients: seconds a unit by term, and their standard errors, null where the data
    cannot tell. Empty where nothing could be fitted; why_not says why."""

    coefficients: dict[str, float] = msgspec.field(default_factory=dict)
    errors: dict[str, float | None] = msgspec.field(default_factory=dict)
    why_not: str = ""


class Compared(msgspec.Struct, frozen=True):
    """Predictors side by side: ours first."""

    ours: Predictor
    others: dict[str, Predictor]

    def rows(
        self, what: str, off: Callable[[Predictor], list[float]], floor: list[float]
    ) -> Iterator[Row]:
        """Median and mean of how far each is off, in per cent. floor: of repeating the same."""
        for name, of in (("median", median), ("mean", mean)):
            if not (own := off(self.ours)):
                continue
            value = of(own)
            others = {other: of(off(predictor)) for other, predictor in self.others.items()}
            least = of(floor) if floor else 0.0
            best = min(others.values())
            yield Row(
                name=f"{what}: {name} error",
                value=value,
                unit="%",
                peer=best,
                ratio=value / best if best else None,
                ok=value <= GOAL + least and value < best,
                goal=f"<= {GOAL:.0f} + {least:.1f} (repeating one), < both others",
            )
            for other, error in others.items():
                yield Row(name=f"{what}: {name} error, {other}", value=error, unit="%")


def iterations_off(seen: Sequence[Seen], *, prefill: bool) -> Callable[[Predictor], list[float]]:
    """How far a predictor is off on iterations of one kind, in per cent each."""
    samples = [
        s.sample
        for s in seen
        if bool(s.sample.prefill_tokens) is prefill
        and not (s.sample.prefill_tokens and s.sample.decode_requests)
        and s.sample.busy_s > 0.0
    ]
    return lambda p: [_off(p.iteration_s(s), s.busy_s) for s in samples]


def requests_off(
    requests: Sequence[Alone], *, prefill: bool
) -> Callable[[Predictor], list[float]]:
    """The same of whole requests, each alone on the node: its prefill, or both phases."""
    if prefill:
        return lambda p: [_off(p.prefill_s(r), r.prefill_s) for r in requests]
    return lambda p: [
        _off(p.prefill_s(r) + p.decode_s(r), r.prefill_s + r.decode_s) for r in requests
    ]


def floor_of(seen: Sequence[Seen], tokens: int, batch: int) -> tuple[list[float], list[float]]:
    """How far iterations that did the same are off their median: prefills of `tokens` from an
    empty cache, and decodes of `batch` requests that all began with as many."""
    prefills = [
        s.sample.busy_s
        for s in seen
        if s.sample.prefill_tokens == tokens and not s.sample.decode_requests
    ]
    decodes = [
        s.sample.busy_s
        for s in seen
        if s.sample.decode_requests == batch and not s.sample.prefill_tokens
    ]
    return _spread(prefills), _spread(decodes)


def coefficient_rows(model: Coefficients) -> Iterator[Row]:
    """Each fitted term; its standard error stands in the column of the peer."""
    for term, error in zip(TERMS, model.errors, strict=True):
        unit, factor = UNITS[term]
        value = float(getattr(model, f"{term}_s")) * factor
        if term in model.unidentified:
            yield Row(name=f"{term}, not identified", value=value, unit=unit)
        elif value or error:
            yield Row(name=f"{term}, and its error", value=value, unit=unit, peer=error * factor)


def _off(predicted_s: float, measured_s: float) -> float:
    return 100.0 * abs(predicted_s / measured_s - 1.0) if measured_s > 0.0 else math.inf


def _spread(seconds: Sequence[float]) -> list[float]:
    middle = median(seconds) if seconds else 0.0
    return [_off(s, middle) for s in seconds]
