"""Every split beside the present one: what it promises, how sure that is, and which is best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from evctl.core.costs import TERMS
from evctl.core.planning import Candidate, Forecast, SliceRecord
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
from evctl.policy.planner.fleet import Fleet, closed_loop, slower_phase
from evctl.policy.planner.meter import pooled, with_pauses
from evctl.policy.planner.student import quantile

MOST_WEIGHED = 16
"""Splits that are weighed slice by slice: those that promise most. Beyond, a forecast of the
whole window suffices to leave them out."""
LOOK = 0.1
"""Share of the error rate that all looks before the window's end may use (Haybittle, Peto)."""

ROUNDING = 1e-9
"""Less than that is no gain, but the last bits of a division."""

Estimate = Callable[[Fleet, Split, SliceRecord], Forecast]


class Weighed(msgspec.Struct, frozen=True):
    """All candidates in the order of their prefill nodes, the best that passed, and by what."""

    candidates: tuple[Candidate, ...]
    chosen: Split | None
    closed: bool


class _Scale(msgspec.Struct, frozen=True):
    """What candidates are weighed on, each by the same."""

    fleet: Fleet
    slices: tuple[SliceRecord, ...]
    whole: SliceRecord
    estimate: Estimate
    config: PlannerConfig
    present: Forecast


def judge(
    fleet: Fleet,
    window: Sequence[SliceRecord],
    evidence: Sequence[SliceRecord],
    config: PlannerConfig,
    *,
    barred: Split | None = None,
    looks: int = 0,
) -> Weighed:
    """Compare all splits at the end of a window. Slices are not thin; evidence: all that count
    in the sound test, those of the window last. What the window leaves open, they may settle: a
    request's work does not depend on when it came. The two tests share the error rate.

    barred: a split that was taken back lately. looks: how many looks before the window's end
    share their part of the error rate, of which this is one; 0: it is the end.
    """
    if not config.sound or looks or len(evidence) <= len(window):
        share = LOOK / looks if looks else 1.0
        return weigh(fleet, window, config, barred=barred, share=share, glance=bool(looks))
    weighed = weigh(fleet, window, config, barred=barred, share=0.5)
    if weighed.chosen is not None:
        return weighed
    return weigh(fleet, evidence, config, barred=barred, share=0.5)


def weigh(
    fleet: Fleet,
    slices: Sequence[SliceRecord],
    config: PlannerConfig,
    *,
    barred: Split | None = None,
    share: float = 1.0,
    glance: bool = False,
) -> Weighed:
    """Compare all splits over these slices. share: of the error rate. glance: where no split
    promises anything over all slices, do not look at each of them."""
    closed = config.closed and 2 * sum(one.branches > 0.0 for one in slices) > len(slices)
    estimate: Estimate = closed_loop if closed else slower_phase
    slices = with_pauses(slices) if closed else slices
    whole = pooled(tuple(slices))
    present = estimate(fleet, fleet.split, whole)
    scale = _Scale(fleet, tuple(slices), whole, estimate, config, present)
    expected = {s: estimate(fleet, s, whole) for s in fleet.splits() if _allowed(scale, s)}
    if glance and not _promises(scale, expected):
        return Weighed((), None, closed)
    tested = _test(scale, expected, share)
    candidates = [
        _judge(scale, split, expected.get(split), tested.get(split), barred)
        for split in fleet.splits()
    ]
    chosen = _best(scale, [c for c in candidates if c.verdict == "passed"], closed=closed)
    named = str(chosen)
    told = tuple(
        msgspec.structs.replace(c, verdict="chosen") if c.split == named else c for c in candidates
    )
    return Weighed(told, chosen, closed)


def _promises(scale: _Scale, expected: dict[Split, Forecast]) -> bool:
    least = math.log1p(scale.config.least_effect)
    return any(_gain(scale.present, one, scale.config)[0] > least for one in expected.values())


class _Tested(msgspec.Struct, frozen=True):
    """mean: of gains, or of log-ratios in the sound test; bound: it passes above that."""

    mean: Mean
    bound: float
    measure: str


