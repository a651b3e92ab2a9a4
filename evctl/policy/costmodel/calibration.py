"""When a node's model is fitted, frozen, and opened again. Pure: whoever owns it runs the fit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evctl.core.costs import Coefficients
from evctl.core.events import IterationSample
from evctl.core.split import Phase
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
        self.borrowed: frozenset[Phase] = frozenset()
        """Phases whose terms are another node's, until this one has worked enough in them."""
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
        if self.open:
            return "fit" if now_s - self._first_s >= self._limits.warm_up_s else ""
        if self._limits.drift and self._watch(now_s):
            return "drift"
        return "fit" if self._may_repay(now_s) else ""

    @property
    def rows(self) -> tuple[WindowRow, ...]:
        """What the next fit is to explain: while the model is frozen, borrowed phases alone."""
        if self.open:
            return tuple(self.windows.closed)
        return tuple(row for row in self.windows.closed if row.phase in self.borrowed)

    def adopt(self, coefficients: Coefficients, borrowed: frozenset[Phase] = frozenset()) -> None:
        """The model is this from now on, and frozen; work in `borrowed` phases is still kept."""
        self.coefficients, self.borrowed = coefficients, borrowed
        self.open = False
        self._off_since_s, self._off_windows = None, 0
        self.windows.forget(but=borrowed)

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
            self.windows.forget(but=self.borrowed)
            return False
        if self._off_since_s is None:
            self._off_since_s = now_s
        self._off_windows += 1
        if now_s - self._off_since_s < self._limits.drift_s:
            return False
        self.open = self._off_windows >= LEAST_DRIFT_WINDOWS
        return self.open

    def _may_repay(self, now_s: float) -> bool:
        """Whether the node has worked in a borrowed phase for as long as a first fit waits."""
        first_s = next((r.start_s for r in self.windows.closed if r.phase in self.borrowed), now_s)
        return bool(self.borrowed) and now_s - first_s >= self._limits.warm_up_s


def _off(model: Coefficients, rows: Sequence[WindowRow]) -> float:
    measured_s = sum(row.busy_s for row in rows)
    return sum(row_s(model, row) for row in rows) / measured_s - 1.0
