"""What the planner remembers between events. Data of the reducer; evctl.policy.planning acts."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from evctl.core.planning import Forecast, PlanDecision, SliceRecord
from evctl.core.split import Split
from evctl.policy.planner.config import PlannerConfig
from evctl.policy.planner.meter import Meter

MOST_DECISIONS: Final = 64
BARRED_WINDOWS: Final = 3
"""A split that was taken back is not chosen for so long."""


class Pending(msgspec.Struct, frozen=True):
    """A move of the planner's that has not settled. waited_s: mean wait for prefill before it;
    branches: live ones then, 0 if unknown."""

    before: Split
    after: Split
    since_s: float
    forecast: Forecast
    waited_s: float
    branches: float


class Planner:
    """pending: the one move that is under way. trial: the last one, while it is on probation.
    settled_s: when the last move settled, whoever made it. moving: nodes have not settled.
    seen: slices of the window that runs; windows: those that had something to
    decide on, since the start.
    """

    def __init__(self, config: PlannerConfig, *, fresh: bool) -> None:
        self.config = config
        keep = config.slices * (max(1, config.evidence_windows) if config.sound else 1)
        self.meter = Meter(config.slice_s, config.least_requests, keep)
        self.fresh = fresh
        """No earlier life chose the roles: the first window only advises."""
        self.decisions: deque[PlanDecision] = deque(maxlen=MOST_DECISIONS)
        self.number = 0
        self.pending: Pending | None = None
        self.trial: Pending | None = None
        self.settled_s: float | None = None
        self.moving = False
        self.given_up = False
        """A move took too long: it is planned on although nodes have not settled."""
        self.seen = 0
        self.windows = 0
        self.barred: tuple[Split, float] | None = None
        """A split, and until when it is not chosen."""
        self.complaint = ""
        """Why it was blind last, so that this is told once."""

    @property
    def window(self) -> tuple[SliceRecord, ...]:
        """Closed slices of the window that runs, or has just ended."""
        return tuple(self.meter.slices[-self.seen :]) if self.seen else ()

    @property
    def is_idle(self) -> bool:
        """The last decision was made without work."""
        return bool(self.decisions) and self.decisions[-1].verdict == "idle"

    @property
    def cooldown_ends_s(self) -> float | None:
        return None if self.settled_s is None else self.settled_s + self.config.cooldown_s

    def is_barred(self, now_s: float) -> Split | None:
        if self.barred is None or now_s >= self.barred[1]:
            return None
        return self.barred[0]

    def restart(self, now_s: float) -> None:
        """A new window begins now, from nothing."""
        self.meter.restart(now_s)
        self.seen = 0

    def watch(self, now_s: float, *, unsettled: bool, settled: bool) -> None:
        """Whether nodes still finish work of their old role, and whether one has just ended it.
        When the last one has, the move has settled: the window begins anew, and so does the
        cooldown."""
        if unsettled:
            self.moving = not self.given_up
        elif self.moving or settled or self.given_up:
            self.moving = self.given_up = False
            self.settled_s = now_s
            self.trial = self.pending if self.config.probation else None
            self.pending = None
            self.restart(now_s)

    def kept(self, decision: PlanDecision) -> PlanDecision:
        """Number a decision and remember it."""
        self.number += 1
        numbered = msgspec.structs.replace(decision, number=self.number)
        self.decisions.append(numbered)
        return numbered