def _test(scale: _Scale, expected: dict[Split, Forecast], share: float) -> dict[Split, _Tested]:
    fleet, config = scale.fleet, scale.config
    present = [scale.estimate(fleet, fleet.split, one) for one in scale.slices]
    promising = sorted(
        (split for split in expected if split != fleet.split),
        key=lambda split: (-_gain(scale.present, expected[split], config)[0], split),
    )[:MOST_WEIGHED]
    measured = {split: _gain(scale.present, expected[split], config)[1] for split in promising}
    series = {
        split: [
            _log_ratio(now, scale.estimate(fleet, split, one), measured[split])
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


def _two_errors(gains: Sequence[float], measure: str) -> _Tested:
    """Eq. 6: the mean gain exceeds twice its standard error."""
    mean = plain_mean(gains)
    return _Tested(mean, max(2.0 * mean.error, ROUNDING), measure)


def _student(scale: _Scale, split: Split, mean: Mean, measure: str, tail: float) -> _Tested:
    """Batch means, the uncertainty of the coefficients added, and a least effect."""
    least = math.log1p(scale.config.least_effect)
    if mean.value <= least or not mean.degrees:
        return _Tested(mean, max(least, mean.error), measure)
    mean = with_error(mean, _model_error(scale, split, measure))
    sure = quantile(tail, mean.degrees) * mean.error
    return _Tested(mean, max(least, sure), measure)


def _model_error(scale: _Scale, split: Split, measure: str) -> float:
    """Standard error of a log-ratio that the coefficients' errors make: each term moved by its
    own, on all nodes at once. A term that the data cannot tell has no error to move it by."""

    def ratio(fleet: Fleet) -> float:
        now = scale.estimate(fleet, fleet.split, scale.whole)
        return _log_ratio(now, scale.estimate(fleet, split, scale.whole), measure)

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


def _gain(now: Forecast, then: Forecast, config: PlannerConfig) -> tuple[float, str]:
    """How much better, as a log-ratio, and by which measure: E2E where both throughputs are as
    good as equal, which is where a queue can differ (notes on Putnam 288 and CC 126)."""
    throughput = _log_ratio(now, then, "throughput")
    if then.e2e_s is None or abs(throughput) >= math.log1p(config.least_effect):
        return throughput, "throughput"
    return _log_ratio(now, then, "e2e"), "e2e"


def _log_ratio(now: Forecast, then: Forecast, measure: str) -> float:
    if measure == "e2e" and now.e2e_s is not None and then.e2e_s is not None:
        return math.log(now.e2e_s / then.e2e_s)
    return math.log(_finite(then.throughput_rps) / _finite(now.throughput_rps))


def _finite(throughput_rps: float) -> float:
    """A phase that a model says takes no time, or that can hold nothing, has a logarithm too."""
    return min(max(throughput_rps, 1e-9), 1e9)


def _allowed(scale: _Scale, split: Split) -> bool:
    config = scale.config
    enough = (
        split.prefill_nodes >= config.least_prefill and split.decode_nodes >= config.least_decode
    )
    return split == scale.fleet.split or (enough and all(scale.fleet.under(split)))


def _judge(
    scale: _Scale,
    split: Split,
    forecast: Forecast | None,
    tested: _Tested | None,
    barred: Split | None,
) -> Candidate:
    if forecast is None:
        why = "too few nodes that are alive or must stay in a phase"
        return Candidate(str(split), Forecast(0.0), 0.0, 0.0, "bounded", why)
    if split == scale.fleet.split:
        return Candidate(str(split), forecast, 0.0, 0.0, "current", "as it is")
    if tested is None:
        gain, measure = _gain(scale.present, forecast, scale.config)
        why = f"not among the {MOST_WEIGHED} that promise most"
        return Candidate(str(split), forecast, math.expm1(gain), 0.0, "worse", why, measure)
    verdict, why = _verdict(scale, split, forecast, tested, barred)
    sound = scale.config.sound
    gain = math.expm1(tested.mean.value) if sound else tested.mean.value
    error = tested.mean.error if math.isfinite(tested.mean.error) else 0.0
    return Candidate(str(split), forecast, gain, error, verdict, why, tested.measure)


def _verdict(
    scale: _Scale, split: Split, forecast: Forecast, tested: _Tested, barred: Split | None
) -> tuple[str, str]:
    value, bound = tested.mean.value, tested.bound
    sound, least = scale.config.sound, math.log1p(scale.config.least_effect)
    gain, needed = (math.expm1(value), math.expm1(min(bound, 9.0))) if sound else (value, bound)
    if value <= 0.0:
        return "worse", f"{tested.measure} {gain:+.1%}"
    if sound and value <= least:
        return "small", f"{tested.measure} {gain:+.1%}, below {scale.config.least_effect:.0%}"
    if not math.isfinite(tested.mean.error):
        return "unsure", f"{tested.measure} {gain:+.1%}, too few slices to tell"
    if value <= bound:
        return "unsure", f"{tested.measure} {gain:+.1%}, sure only above {needed:.1%}"
    if split == barred:
        return "guarded", "taken back lately: it did not keep what it promised"
    if _misses_target(scale, forecast):
        wait_s = forecast.prefill_wait_p95_s
        return "guarded", f"95 % would wait up to {wait_s:.1f} s for prefill"
    return "passed", f"{tested.measure} {gain:+.1%}, sure above {needed:.1%}"


def _misses_target(scale: _Scale, forecast: Forecast) -> bool:
    """A split with a longer wait than the target is no candidate, unless it shortens what waits
    there are."""
    target_s, wait_s = scale.config.ttft_target_s, forecast.prefill_wait_p95_s
    if not target_s or wait_s is None or wait_s <= target_s:
        return False
    now_s = scale.present.prefill_wait_p95_s
    return now_s is None or wait_s >= now_s


def _best(scale: _Scale, passed: list[Candidate], *, closed: bool) -> Split | None:
    """The largest gain; in a closed network, of splits whose throughput is within `least_effect`
    of the best one's, that with the least E2E, which may be the present one."""
    if not passed:
        return None
    if not closed:
        best = min(passed, key=lambda c: (-c.gain, _distance(scale, c)))
        return _split_of(scale, best.split)
    present = Candidate(str(scale.fleet.split), scale.present, 0.0, 0.0, "current", "")
    field = [present, *passed]
    most_rps = max(c.forecast.throughput_rps for c in field)
    near = [
        c
        for c in field
        if c.forecast.throughput_rps >= most_rps / (1.0 + scale.config.least_effect)
    ]
    best = min(near, key=lambda c: (c.forecast.e2e_s or 0.0, _distance(scale, c)))
    return None if best is present else _split_of(scale, best.split)


def _split_of(scale: _Scale, name: str) -> Split:
    return next(split for split in scale.fleet.splits() if str(split) == name)


def _distance(scale: _Scale, candidate: Candidate) -> tuple[int, int]:
    """Nodes to move; of equal ones the split with fewer prefill nodes."""
    split = _split_of(scale, candidate.split)
    moved = split.prefill_nodes - scale.fleet.split.prefill_nodes
    return abs(moved), split.prefill_nodes
