"""From what is observed to what has to change. Pure, and the same for every driver."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec

from evctl.core.errors import UnreachableError
from evctl.core.status import ClusterStatus
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
    """One thing to do. action: create, update, fetch, start, restart or stop. disruptive: it ends
    a process that serves."""

    unit: str
    step: Step
    action: str
    why: str
    disruptive: bool = False

    def __str__(self) -> str:
        return f"{self.action} {self.unit}: {self.why}"


def lost_nodes(status: ClusterStatus | None) -> dict[str, float]:
    """Nodes that the control plane has given up, and for how long each has been silent."""
    nodes = status.nodes if status is not None else ()
    return {node.name: node.age_s for node in nodes if node.state == "lost"}


def plan_up(
    config: ClusterConfig,
    observed: Observed,
    only: Collection[str] = (),
    lost: Mapping[str, float] | None = None,
) -> tuple[Change, ...]:
    """What `up` has to do, in order. only: leave other nodes as they are. lost: as lost_nodes."""
    changes = []
    if observed.missing or observed.outdated:
        why = ", ".join((*observed.missing, *observed.outdated))
        action = "create" if observed.missing else "update"
        changes.append(Change("files", Step.FILES, action, why))
    if not observed.model_ready:
        changes.append(Change("model", Step.MODEL, "fetch", config.model))
    changes.extend(_control(config, observed))
    for name in config.node_names:
        if not only or name in only:
            unit = observed.nodes[name]
            changes.extend(_to_run(unit, Step.ENGINE) or _hung(unit, lost or {}))
    if not only:
        changes.extend(_unwanted(config, observed))
    return tuple(changes)


def port_obstacle(
    config: ClusterConfig, observed: Observed, changes: Collection[Change]
) -> UnreachableError | None:
    """EV-1371, when a control plane that these changes start could not have the port that it
    insists on. To be asked before the one that serves is stopped."""
    gateway = config.gateway
    starts = any(change.step is Step.CONTROL for change in changes)
    if not (starts and gateway.port_strict and observed.port_problem):
        return None
    return UnreachableError(
        what=f"the gateway of cluster {config.name} cannot have port {gateway.port}",
        why=f"{observed.port_problem}, and port_strict forbids another one; nothing was changed",
        next_step="end what uses the port, or choose another one: gateway.port",
        code="EV-1371",
    )


def _control(config: ClusterConfig, observed: Observed) -> list[Change]:
    """A gateway that had to take another port goes back to its own when that is free."""
    changes = _to_run(observed.control, Step.CONTROL)
    wanted, serves = config.gateway.port, observed.gateway_port
    if changes or not wanted or serves in (None, wanted) or observed.port_problem:
        return changes
    why = f"gateway.port {wanted} is free now, and it serves on {serves}"
    return [Change(CONTROL, Step.CONTROL, "restart", why, disruptive=True)]


def _hung(unit: Unit, lost: Mapping[str, float]) -> list[Change]:
    """A process that lives and says nothing any more."""
    if unit.name not in lost:
        return []
    why = f"lost: silent for {lost[unit.name]:.0f} s, though its process {unit.pid} lives"
    return [Change(unit.name, Step.ENGINE, "restart", why, disruptive=True)]


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
