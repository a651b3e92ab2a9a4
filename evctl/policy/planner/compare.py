"""Each split beside the present one, slice by slice: by how much better, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from evctl.core.costs import TERMS
from evctl.core.planning import Forecast, SliceRecord
from evctl.core.split import Split
from evctl.policy.capacity import NodeCapacity
from evctl.policy.planner.batches import (
    Mean,
    batch_means,
    effective_tests,
    mean_of,
    plain_mean,
    with_error,
)
from evctl.policy.planner.config import PlannerConfig
from evctl.policy.planner.fleet import Fleet
from evctl.policy.planner.student import quantile

MOST_WEIGHED = 16
"""Splits that are weighed slice by slice: those that promise most. Beyond, a forecast of the
whole window suffices to leave them out."""
ROUNDING = 1e-9
"""Less than that is no gain, but the last bits of a division."""

Estimate = Callable[[Fleet, Split, SliceRecord], Forecast]


class Scale(msgspec.Struct, frozen=True):
    """What candidates are weighed on, each by the same."""

    fleet: Fleet
    slices: tuple[SliceRecord, ...]
    whole: SliceRecord
    estimate: Estimate
    config: PlannerConfig
    present: Forecast


class Tested(msgspec.Struct, frozen=True):
    """mean: of gains, or of log-ratios in the sound test; bound: it passes above that."""

    mean: Mean
    bound: float
    measure: str


def compare(scale: Scale, expected: dict[Split, Forecast], share: float) -> dict[Split, Tested]:
    """Splits that promise most by what is expected of them, each with its test. share: of the
    error rate."""
    fleet, config = scale.fleet, scale.config
    present = [scale.estimate(fleet, fleet.split, one) for one in scale.slices]
    promising = sorted(
        (split for split in expected if split != fleet.split),
        key=lambda split: (-gain_of(scale.present, expected[split], config)[0], split),
    )[:MOST_WEIGHED]
    measured = {split: gain_of(scale.present, expected[split], config)[1] for split in promising}
    series = {
        split: [
            log_ratio(now, scale.estimate(fleet, split, one), measured[split])
            for now, one in zip(present, scale.slices, strict=True)
        ]
        for split in promising
    }
    if not config.sound:
        return {
            split: _two_errors([math.expm1(value) for value in logs], measured[split])
            for split, logs in series.items()
        }
    tests = effective_tests([batch_means(logs) for logs in series.values()])
    tail = config.error_rate / tests * share
    return {
        split: _student(scale, split, mean_of(logs), measured[split], tail)
        for split, logs in series.items()
    }


def _two_errors(gains: Sequence[float], measure: str) -> Tested:
    """Eq. 6: the mean gain exceeds twice its standard error."""
    mean = plain_mean(gains)
    return Tested(mean, max(2.0 * mean.error, ROUNDING), measure)


def _student(scale: Scale, split: Split, mean: Mean, measure: str, tail: float) -> Tested:
    """Batch means, the uncertainty of the coefficients added, and a least effect."""
    least = math.log1p(scale.config.least_effect)
    if mean.value <= least or not mean.degrees:
        return Tested(mean, max(least, mean.error), measure)
    mean = with_error(mean, _model_error(scale, split, measure))
    sure = quantile(tail, mean.degrees) * mean.error
    return Tested(mean, max(least, sure), measure)


def _model_error(scale: Scale, split: Split, measure: str) -> float:
    """Standard error of a log-ratio that the coefficients' errors make: each term moved by its
    own, on all nodes at once. A term that the data cannot tell has no error to move it by."""

    def ratio(fleet: Fleet) -> float:
        now = scale.estimate(fleet, fleet.split, scale.whole)
        return log_ratio(now, scale.estimate(fleet, split, scale.whole), measure)

    nodes = (*scale.fleet.prefill, *scale.fleet.decode)
    centre, squares = ratio(scale.fleet), 0.0
    for index, term in enumerate(TERMS):
        if any(_error_of(node, index) for node in nodes):
            squares += (ratio(_moved(scale.fleet, index, term)) - centre) ** 2
    return math.sqrt(squares)


def _error_of(node: NodeCapacity, index: int) -> float:
    errors = node.coefficients.errors
    error = errors[index] if index < len(errors) else 0.0
    return error if math.isfinite(error) else 0.0


def _moved(fleet: Fleet, index: int, term: str) -> Fleet:
    field = f"{term}_s"

    def moved(node: NodeCapacity) -> NodeCapacity:
        value = getattr(node.coefficients, field) + _error_of(node, index)
        model = msgspec.structs.replace(node.coefficients, **{field: value})
        return msgspec.structs.replace(node, coefficients=model)

    return Fleet(fleet.split, tuple(map(moved, fleet.prefill)), tuple(map(moved, fleet.decode)))


def gain_of(now: Forecast, then: Forecast, config: PlannerConfig) -> tuple[float, str]:
    """How much better, as a log-ratio, and by which measure: E2E where both throughputs are as
    good as equal, which is where a queue can differ (notes on Putnam 288 and CC 126)."""
    throughput = log_ratio(now, then, "throughput")
    if then.e2e_s is None or abs(throughput) >= math.log1p(config.least_effect):
        return throughput, "throughput"
    return log_ratio(now, then, "e2e"), "e2e"


def log_ratio(now: Forecast, then: Forecast, measure: str) -> float:
    """How much better `then` is by that measure: above 0 for more throughput, or less E2E."""
    if measure == "e2e" and now.e2e_s is not None and then.e2e_s is not None:
        return math.log(now.e2e_s / then.e2e_s)
    return math.log(_finite(then.throughput_rps) / _finite(now.throughput_rps))


def _finite(throughput_rps: float) -> float:
    """A phase that a model says takes no time, or that can hold nothing, has a logarithm too."""
    return min(max(throughput_rps, 1e-9), 1e9)
