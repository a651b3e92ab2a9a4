"""Every split beside the present one: what it promises, how sure that is, and which is best."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from evctl.core.planning import Candidate, Forecast, SliceRecord
from evctl.core.split import Split
from evctl.policy.planner.compare import (
    MOST_WEIGHED,
    Estimate,
    Scale,
    Tested,
    compare,
    gain_of,
)
from evctl.policy.planner.config import PlannerConfig
from evctl.policy.planner.fleet import Fleet, closed_loop, slower_phase
from evctl.policy.planner.meter import pooled, with_pauses

LOOK = 0.1
"""Share of the error rate that all looks before the window's end may use (Haybittle, Peto)."""


class Weighed(msgspec.Struct, frozen=True):
    """All candidates in the order of their prefill nodes, the best that passed, by what, and over
    how many slices."""

    candidates: tuple[Candidate, ...]
    chosen: Split | None
    closed: bool
    slices: int


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
    if looks:
        return weigh(fleet, window, config, barred=barred, share=LOOK / looks, glance=True)
    share = 1.0 - LOOK if config.early else 1.0
    if not config.sound or len(evidence) <= len(window):
        return weigh(fleet, window, config, barred=barred, share=share)
    weighed = weigh(fleet, window, config, barred=barred, share=share / 2.0)
    if weighed.chosen is not None:
        return weighed
    return weigh(fleet, evidence, config, barred=barred, share=share / 2.0)


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
    scale = Scale(fleet, tuple(slices), whole, estimate, config, present)
    expected = {s: estimate(fleet, s, whole) for s in fleet.splits() if _allowed(scale, s)}
    if glance and not _promises(scale, expected):
        return Weighed((), None, closed, len(slices))
    tested = compare(scale, expected, share)
    candidates = [
        _judge(scale, split, expected.get(split), tested.get(split), barred)
        for split in fleet.splits()
    ]
    candidates = [
        msgspec.structs.replace(c, theta_rps=slower_phase(fleet, split, whole).throughput_rps)
        for split, c in zip(fleet.splits(), candidates, strict=True)
    ]
    chosen = _best(scale, [c for c in candidates if c.verdict == "passed"], closed=closed)
    named = str(chosen)
    told = tuple(
        msgspec.structs.replace(c, verdict="chosen") if c.split == named else c for c in candidates
    )
    return Weighed(told, chosen, closed, len(slices))


def _promises(scale: Scale, expected: dict[Split, Forecast]) -> bool:
    least = math.log1p(scale.config.least_effect)
    return any(gain_of(scale.present, one, scale.config)[0] > least for one in expected.values())


def _allowed(scale: Scale, split: Split) -> bool:
    config = scale.config
    enough = (
        split.prefill_nodes >= config.least_prefill and split.decode_nodes >= config.least_decode
    )
    return split == scale.fleet.split or (enough and all(scale.fleet.under(split)))


def _judge(
    scale: Scale,
    split: Split,
    forecast: Forecast | None,
    tested: Tested | None,
    barred: Split | None,
) -> Candidate:
    if forecast is None:
        why = "too few nodes that are alive or must stay in a phase"
        return Candidate(str(split), Forecast(0.0), 0.0, 0.0, "bounded", why)
    if split == scale.fleet.split:
        return Candidate(str(split), forecast, 0.0, 0.0, "current", "as it is")
    if tested is None:
        gain, measure = gain_of(scale.present, forecast, scale.config)
        why = f"not among the {MOST_WEIGHED} that promise most"
        return Candidate(str(split), forecast, math.expm1(gain), 0.0, "worse", why, measure)
    verdict, why = _verdict(scale, split, forecast, tested, barred)
    sound = scale.config.sound
    gain = math.expm1(tested.mean.value) if sound else tested.mean.value
    error = tested.mean.error if math.isfinite(tested.mean.error) else 0.0
    return Candidate(str(split), forecast, gain, error, verdict, why, tested.measure)


def _verdict(
    scale: Scale, split: Split, forecast: Forecast, tested: Tested, barred: Split | None
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


def _misses_target(scale: Scale, forecast: Forecast) -> bool:
    """A split with a longer wait than the target is no candidate, unless it shortens what waits
    there are."""
    target_s, wait_s = scale.config.ttft_target_s, forecast.prefill_wait_p95_s
    if not target_s or wait_s is None or wait_s <= target_s:
        return False
    now_s = scale.present.prefill_wait_p95_s
    return now_s is None or wait_s >= now_s


def _best(scale: Scale, passed: list[Candidate], *, closed: bool) -> Split | None:
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


def _split_of(scale: Scale, name: str) -> Split:
    return next(split for split in scale.fleet.splits() if str(split) == name)


def _distance(scale: Scale, candidate: Candidate) -> tuple[int, int]:
    """Nodes to move; of equal ones the split with fewer prefill nodes."""
    split = _split_of(scale, candidate.split)
    moved = split.prefill_nodes - scale.fleet.split.prefill_nodes
    return abs(moved), split.prefill_nodes
