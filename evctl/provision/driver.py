"""The driver port: everything that depends on where a cluster's processes run.

A driver knows files, processes and logs of one cluster; it decides nothing. What to do follows
from what it observes (`plan.py`), and is done step by step (`converge.py`). The local driver is
the first one; another reaches its nodes over SSH behind the same port.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:  # the schema costs 60 ms, and only `up` reads it
    from evctl.config.cluster import ClusterConfig


CONTROL: Final = "control"
"""Name of the control plane among the units of a cluster; no node may have it."""

Say = Callable[[str], None]
"""Takes one line about the progress of a long step."""


class UnitState(StrEnum):
    ABSENT = "absent"
    RUNNING = "running"
    ENDED = "ended"


class Unit(msgspec.Struct, frozen=True):
    """One process of the cluster. drift: how the config it runs with differs from the wanted
    one, empty when it does not."""

    name: str
    state: UnitState
    pid: int | None = None
    drift: str = ""


class Observed(msgspec.Struct, frozen=True):
    """What there is. missing, outdated: files to make, and to write anew. nodes: also those no
    longer wanted. gateway_port: where the running control plane serves, None if that is unknown.
    port_problem: why one that starts now could not have the wanted port, "" if it could, or has
    it already."""

    missing: tuple[str, ...]
    model_ready: bool
    control: Unit
    nodes: dict[str, Unit]
    outdated: tuple[str, ...] = ()
    gateway_port: int | None = None
    port_problem: str = ""


class LogReader(Protocol):
    """One unit's log, read forward."""

    def tail(self, count: int | None) -> list[str]:
        """The last `count` lines, or all; read_new goes on from there."""
        ...

    def read_new(self) -> list[str]:
        """Whole lines that came since the last call; never waits."""
        ...


class ClusterDriver(Protocol):
    """Files and processes of one cluster. Every method ends in bounded time and may be repeated:
    what is already so stays so."""

    def observe(self, config: ClusterConfig) -> Observed: ...

    def prepare(self, config: ClusterConfig) -> None:
        """Make directories, keys and secret that are missing; write the resolved config."""
        ...

    def fetch_model(self, config: ClusterConfig, say: Say) -> None:
        """Put the model where nodes read it. Raises EvctlError (EV-1713)."""
        ...

    def start_control(self, config: ClusterConfig) -> int:
        """Start it and wait until it listens; returns its pid. Raises EvctlError (EV-1711)."""
        ...

    def let_control_start(self) -> None:
        """Wait while a control plane that another one started is too young to listen: it is not
        to be taken for one that has lost its address. Never raises."""
        ...

    def await_control(self) -> None:
        """Wait until the running control plane listens, which it may not do yet when whoever
        started it was interrupted. Raises EvctlError (EV-1711)."""
        ...

    def start_node(self, config: ClusterConfig, node: str) -> int:
        """Start an engine and return its pid at once. Raises EvctlError (EV-1711)."""
        ...

    def stop(self, unit: str, timeout_s: float) -> bool:
        """End a unit, by force after timeout_s. False when it did not run. Never touches a
        process that is not this cluster's."""
        ...

    def is_running(self, unit: str) -> bool: ...

    def last_words(self, unit: str) -> str:
        """The last lines of a unit's log, for an error."""
        ...

    def units(self) -> list[Unit]:
        """Processes that were ever started here, control plane first, whatever the config."""
        ...

    def admin_socket(self) -> Path | None:
        """A unix socket on this machine that leads to the admin API; None before a first start."""
        ...

    def open_log(self, unit: str) -> LogReader: ...

    def public_key(self, node: str) -> str:
        """z85 of the key that the node proves itself with; "" where there is none."""
        ...

    def note_down(self) -> None:
        """Remember that the cluster was stopped on purpose, until it starts again."""
        ...

    def down_since_s(self) -> float | None:
        """When that was, in seconds since the epoch; None where it was not stopped so."""
        ...

    def purge(self) -> None:
        """Remove all files of the cluster. Nothing may run."""
        ...

    def locked(self, purpose: str) -> AbstractContextManager[None]:
        """Hold the cluster for one change. Raises ConflictError (EV-1712) naming who has it."""
        ...
