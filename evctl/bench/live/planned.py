"""`evctl bench planner --live`: forecasts and moves of the planner on live engines."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from evctl.bench.live.adapt import Adaptation, watch
from evctl.bench.live.closed import DECODE_HEAVY, PREFILL_HEAVY
from evctl.bench.live.moves import Outcome, Scene, error_of, follow
from evctl.bench.measurement import Measurement, Row

BOUND: Final = 0.2
"""How far a forecast may be from what then happened."""
PATH: Final = ("2P2D", "1P3D", "2P2D", "3P1D", "2P2D", "1P3D", "2P2D")
WINDOWS: Final = 4
"""That the planner gets to adapt."""
PACE: Final[dict[str, float]] = {
    "prefill_s": 0.01,
    "token_s": 0.0015,
    "pair_s": 1e-6,
    "decode_s": 0.02,
    "request_s": 0.003,
    "context_s": 0.0005,
    "half_tokens": 8.0,
    "noise": 0.1,
}
"""Engines' iterations: ten times as long as a GPU's, so that four of them and their agents leave
two cores idle, and no node waits for a processor that another one has."""
Told = Callable[[str], None]


class LivePlan(msgspec.Struct, frozen=True):
    """window_s: of the planner, and half a dwell at each split. agents: of either load. paced:
    whether iterations last as PACE says, or as long as this machine takes for `model`."""

    window_s: float = 45.0
    slices: int = 6
    transient_s: float = 10.0
    agents: int = 24
    path: tuple[str, ...] = PATH
    paced: bool = True
    adapt: bool = True
    seed: int = 1

    @property
    def config(self) -> dict[str, Any]:
        """Keys of the cluster file."""
        return {
            "model": "random-2l128" if self.paced else "random-4l256",
            "block_tokens": 4,
            "l1_tokens": 32768,
            "l2_tokens": 131072,
            "warm_up_s": self.window_s,
            "planner": {
                "window_s": self.window_s,
                "slices": self.slices,
                "cooldown_s": self.window_s / 5,
                "least_requests": 5,
            },
            **({"pace": PACE} if self.paced else {}),
        }


class PlannedMeasurement(Measurement, frozen=True, kw_only=True):
    """outcomes: every forecast and what happened. adaptations: what the planner did by itself."""

    outcomes: list[Outcome]
    adaptations: list[Adaptation]


def measure(plan: LivePlan, told: Told = lambda _: None) -> PlannedMeasurement:
    """Walk the path under a prefill-heavy load, then let the planner decide from a start that is
    wrong for each load. Raises EvctlError."""
    began_s, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="evctl-planned-") as name:
        scene = _scene(plan, plan.path)
        outcomes = list(follow(scene, Path(name), told))
    adaptations = []
    starts = ((PREFILL_HEAVY, "1P3D"), (DECODE_HEAVY, "3P1D")) if plan.adapt else ()
    for shape, start in starts:
        with tempfile.TemporaryDirectory(prefix="evctl-planned-") as name:
            scene = msgspec.structs.replace(_scene(plan, (start,)), shape=shape)
            adaptations.append(watch(scene, Path(name), WINDOWS, told))
    engines = "paced engines" if plan.paced else "engines as fast as this machine"
    return PlannedMeasurement(
        subject="planner, live",
        peer="seen",
        input=f"{plan.agents} agents, {engines}, windows of {plan.window_s:g} s, seed {plan.seed}",
        repeats=1,
        wall_s=round(time.monotonic() - began_s, 1),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        machine=f"{platform.machine()}, {os.cpu_count()} CPUs",
        rows=[*_forecast_rows(outcomes), *_adaptation_rows(adaptations)],
        outcomes=outcomes,
        adaptations=adaptations,
    )


def _scene(plan: LivePlan, path: tuple[str, ...]) -> Scene:
    return Scene(
        shape=PREFILL_HEAVY,
        path=path,
        agents=plan.agents,
        window_s=plan.window_s,
        slices=plan.slices,
        transient_s=plan.transient_s,
        config=plan.config,
        seed=plan.seed,
    )


def _forecast_rows(outcomes: list[Outcome]) -> list[Row]:
    """Forecast beside what then happened, in order; the last one is without a goal, for Theta
    knows no queue."""
    rows = []
    for number, one in enumerate(outcomes, start=1):
        when = "after a move to it" if one.moved else "as it was"
        name = f"{number}. {one.split} {when}"
        forecast, seen = one.forecast, one.seen
        rows.append(_row(f"{name}: throughput", forecast.throughput_rps, seen.throughput_rps))
        rows.append(_row(f"{name}: mean TTFT", forecast.ttft_s, seen.ttft_s, "s"))
        rows.append(_row(f"{name}: mean E2E", forecast.e2e_s, seen.e2e_s, "s"))
        rows.append(
            Row(
                name=f"{name}: throughput by min(mu)",
                value=one.slower_phase_rps,
                unit="req/s",
                peer=seen.throughput_rps,
                ratio=None if (off := error_of(one).slower_phase) is None else 1.0 + off,
            )
        )
    return rows


def _row(name: str, forecast: float | None, seen: float | None, unit: str = "req/s") -> Row:
    if forecast is None or not seen:
        return Row(name=name, value=forecast or 0.0, unit=unit, goal="known", ok=False)
    ratio = forecast / seen
    return Row(
        name=name,
        value=forecast,
        unit=unit,
        peer=seen,
        ratio=ratio,
        goal=f"within {BOUND:.0%}",
        ok=abs(ratio - 1.0) <= BOUND,
    )


def _adaptation_rows(adaptations: list[Adaptation]) -> list[Row]:
    rows = []
    for one in adaptations:
        wanted = 1 if one.shape == PREFILL_HEAVY.name else -1
        gained, back = one.went(), one.returns()
        name = f"{one.shape} from {one.moves[0][1]}, {WINDOWS} windows"
        goal = "above 0" if wanted > 0 else "below 0"
        rows.append(
            Row(
                name=f"{name}: prefill nodes gained",
                value=float(gained),
                unit="nodes",
                goal=goal,
                ok=gained * wanted > 0,
            )
        )
        rows.append(
            Row(
                name=f"{name}: moves back within three windows",
                value=float(back),
                unit="moves",
                goal="none",
                ok=not back,
            )
        )
    return rows
