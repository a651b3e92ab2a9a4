"""Whether an engine is still there: by its words, or by its process where that is local."""

from __future__ import annotations

from typing import Final

import msgspec
import psutil

from evctl.control.statedir import NodeProcess, StateDirectory

LOOK_AFTER_S: Final = 0.5
"""Who spoke since then is alive; whose process ends is missed for little longer."""

START_TOLERANCE_S = 2.0
"""The time of boot, from which a process's start is reckoned, is only known in whole seconds."""


def why_gone(process: NodeProcess) -> str:
    """Empty while that very process runs; else what became of it. Its pid may belong to another by
    now, or to a zombie that nobody has waited for."""
    try:
        found = psutil.Process(process.pid)
        started_s = found.create_time()
        status = found.status()
    except psutil.NoSuchProcess:
        return f"its process {process.pid} ended"
    except (psutil.AccessDenied, OSError):
        return ""  # it cannot be looked at now
    if abs(started_s - process.start_time) > START_TOLERANCE_S:
        return f"its process {process.pid} ended, and another one has that number now"
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):
        return f"its process {process.pid} ended"
    return ""


class Loss(msgspec.Struct, frozen=True):
    """An engine that is given up. may_wake: it is only silent, and may speak again."""

    reason: str
    may_wake: bool


class Liveness:
    """Judges silence. Engines whose process nobody recorded are judged by silence alone."""

    def __init__(self, directory: StateDirectory, lost_after_s: float) -> None:
        self._directory = directory
        self._lost_after_s = lost_after_s

    def process_of(self, node: str) -> NodeProcess | None:
        """The recorded process of an engine that says Hello now. To be kept with the engine: when
        it dies, its successor's may stand in the record before anybody looks. None where nobody
        recorded one, or the record is of an earlier one."""
        process = self._directory.node_process(node)
        return None if process is None or why_gone(process) else process

    def examine(self, process: NodeProcess | None, silent_s: float) -> Loss | None:
        """None while the engine of that process counts as alive."""
        if silent_s <= LOOK_AFTER_S:
            return None
        if process is not None and (why := why_gone(process)):
            return Loss(why, may_wake=False)
        if silent_s > self._lost_after_s:
            return Loss(f"it was silent for {silent_s:.1f} s", may_wake=True)
        return None
