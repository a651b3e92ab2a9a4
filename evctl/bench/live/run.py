"""`evctl bench live`, without the command line."""

from __future__ import annotations

import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from evctl.bench.live.report import LiveMeasurement, rows
from evctl.bench.live.testbed import Testbed
from evctl.bench.live.waits import most_loaded_over_average, node_waits
from evctl.bench.replay import replay
from evctl.bench.report import BenchRun
from evctl.core.errors import UsageError
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
Told = Callable[[str], None]


class Plan(msgspec.Struct, frozen=True):
    """arms: of ARMS. seeds: each policy runs once with each. agents, requests, gap_cap_s: of a
    replay. l1_tokens, l2_tokens: a node's memory."""

    arms: tuple[str, ...] = tuple(ARMS)
    seeds: tuple[int, ...] = (1, 2, 3)
    trace: str = "sample"
    split: str = "3P1D"
    model: str = "random-6l384"
    agents: int = 12
    requests: int = 160
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


def measure(plan: Plan, told: Told = lambda _: None) -> LiveMeasurement:
    """Replay under every policy and seed in turn, each on a cluster of its own, so that no
    policy finds what another one has left. Raises EvctlError."""
    plan.check()
    began_s, load = time.monotonic(), os.getloadavg()[0]
    runs: list[BenchRun] = []
    for seed in plan.seeds:
        for arm in plan.arms:
            told(f"{arm}, seed {seed}")
            with tempfile.TemporaryDirectory(prefix="evctl-live-") as name:
                runs.append(_run(plan, arm, seed, Path(name)))
    return LiveMeasurement(
        subject="live",
        peer=OURS if OURS in plan.arms else "",
        input=f"{plan.trace}: {plan.agents} agents, {plan.requests} requests on {plan.split} of "
        f"{plan.model}, seeds {', '.join(map(str, plan.seeds))}",
        repeats=len(plan.seeds),
        wall_s=round(time.monotonic() - began_s, 1),
        load=(round(load, 2), round(os.getloadavg()[0], 2)),
        machine=f"{platform.machine()}, {os.cpu_count()} CPUs",
        rows=rows(runs, OURS),
        runs=runs,
    )


def _run(plan: Plan, arm: str, seed: int, folder: Path) -> BenchRun:
    split = parse_split(plan.split)
    config = {
        **BASE,
        "nodes": split.nodes,
        "split": plan.split,
        "model": plan.model,
        "l1_tokens": plan.l1_tokens,
        "l2_tokens": plan.l2_tokens,
        **ARMS[arm],
    }
    with Testbed(folder, config) as bed:
        gateway = bed.status().gateway
        report = replay(
            plan.trace,
            gateway,
            agents=plan.agents,
            max_requests=plan.requests,
            gap_cap_s=plan.gap_cap_s,
            seed=seed,
            policy=arm,
        )
        spread = most_loaded_over_average(node_waits(bed.admin.address))
    (run,) = report.runs
    return msgspec.structs.replace(run, most_loaded_over_average=spread)
