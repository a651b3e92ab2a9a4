"""`evctl bench live`, without the command line.

Routing shares work between nodes, so each must have hardware of its own to show what it does: by
default engines are paced (decision 012). Each policy is given the same execution-time models,
learned once under the same trace, so that no run measures how fast something is learned.
"""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from evctl.bench.live.moves import BY, unfitted
from evctl.bench.live.planned import PACE
from evctl.bench.live.report import LiveMeasurement, rows
from evctl.bench.live.testbed import Testbed
from evctl.bench.live.waits import most_loaded_over_average, node_waits
from evctl.bench.replay import replay
from evctl.bench.report import BenchRun
from evctl.core.errors import EvctlError, UsageError
from evctl.core.split import parse_split

APPEND_TOKENS: Final = 64
"""What a decode node may compute itself, where appending is on: 1,024 of a trace at 1/16."""
ARMS: Final[dict[str, dict[str, Any]]] = {
    "predicted": {"routing": "predicted"},
    "cache-aware": {"routing": "cache-aware"},
    "session": {"routing": "session"},
    "round-robin": {"routing": "round-robin"},
    "predicted+shortest-first": {"routing": "predicted", "shortest_first": True},
    "predicted+append": {"routing": "predicted", "append_tokens": APPEND_TOKENS},
    "predicted+both": {
        "routing": "predicted",
        "shortest_first": True,
        "append_tokens": APPEND_TOKENS,
    },
}
"""Policy -> keys of the cluster file. What a file does not say is off in all of them."""
OURS: Final = "predicted"
BASE: Final[dict[str, Any]] = {
    "block_tokens": 4,
    "transfer": "shm",
    "shortest_first": False,
    "append_tokens": 0,
    "warm_up_s": 0.0,
}
WARM_UP_S: Final = 30.0
LEARNING_REQUESTS: Final = 80
"""Of a replay to learn from."""
LEARNING_REPLAYS: Final = 8
"""After which nodes that have no model are an error."""
Told = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """arms: of ARMS. seeds: each policy runs once with each. paced: whether iterations last as
    PACE says, or as long as this machine takes. model: a small one where that is waited for
    anyway. agents, requests, gap_cap_s: of a replay. l1_tokens, l2_tokens: a node's memory."""

    arms: tuple[str, ...] = tuple(ARMS)
    seeds: tuple[int, ...] = (1, 2, 3)
    trace: str = "sample"
    split: str = "3P1D"
    paced: bool = True
    model: str = ""
    agents: int = 12
    requests: int = 240
    gap_cap_s: float = 1.0
    l1_tokens: int = 32768
    l2_tokens: int = 131072

    def check(self) -> None:
        """Raises UsageError (EV-1645) for a policy that there is not."""
        unknown = [name for name in self.arms if name not in ARMS]
        if unknown or not self.arms:
            raise UsageError(
                what=f"there is no policy {unknown[0]!r}" if unknown else "no policy is named",
                why=f"the policies are {', '.join(ARMS)}",
                next_step="name some of them, or leave the option out for all",
                code="EV-1645",
            )
        parse_split(self.split)

    @property
    def engines(self) -> str:
        """What runs, in words."""
        return f"{self.served} on {'paced engines' if self.paced else 'engines of this machine'}"

    @property
    def served(self) -> str:
        return self.model or ("random-2l128" if self.paced else "random-6l384")

    @property
    def config(self) -> dict[str, Any]:
        """Keys of a cluster file that are the same under every policy."""
        return {
            **BASE,
            "nodes": parse_split(self.split).nodes,
            "split": self.split,
            "model": self.served,
            "l1_tokens": self.l1_tokens,
            "l2_tokens": self.l2_tokens,
            **({"pace": PACE} if self.paced else {}),
        }


def measure(plan: Plan, told: Told = lambda _: None) -> LiveMeasurement:
    """Replay under every policy and seed in turn, each on a cluster of its own, so that no
    policy finds what another one has left. Raises EvctlError."""
    plan.check()
    began_s, load = time.monotonic(), os.getloadavg()[0]
    runs: list[BenchRun] = []
    with tempfile.TemporaryDirectory(prefix="evctl-live-") as name:
        times = learn(plan, Path(name), told)
        for seed in plan.seeds:
            for number, arm in enumerate(plan.arms):
                told(f"{arm}, seed {seed}")
                run = _run(plan, arm, seed, Path(name) / f"{seed}-{number}", times)
                told(f"{arm}, seed {seed}: mean E2E {run.e2e_s.mean:.2f} s, {run.failed} failed")
                runs.append(run)
    return LiveMeasurement(
        subject="live",
        peer=OURS if OURS in plan.arms else "",
        input=f"{plan.trace}: {plan.agents} agents, {plan.requests} requests on {plan.split}, "
        f"{plan.engines}, seeds {', '.join(map(str, plan.seeds))}",
        repeats=len(plan.seeds),
        wall_s=round(time.monotonic() - began_s, 1),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        machine=f"{platform.machine()}, {os.cpu_count()} CPUs",
        rows=rows(runs, OURS),
        runs=runs,
    )


def learn(plan: Plan, folder: Path, told: Told) -> Path:
    """Serve the trace until every node has a model of its times; the folder of these. Raises
    EvctlError (EV-1647)."""
    with Testbed(folder, {**plan.config, "warm_up_s": WARM_UP_S}) as bed:
        gateway = bed.status().gateway
        for number in range(LEARNING_REPLAYS):
            told("learning how long iterations take")
            _replay(plan, gateway, -1 - number, LEARNING_REQUESTS, "learning")
            if not unfitted(bed):
                break
        else:
            raise EvctlError(
                what="the execution-time model was not fitted in time",
                why=f"{', '.join(unfitted(bed))} have none after {LEARNING_REPLAYS} replays",
                next_step="give more agents, or a trace with longer answers",
                code="EV-1647",
            )
    return bed.times


def _run(plan: Plan, arm: str, seed: int, folder: Path, times: Path) -> BenchRun:
    folder.mkdir()
    bed = Testbed(folder, {**plan.config, **ARMS[arm]})
    shutil.copytree(times, bed.times)
    with bed:
        if nodes := unfitted(bed):
            raise EvctlError(
                what="an execution-time model that was learned was not taken over",
                why=f"{', '.join(nodes)} of the cluster of {arm} have none",
                next_step="repeat the bench; if it fails again, report it",
                code="EV-1647",
            )
        bed.admin.set_split(plan.split, by=BY, reason="to compare routing alone", force=True)
        run = _replay(plan, bed.status().gateway, seed, plan.requests, arm)
        spread = most_loaded_over_average(node_waits(bed.admin.address))
    return msgspec.structs.replace(run, most_loaded_over_average=spread)


def _replay(plan: Plan, gateway: str, seed: int, requests: int, policy: str) -> BenchRun:
    report = replay(
        plan.trace,
        gateway,
        agents=plan.agents,
        max_requests=requests,
        gap_cap_s=plan.gap_cap_s,
        seed=seed,
        policy=policy,
    )
    (run,) = report.runs
    return run
