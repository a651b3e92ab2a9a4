"""Forecasts against what then happened: a live cluster is moved from split to split under a closed
load, and each forecast is made before what it forecasts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from evctl.bench.live.closed import ClosedLoad, Seen, Shape, closed_trace
from evctl.bench.live.testbed import Testbed
from evctl.core.errors import EvctlError
from evctl.core.planning import Forecast, PlanDecision
from evctl.core.split import parse_split

CONVERSATIONS: Final = 64
SETTLE_TIMEOUT_S: Final = 120.0
MODEL_TIMEOUT_S: Final = 300.0
POLL_S: Final = 0.2
BY: Final = "bench"
Told = Callable[[str], None]


class Scene(msgspec.Struct, frozen=True):
    """A cluster and its load. path: the first split, then those it is moved to. agents: branches
    that work at once. window_s, slices: of the planner. transient_s: left out after a move.
    config: further keys of the cluster file."""

    shape: Shape
    path: tuple[str, ...]
    agents: int
    window_s: float
    slices: int
    transient_s: float
    config: dict[str, Any]
    seed: int = 1


class Outcome(msgspec.Struct, frozen=True):
    """A forecast beside what happened. moved: whether the cluster was moved to `split` between
    the two. slower_phase_rps: what min(mu) forecast."""

    shape: str
    split: str
    moved: bool
    forecast: Forecast
    slower_phase_rps: float
    seen: Seen


def follow(scene: Scene, folder: Path, told: Told = lambda _: None) -> Iterator[Outcome]:
    """Walk the path. At each split: half a dwell to measure, a forecast for the split as it is,
    the other half to see; then a forecast for the next split, and the move. Raises EvctlError."""
    first = parse_split(scene.path[0])
    config = {**scene.config, "nodes": first.nodes, "split": str(first)}
    block_tokens = int(config["block_tokens"])
    trace = closed_trace(scene.shape, CONVERSATIONS, block_tokens, scene.seed)
    with Testbed(folder, config) as bed:
        gateway = bed.status().gateway
        with ClosedLoad(trace, gateway, scene.agents, scene.seed) as load:
            await_model(bed, told)
            promised: tuple[Forecast, float] | None = None
            for split, following in zip(scene.path, [*scene.path[1:], ""], strict=True):
                told(f"{scene.shape.name}: at {split}")
                _hold(bed, split)
                time.sleep(scene.transient_s)
                began_s = time.monotonic()
                time.sleep(scene.window_s)
                forecast = _forecast(bed.admin.why.plan(), split)
                middle_s = time.monotonic()
                time.sleep(scene.window_s)
                ended_s = time.monotonic()
                if promised is not None:
                    yield _outcome(scene, split, True, promised, load.seen(began_s, ended_s))
                yield _outcome(scene, split, False, forecast, load.seen(middle_s, ended_s))
                if following:
                    promised = _forecast(bed.admin.why.plan(), following)


def _outcome(
    scene: Scene, split: str, moved: bool, promised: tuple[Forecast, float], seen: Seen
) -> Outcome:
    return Outcome(scene.shape.name, split, moved, *promised, seen)


def await_model(bed: Testbed, told: Told) -> None:
    """Until every node's execution-time model is fitted."""
    deadline_s = time.monotonic() + MODEL_TIMEOUT_S
    while True:
        missing = unfitted(bed)
        if not missing:
            return
        if time.monotonic() > deadline_s:
            raise EvctlError(
                what="the execution-time model was not fitted in time",
                why=f"{', '.join(missing)} have none after {MODEL_TIMEOUT_S:g} s",
                next_step="give more agents, or a longer warm-up",
                code="EV-1647",
            )
        told(f"learning: {', '.join(missing)}")
        time.sleep(1.0)


def unfitted(bed: Testbed) -> list[str]:
    """Nodes without a model of their times."""
    return [name for name, source in bed.admin.why.plan().model.items() if source == "prior"]


def _hold(bed: Testbed, split: str) -> None:
    """Move there, and wait until the old work has ended. A new window begins then."""
    bed.admin.set_split(split, by=BY, reason="to compare with the forecast", force=True)
    deadline_s = time.monotonic() + SETTLE_TIMEOUT_S
    while bed.status().split != split:
        if time.monotonic() > deadline_s:
            raise EvctlError(
                what=f"the change to {split} has not settled",
                why=f"requests of the old roles still run after {SETTLE_TIMEOUT_S:g} s",
                next_step="give fewer agents",
                code="EV-1647",
            )
        time.sleep(POLL_S)


def _forecast(decision: PlanDecision, split: str) -> tuple[Forecast, float]:
    """What is expected of a split, and by min(mu)."""
    for candidate in decision.candidates:
        if candidate.split == split:
            return candidate.forecast, candidate.theta_rps
    raise EvctlError(
        what=f"there is no forecast for {split}",
        why=decision.why or f"the planner says {decision.verdict}",
        next_step="give more agents, or a longer window",
        code="EV-1647",
    )


class Error(msgspec.Struct, frozen=True):
    """Relative errors of one outcome; None where one side is not known."""

    throughput: float | None
    ttft: float | None
    e2e: float | None
    slower_phase: float | None

    @property
    def worst(self) -> float:
        """Infinite where nothing was seen."""
        if self.throughput is None:
            return math.inf
        return max(abs(one) for one in (self.throughput, self.ttft, self.e2e) if one is not None)


def error_of(outcome: Outcome) -> Error:
    forecast, seen = outcome.forecast, outcome.seen
    return Error(
        throughput=_relative(forecast.throughput_rps, seen.throughput_rps),
        ttft=_relative(forecast.ttft_s, seen.ttft_s),
        e2e=_relative(forecast.e2e_s, seen.e2e_s),
        slower_phase=_relative(outcome.slower_phase_rps, seen.throughput_rps),
    )


def _relative(forecast: float | None, seen: float | None) -> float | None:
    return forecast / seen - 1 if forecast is not None and seen else None


def within(outcomes: Sequence[Outcome], bound: float) -> int:
    """Outcomes whose three forecasts all lie within `bound` of what was seen."""
    return sum(error_of(outcome).worst <= bound for outcome in outcomes)
