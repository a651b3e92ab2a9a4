"""BrainStatus, from the reducer's state: small, for a status goes out twice a second."""

from __future__ import annotations

from typing import Final

import msgspec

from evctl.core.brain_status import BrainStatus
from evctl.core.planning import Candidate, PlanDecision
from evctl.policy.cluster import ClusterState
from evctl.policy.planner import Planner

MOST_CANDIDATES: Final = 9
MOST_RPS: Final = 1e9


def brain_status(state: ClusterState, now_s: float) -> BrainStatus:
    """What status tells of the planner. Changes nothing."""
    planner = state.planner
    decision = planner.decisions[-1] if planner.decisions else None
    told = None if decision is None else without_bulk(decision)
    cooldown_s, barred = planner.cooldown_ends_s, planner.is_barred(now_s)
    change = state.transitions.open
    return BrainStatus(
        now_s=now_s,
        decision=told,
        left_out=len(decision.candidates) - len(told.candidates) if decision and told else 0,
        due_s=_due_s(planner),
        slices_seen=planner.seen,
        slices=planner.config.slices,
        cooldown_ends_s=cooldown_s if cooldown_s is not None and cooldown_s > now_s else None,
        barred="" if barred is None else str(barred),
        barred_until_s=planner.barred[1] if planner.barred and barred is not None else None,
        trial="" if planner.trial is None else str(planner.trial.after),
        draining={part.move.node: len(part.left) for part in change.parts} if change else {},
    )


def without_bulk(decision: PlanDecision) -> PlanDecision:
    """The decision without its slices and models, with its foremost candidates."""
    return msgspec.structs.replace(
        decision,
        slices=(),
        model={},
        candidates=tuple(_finite(each) for each in decision.foremost(MOST_CANDIDATES)),
    )


def _finite(candidate: Candidate) -> Candidate:
    """JSON has no infinity, which is what a phase that seems to take no time can serve."""
    forecast = candidate.forecast
    if forecast.throughput_rps <= MOST_RPS:
        return candidate
    forecast = msgspec.structs.replace(forecast, throughput_rps=MOST_RPS)
    return msgspec.structs.replace(candidate, forecast=forecast)


def _due_s(planner: Planner) -> float | None:
    """When the window ends. A move that settles before begins it anew."""
    start_s, config = planner.meter.start_s, planner.config
    return None if start_s is None else start_s + (config.slices - planner.seen) * config.slice_s
