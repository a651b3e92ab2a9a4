"""Predictions beside what then happened: of requests, and of the planner's decisions."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from math import ceil
from typing import Final

import msgspec

from evctl.control.stories import Stories, Story
from evctl.core.effects import Decided, TransitionEnded
from evctl.core.events import Event
from evctl.core.planning import Forecast, PlanDecision
from evctl.core.predictions import PREDICTED, ErrorStatus, PredictionStatus
from evctl.core.transitions import SUPERSEDED, Transition
from evctl.core.why import PlanOutcome
from evctl.policy.state import StepResult

MAX_SAMPLES: Final = 2_000
"""Of each kind: what status tells is of the last so many."""
MAX_PLANS: Final = 64
LEAST_REQUESTS: Final = 20
"""Ended in a window, below which its throughput says nothing."""
BOUNDS: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Of relative errors, for histograms."""


class Errors:
    """Pairs of one kind: the last ones, and a histogram of the relative errors of all.

    buckets: how many were at most each of BOUNDS (not cumulative), the last one beyond.
    """

    def __init__(self) -> None:
        self._pairs: deque[tuple[float, float, float]] = deque(maxlen=MAX_SAMPLES)
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, predicted: float, actual: float, of: float | None = None) -> None:
        """The error is relative to `of`, without it to the actual value. Of 0 there is no relative
        error: such a pair is left out."""
        whole = actual if of is None else of
        if whole <= 0.0:
            return
        error = abs(predicted - actual) / whole
        self._pairs.append((predicted, actual, error))
        self.buckets[bisect_left(BOUNDS, error)] += 1
        self.total += error

    def status(self) -> ErrorStatus | None:
        if not self._pairs:
            return None
        errors = sorted(error for _, _, error in self._pairs)
        expected = sum(predicted for predicted, _, _ in self._pairs)
        happened = sum(actual for _, actual, _ in self._pairs)
        return ErrorStatus(
            count=len(errors),
            median=errors[ceil(0.5 * len(errors)) - 1],
            p90=errors[ceil(0.9 * len(errors)) - 1],
            bias=expected / happened - 1.0 if happened else 0.0,
        )


class _OpenPlan(msgspec.Struct):
    """A decision whose window runs. moving: its change has not settled: what happens meanwhile is
    of neither split, and does not count."""

    number: int
    verdict: str
    split: str
    forecast: Forecast
    begun_s: float
    moving: bool
    requests: int = 0
    ttft_s: float = 0.0
    e2e_s: float = 0.0


class Outcomes:
    """An observer of the writer, to come after `stories`, whose ends it listens to."""

    def __init__(self, stories: Stories) -> None:
        self.errors = {what: Errors() for what in PREDICTED}
        self.plans: deque[PlanOutcome] = deque(maxlen=MAX_PLANS)
        self._plan: _OpenPlan | None = None
        stories.on_end = self._ended

    def observe(self, now_s: float, event: Event, result: StepResult) -> None:
        del event
        for effect in result.effects:
            if isinstance(effect, Decided):
                self._decided(now_s, effect.decision)
            elif isinstance(effect, TransitionEnded):
                self._settled(now_s, effect.transition)

    def status(self) -> PredictionStatus:
        return PredictionStatus(**{what: one.status() for what, one in self.errors.items()})

    def all_plans(self) -> tuple[PlanOutcome, ...]:
        """Those that ended, and the one whose window runs."""
        open_ = self._plan
        return (*self.plans, *((_told(open_, None),) if open_ is not None else ()))

    # ------------------------------------------------------------ requests

    def _ended(self, story: Story) -> None:
        if story.state != "done":
            return
        self._count(story)
        predicted, placed_s = story.predicted, story.placed_s
        if predicted is None or placed_s is None or story.first_token_s is None:
            return
        ttft_s = story.first_token_s - placed_s
        self.errors["ttft"].add(predicted.ttft_s, ttft_s)
        if story.started_s is not None:
            self.errors["wait"].add(predicted.wait_s, story.started_s - placed_s, of=ttft_s)
            self.errors["service"].add(predicted.service_s, story.first_token_s - story.started_s)
        if predicted.fetch_s and story.fetch_s is not None:
            self.errors["fetch"].add(predicted.fetch_s, story.fetch_s)

    # ------------------------------------------------------------ decisions of the planner

    def _decided(self, now_s: float, decision: PlanDecision) -> None:
        """The window before is over; the next one is of the split that this decision leaves."""
        self._close(now_s)
        moves = bool(decision.moves) and decision.verdict in ("move", "revert")
        split = decision.chosen if moves else decision.current
        found = [one.forecast for one in decision.candidates if one.split == split]
        if found:
            self._plan = _OpenPlan(
                decision.number, decision.verdict, split, found[0], now_s, moving=moves
            )

    def _settled(self, now_s: float, ended: Transition) -> None:
        """A change of the split ended: what it led to is measured from now on. Another one than
        the planner's ends the window; one that was superseded has led to nothing."""
        plan, after = self._plan, ended.after
        if plan is None:
            return
        if ended.outcome == SUPERSEDED:
            if plan.moving and plan.split == after:
                self._plan = None
            return
        if plan.moving and plan.split == after:
            plan.moving, plan.begun_s = False, now_s
        elif plan.split != after:
            self._close(now_s)

    def _count(self, story: Story) -> None:
        plan = self._plan
        if plan is None or plan.moving or story.first_token_s is None or story.ended_s is None:
            return
        plan.requests += 1
        plan.ttft_s += story.first_token_s - story.arrived_s
        plan.e2e_s += story.ended_s - story.arrived_s

    def _close(self, now_s: float) -> None:
        plan, self._plan = self._plan, None
        if plan is None or plan.moving:
            return
        outcome = _told(plan, now_s)
        self.plans.append(outcome)
        if outcome.measured is not None and plan.requests >= LEAST_REQUESTS:
            measured = outcome.measured
            self.errors["throughput"].add(plan.forecast.throughput_rps, measured.throughput_rps)


def _told(plan: _OpenPlan, ended_s: float | None) -> PlanOutcome:
    measured = None
    if ended_s is not None and plan.requests and ended_s > plan.begun_s:
        measured = Forecast(
            throughput_rps=plan.requests / (ended_s - plan.begun_s),
            ttft_s=plan.ttft_s / plan.requests,
            e2e_s=plan.e2e_s / plan.requests,
        )
    return PlanOutcome(
        number=plan.number,
        verdict=plan.verdict,
        split=plan.split,
        forecast=plan.forecast,
        begun_s=plan.begun_s,
        ended_s=ended_s,
        measured=measured,
        requests=plan.requests,
    )
