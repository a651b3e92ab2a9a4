"""Play every case, let each rule decide on every window, and compare with what is true."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from random import Random
from typing import Final

import msgspec

from evctl.bench.planner.cases import (
    AUTOCORRELATIONS,
    BEST,
    CASES,
    L1_TOKENS,
    LAWS,
    MOST_RUNNING,
    SLICES,
    SPEEDS,
    WARM_UP_S,
    WINDOW_S,
    Case,
)
from evctl.bench.planner.fits import fit
from evctl.bench.planner.watch import Watch
from evctl.bench.planner.world.loop import World
from evctl.core.planning import SliceRecord
from evctl.core.split import Split
from evctl.policy.capacity import NodeCapacity
from evctl.policy.planner import PAPER, PlannerConfig, plus
from evctl.policy.planner.fleet import Fleet
from evctl.policy.planner.weigh import judge

RULES: Final = {
    "paper": PAPER,
    "sound": msgspec.structs.replace(PAPER, sound=True),
    "plus": plus(),
}
PATIENCE: Final = 3
"""Windows within which a right move should come."""


class Plan(msgspec.Struct, frozen=True):
    """How much to play. windows: of each case and autocorrelation, twice as many where the
    present split is best. truth_windows: of each split, to know its throughput. jobs: processes.
    """

    windows: int = 40
    truth_windows: int = 20
    seed: int = 1
    jobs: int = 2
    autocorrelations: tuple[float, ...] = AUTOCORRELATIONS

    def windows_of(self, case: Case) -> int:
        return self.windows * (2 if case.name == BEST else 1)


class Played(msgspec.Struct, frozen=True):
    """One case under one autocorrelation: what each rule chose, a split or "" for none.

    first: at the end of each window, from that window alone, as after a move. later: from what
    PATIENCE windows without a move have gathered. within: the first choice of PATIENCE windows
    in a row. likeness: correlation of neighbouring slices' demand, prefill seconds over tokens.
    """

    case: Case
    autocorrelation: float
    likeness: float
    first: dict[str, list[str]]
    later: dict[str, list[str]]
    within: dict[str, list[str]]


Truths = dict[Case, dict[str, float]]
"""Case -> split -> requests a second in the long run."""


def truth(case: Case, prefill_nodes: int, windows: int, seed: int) -> float:
    """Requests a second of a split in the long run."""
    world = World(LAWS, case.work(0.3), prefill_nodes, seed)
    world.play(WARM_UP_S)
    before = world.done
    world.play(WARM_UP_S + windows * WINDOW_S)
    return (world.done - before) / (windows * WINDOW_S)


def record(case: Case, autocorrelation: float, windows: int, seed: int) -> list[SliceRecord]:
    """Slices of the present split."""
    world = World(LAWS, case.work(autocorrelation), case.prefill_nodes, seed)
    world.play(WARM_UP_S)
    watch = Watch(fleet_of(case, seed).prefill[0].coefficients, WINDOW_S / SLICES)
    world.watcher = watch
    # One slice more, which knows neither requests under way nor pauses of before; and one that
    # stays open.
    world.play(WARM_UP_S + windows * WINDOW_S + 2 * WINDOW_S / SLICES)
    accepted = LAWS.accepted
    return [
        msgspec.structs.replace(one, accepted_per_iteration=accepted)
        for one in watch.slices[1 : 1 + windows * SLICES]
    ]


def fleet_of(case: Case, seed: int) -> Fleet:
    """Nine nodes with what a warm-up taught of each."""
    random = Random(seed)
    nodes = tuple(
        NodeCapacity(f"n{i + 1}", fit(LAWS, i, random), MOST_RUNNING, L1_TOKENS)
        for i in range(len(SPEEDS))
    )
    split = Split(case.prefill_nodes, len(SPEEDS) - case.prefill_nodes)
    return Fleet(split, nodes[: case.prefill_nodes], nodes[case.prefill_nodes :])


def play(case: Case, autocorrelation: float, windows: int, seed: int) -> Played:
    slices = record(case, autocorrelation, windows, seed)
    fleet = fleet_of(case, seed)
    parts = [slices[i : i + SLICES] for i in range(0, len(slices), SLICES)]
    first: dict[str, list[str]] = {}
    later: dict[str, list[str]] = {}
    within: dict[str, list[str]] = {}
    for rule, config in RULES.items():
        early = [_look(fleet, part, config) for part in parts]
        chosen = {
            (end, kept): early[end] or _decide(fleet, parts[end - kept + 1 : end + 1], config)
            for kept in range(1, (PATIENCE if config.sound else 1) + 1)
            for end in range(kept - 1, len(parts))
        }
        seen = [kept if config.sound else 1 for kept in range(1, PATIENCE + 1)]
        first[rule] = [chosen[end, 1] for end in range(len(parts))]
        later[rule] = [chosen[end, seen[-1]] for end in range(PATIENCE - 1, len(parts))]
        within[rule] = [
            next((s for k, kept in enumerate(seen) if (s := chosen[start + k, kept])), "")
            for start in range(len(parts) - PATIENCE + 1)
        ]
    return Played(case, autocorrelation, _likeness(slices), first, later, within)


def _look(fleet: Fleet, window: list[SliceRecord], config: PlannerConfig) -> str:
    """What a rule does before the window's end."""
    looks = range(SLICES // 2, SLICES)
    for seen in looks if config.early else ():
        chosen = judge(fleet, window[:seen], window[:seen], config, looks=len(looks)).chosen
        if chosen is not None:
            return str(chosen)
    return ""


def _decide(fleet: Fleet, parts: list[list[SliceRecord]], config: PlannerConfig) -> str:
    """What a rule does at the end of the last of these windows."""
    evidence = [one for part in parts for one in part]
    chosen = judge(fleet, parts[-1], evidence, config).chosen
    return "" if chosen is None else str(chosen)


def all_played(plan: Plan, progress: Callable[[int, int], None]) -> tuple[list[Played], Truths]:
    """Every case under every autocorrelation, and every near split in the long run."""
    truths: Truths = {case: {} for case in CASES}
    with ProcessPoolExecutor(plan.jobs) as pool:
        playing = [
            pool.submit(play, case, likeness, plan.windows_of(case), plan.seed + 100 * index)
            for index, likeness in enumerate(plan.autocorrelations)
            for case in CASES
        ]
        knowing = [
            (case, nodes, pool.submit(truth, case, nodes, plan.truth_windows, plan.seed + 7))
            for case in CASES
            for nodes in _near(case)
        ]
        total = len(playing) + len(knowing)
        played = []
        for count, one in enumerate(playing, 1):
            played.append(one.result())
            progress(count, total)
        for count, (case, nodes, known) in enumerate(knowing, len(playing) + 1):
            truths[case][str(Split(nodes, len(SPEEDS) - nodes))] = known.result()
            progress(count, total)
    return played, truths


def _likeness(slices: list[SliceRecord]) -> float:
    """Correlation of neighbours."""
    demand = [one.service_s / one.output_tokens for one in slices]
    mean = sum(demand) / len(demand)
    spread = sum((d - mean) ** 2 for d in demand)
    return sum((a - mean) * (b - mean) for a, b in pairwise(demand)) / spread


def _near(case: Case) -> list[int]:
    """Splits that may be chosen, the present one included."""
    low = max(1, case.prefill_nodes - 3)
    return list(range(low, min(len(SPEEDS) - 1, case.prefill_nodes + 3) + 1))
