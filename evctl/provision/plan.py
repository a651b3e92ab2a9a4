"""From what is observed to what has to change. Pure, and the same for every driver."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from evctl.provision.driver import CONTROL, Observed, Unit, UnitState

if TYPE_CHECKING:  # the schema costs 60 ms, and only `up` reads it
    from evctl.config.cluster import ClusterConfig


class Step(IntEnum):
    """The steps of `up`, in their order."""

    FILES = 1
    MODEL = 2
    CONTROL = 3
    ENGINE = 4
    JOINED = 5

    @property
    def label(self) -> str:
        return f"[{self.value}/{len(Step)} {self.name.lower()}]"


class Change(msgspec.Struct, frozen=True):
    """One thing to do. action: create, fetch, start, restart or stop. disruptive: it ends a
    process that serves."""

    unit: str
    step: Step
    action: str
    why: str
    disruptive: bool = False

    def __str__(self) -> str:
        return f"{self.action} {self.unit}: {self.why}"


def plan_up(
    config: ClusterConfig, observed: Observed, only: Collection[str] = ()
) -> tuple[Change, ...]:
    """What `up` has to do, in order. only: leave other nodes as they are."""
    changes = []
    if observed.missing:
        why = ", ".join(observed.missing)
        changes.append(Change("files", Step.FILES, "create", why))
    if not observed.model_ready:
        changes.append(Change("model", Step.MODEL, "fetch", config.model))
    changes.extend(_to_run(observed.control, Step.CONTROL))
    for name in config.node_names:
        if not only or name in only:
            changes.extend(_to_run(observed.nodes[name], Step.ENGINE))
    if not only:
        changes.extend(_unwanted(config, observed))
    return tuple(changes)


def _to_run(unit: Unit, step: Step) -> list[Change]:
    if unit.state is UnitState.ABSENT:
        return [Change(unit.name, step, "start", "not started yet")]
    if unit.state is UnitState.ENDED:
        return [Change(unit.name, step, "start", f"its process {unit.pid} ended")]
    if unit.drift:
        return [Change(unit.name, step, "restart", unit.drift, disruptive=True)]
    return []


def _unwanted(config: ClusterConfig, observed: Observed) -> list[Change]:
    return [
        Change(name, Step.ENGINE, "stop", "no longer in the config", disruptive=True)
        for name, unit in observed.nodes.items()
        if name not in config.node_names and unit.state is UnitState.RUNNING
    ]


def plan_down(units: list[Unit]) -> tuple[str, ...]:
    """Names of what has to be stopped: the control plane first, since it drains."""
    running = [unit.name for unit in units if unit.state is UnitState.RUNNING]
    return tuple(sorted(running, key=lambda name: (name != CONTROL, name)))
