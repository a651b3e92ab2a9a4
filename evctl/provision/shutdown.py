"""`down`: lets a cluster finish what runs, then ends its processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import msgspec

from evctl.core.errors import EvctlError
from evctl.provision.driver import CONTROL, ClusterDriver
from evctl.provision.plan import plan_down

POLL_S: Final = 0.1
STOP_TIMEOUT_S: Final = 10.0


class Stoppable(Protocol):
    """What `down` asks of a running control plane; the admin client is one."""

    def stop(self, *, drain: bool) -> None: ...

    def call_off_stop(self) -> bool: ...


class DownResult(msgspec.Struct, frozen=True):
    """stopped: units ended, in order. drained: whether the control plane ended by itself. serves:
    the interrupt came while it drained, and requests are taken again."""

    stopped: tuple[str, ...]
    drained: bool
    purged: bool = False
    interrupted: bool = False
    serves: bool = False


class _CalledOffError(Exception):
    """The user does not want it any more, while requests were let finish."""


def take_down(
    driver: ClusterDriver,
    *,
    connect: Callable[[Path], Stoppable],
    tell: Callable[[str, str], None],
    drain_timeout_s: float,
    purge: bool = False,
    interrupted: Callable[[], bool] = lambda: False,
) -> DownResult:
    """End everything of the cluster that runs; repeat it and nothing happens.

    tell: unit, what happens to it. drain_timeout_s: how long requests in flight may take; 0 ends
    them at once. interrupted: an interrupt while they finish calls the stop off, and the cluster
    serves on; a later one ends this after the unit that is being stopped.
    """
    drained = False
    stopped: list[str] = []
    for unit in plan_down(driver.units()):
        if interrupted():
            return DownResult(tuple(stopped), drained, interrupted=True)
        if unit == CONTROL:
            try:
                drained = _drain(driver, connect, tell, drain_timeout_s, interrupted)
            except _CalledOffError:
                return DownResult((), False, interrupted=True, serves=True)
        driver.stop(unit, STOP_TIMEOUT_S)
        tell(unit, "drained and stopped" if unit == CONTROL and drained else "stopped")
        stopped.append(unit)
    if purge:
        driver.purge()
        tell("files", "removed")
    else:
        driver.note_down()
    return DownResult(tuple(stopped), drained, purged=purge)


def _drain(
    driver: ClusterDriver,
    connect: Callable[[Path], Stoppable],
    tell: Callable[[str, str], None],
    timeout_s: float,
    interrupted: Callable[[], bool],
) -> bool:
    """Ask the control plane to finish and end; whether it did. Raises _CalledOffError."""
    socket_path = driver.admin_socket()
    if socket_path is None:
        return False
    client = connect(socket_path)
    try:
        client.stop(drain=timeout_s > 0)
    except EvctlError as error:
        tell(CONTROL, f"cannot be asked to drain: {error.why}")
        return False
    tell(CONTROL, "drains")
    asked = False
    deadline = time.monotonic() + max(timeout_s, STOP_TIMEOUT_S)
    while driver.is_running(CONTROL):
        if time.monotonic() > deadline:
            tell(CONTROL, f"still busy after {timeout_s:g} s; what runs is ended")
            return False
        if interrupted() and not asked:
            asked = True
            if _called_off(client, tell):
                raise _CalledOffError
        time.sleep(POLL_S)
    return True


def _called_off(client: Stoppable, tell: Callable[[str, str], None]) -> bool:
    """Whether it takes requests again. It may have come to its end meanwhile."""
    try:
        serves = client.call_off_stop()
    except EvctlError as error:
        tell(CONTROL, f"the stop cannot be called off: {error.why}")
        return False
    tell(CONTROL, "takes requests again" if serves else "has come to its end already")
    return serves
