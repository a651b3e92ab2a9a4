"""When a node's model is fitted, frozen, and opened again. Pure: whoever owns it runs the fit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evctl.core.costs import Coefficients
from evctl.core.events import IterationSample
from evctl.policy.costmodel.fit import row_s
from evctl.policy.costmodel.windows import WINDOW_S, WindowRow, Windows

DRIFT_SHARE = 0.15
DRIFT_S = 300.0
LEAST_DRIFT_WINDOWS = 12
"""With work in them, so that two bad windows around an idle hour are no drift."""


class CalibrationLimits(msgspec.Struct, frozen=True):
    """warm_up_s: of a node's first life, from its first iteration on, before the first fit.
    drift: whether a model that is off for long is fitted anew."""

    warm_up_s: float = 120.0
    window_s: float = WINDOW_S
    drift: bool = True
    drift_share: float = DRIFT_SHARE
    drift_s: float = DRIFT_S


class NodeCalibration:
    """One node's windows and its model. The model is frozen between fits: a prediction that moved
    with every request could not be compared with what it led to."""

    def __init__(self, limits: CalibrationLimits) -> None:
        self.windows = Windows(limits.window_s)
        self.coefficients: Coefficients | None = None
        self.open = True
        """Whether a fit is wanted as soon as there is enough."""
        self.off: float | None = None
        """Of the last whole window: predicted over measured busy time, minus 1."""
        self._limits = limits
        self._first_s: float | None = None
        self._off_since_s: float | None = None
        self._off_windows = 0

    def observe(self, now_s: float, sample: IterationSample) -> str:
        """Take an iteration in. Returns "fit" when one is due, "drift" when the model has been off
        for so long that it is open again, else ""."""
        if self._first_s is None:
            self._first_s = now_s
        ended = self.windows.observe(now_s, sample)
        if not ended:
            return ""
        if self.coefficients is not None:
            self.off = _off(self.coefficients, ended)
        if not self.open:
            return "drift" if self._limits.drift and self._watch(now_s) else ""
        return "fit" if now_s - self._first_s >= self._limits.warm_up_s else ""

    def adopt(self, coefficients: Coefficients) -> None:
        """The model is this from now on, and frozen."""
        self.coefficients = coefficients
        self.open = False
        self._off_since_s, self._off_windows = None, 0
        self.windows.forget()

    def doubt(self, coefficients: Coefficients) -> None:
        """These are in force, but were learned of something else: a fit is wanted, and what the
        node's role does not show may stay."""
        self.coefficients = coefficients
        self.open = True

    def _watch(self, now_s: float) -> bool:
        """Whether the model is off since long enough. Only windows since then are kept: they are
        what the next fit is to explain."""
        if self.off is None or abs(self.off) <= self._limits.drift_share:
            self._off_since_s, self._off_windows = None, 0
            self.windows.forget()
            return False
        if self._off_since_s is None:
            self._off_since_s = now_s
        self._off_windows += 1
        if now_s - self._off_since_s < self._limits.drift_s:
            return False
        self.open = self._off_windows >= LEAST_DRIFT_WINDOWS
        return self.open


def _off(model: Coefficients, rows: Sequence[WindowRow]) -> float:
    measured_s = sum(row.busy_s for row in rows)
    return sum(row_s(model, row) for row in rows) / measured_s - 1.0
