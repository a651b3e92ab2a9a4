"""A cluster of stand-ins that start at once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_socket

from evctl.client import AdminClient
from evctl.config.cluster import ClusterConfig
from evctl.provision.converge import Convergence, Report, UpResult
from evctl.provision.driver import UnitState
from evctl.provision.local import LocalDriver, Programs
from evctl.provision.shutdown import DownResult, take_down

STAND_IN = [sys.executable, str(Path(__file__).with_name("stand_in.py"))]
PROGRAMS = Programs([*STAND_IN, "control"], [*STAND_IN, "engine"], [*STAND_IN, "models"])


def config(**changes: Any) -> ClusterConfig:
    values = {"name": "c", "nodes": 3, "split": "2P1D", "model": "random-4l256", **changes}
    return ClusterConfig.model_validate(values)


class Cluster:
    """A driver, and what was told."""

    def __init__(self) -> None:
        self.driver = LocalDriver("c", PROGRAMS)
        self.drivers = [self.driver]
        self.reports: list[Report] = []

    def up(
        self,
        wanted: ClusterConfig | None = None,
        only: tuple[str, ...] = (),
        interrupted: Callable[[], bool] = lambda: False,
        join_timeout_s: float = 20.0,
    ) -> UpResult:
        # A new driver each time, as each run of the command has.
        self.driver = LocalDriver("c", PROGRAMS)
        self.drivers.append(self.driver)
        return Convergence(
            self.driver,
            wanted or config(),
            connect=AdminClient,
            tell=self.reports.append,
            interrupted=interrupted,
            join_timeout_s=join_timeout_s,
        ).run(only)

    def down(
        self, purge: bool = False, interrupted: Callable[[], bool] = lambda: False
    ) -> DownResult:
        return take_down(
            self.driver,
            connect=AdminClient,
            tell=lambda unit, what: None,
            drain_timeout_s=5.0,
            purge=purge,
            interrupted=interrupted,
        )

    def end(self) -> None:
        """Stop everything, and collect the children of every driver, which are ours."""
        units = [unit.name for unit in self.driver.units()]
        for unit in units:
            self.driver.stop(unit, 5.0)
        for driver in self.drivers:
            for unit in {*units, "control", "n1", "n2", "n3", "n4"}:
                driver.is_running(unit)

    def pid(self, unit: str) -> int:
        found = next(u for u in self.driver.units() if u.name == unit)
        assert found.state is UnitState.RUNNING
        assert found.pid is not None
        return found.pid

    def kill(self, unit: str) -> None:
        pid = self.pid(unit)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while self.driver.is_running(unit):
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    pytest_socket.socket_allow_hosts(["127.0.0.1"], allow_unix_socket=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "s"))
    monkeypatch.setenv("STAND_IN_MODELS", str(tmp_path / "models"))
    cluster = Cluster()
    yield cluster
    cluster.end()


def what(result: UpResult) -> list[tuple[str, str]]:
    return [(change.action, change.unit) for change in result.changed]
