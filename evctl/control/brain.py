"""BrainStatus, from the reducer's state: small, for a status goes out twice a second."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from evctl.core.brain_status import BrainStatus, ModelStatus, TermStatus
from evctl.core.costs import TERMS, Coefficients
from evctl.core.planning import Candidate, PlanDecision
from evctl.policy.cluster import ClusterState, NodeRecord
from evctl.policy.planner import Planner

MOST_CANDIDATES: Final = 9
MOST_RPS: Final = 1e9


def brain_status(state: ClusterState, now_s: float) -> BrainStatus:
    """What status tells of the planner and of the execution-time models. Changes nothing."""
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
        models=tuple(model_status(node) for node in state.nodes.values()),
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


def model_status(node: NodeRecord) -> ModelStatus:
    """What is known of a node's iteration times."""
    model = node.coefficients
    if model is None:
        return ModelStatus(node.name, node.model_source)
    return ModelStatus(
        node=node.name,
        source=node.model_source,
        terms=tuple(_term(model, index) for index in range(len(TERMS))),
        unidentified=model.unidentified,
        windows=model.windows,
        residual=_short(model.residual) if any(model.windows) else None,
    )


def _term(model: Coefficients, index: int) -> TermStatus:
    term = TERMS[index]
    value_s = getattr(model, f"{term}_s")
    error_s = model.errors[index] if index < len(model.errors) else math.inf
    told = term not in model.unidentified and math.isfinite(error_s) and value_s > 0.0
    return TermStatus(term, _short(value_s), _short(error_s / value_s) if told else None)


def _short(value: float) -> float:
    """Four digits: more would only be read by nobody twice a second."""
    return float(f"{value:.4g}")
