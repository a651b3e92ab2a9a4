"""What the control plane of one cluster is given at its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from evctl.core.errors import ConfigError
from evctl.policy.planner import PlannerConfig, plus


class ControlSettings(msgspec.Struct, frozen=True):
    """directory: the cluster's state directory. nodes: all names. The rest is as in the cluster's
    configuration; cooldown_s: least time from the settling of a change of the split to a
    person's next one. tenants: those whose KV may be there. first_mode: of a cluster that nobody
    has set a mode of.
    """

    directory: Path
    cluster: str
    nodes: tuple[str, ...]
    split: str
    model: str
    block_tokens: int
    allow_replay: bool = False
    max_queued: int = 256
    node_late_after_s: float = 5.0
    node_lost_after_s: float = 20.0
    cooldown_s: float = 120.0
    first_mode: str = "auto"
    planner: PlannerConfig = plus()
    tenants: tuple[str, ...] = ("default",)
    fetch_ahead: bool = True
    suspect_after_s: dict[str, float] = {}
    warm_up_s: float = 0.0
    watch_drift: bool = True
    decode_context: bool = True
    routing: str = "predicted"
    shortest_first: bool = False
    prefill_ageing: float = 0.1
    append_tokens: int = 0
    listen_host: str = "127.0.0.1"


def planner_config(rules: str, **values: Any) -> PlannerConfig:
    """rules: plus or paper; values: fields of PlannerConfig."""
    config = PlannerConfig(**values)
    return plus(config) if rules == "plus" else config


def unusable_config(path: Path, why: str) -> ConfigError:
    """EV-1302: the resolved configuration is missing or not what this version writes."""
    return ConfigError(
        what=f"cannot serve from {path}",
        why=why,
        next_step="make the cluster's state with: evctl up",
        code="EV-1302",
    )
