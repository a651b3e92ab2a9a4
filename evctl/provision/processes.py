"""Processes that outlive us: started detached, known by pid and start time, ended gently."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:  # 45 ms at run time, paid by whoever looks at processes
    import psutil

START_TIME_SLACK_S: Final = 1.5
"""Two readings of one start time differ by less: it is computed from the clock's boot time. No
pid comes round again in so short a time."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """Who a process is. start_time: seconds since the epoch, as psutil's create_time.

    mark: a word of its command line, so that not even a pid reused at once is mistaken.
    """

    pid: int
    start_time: float
    mark: str = ""


class Started(msgspec.Struct, frozen=True):
    """A process of ours, and the handle that collects its end."""

    record: ProcessRecord
    handle: subprocess.Popen[bytes]


def is_same(one: ProcessRecord, other: ProcessRecord) -> bool:
    """Whether two records are of one process."""
    return one.pid == other.pid and abs(one.start_time - other.start_time) < START_TIME_SLACK_S


def find(record: ProcessRecord) -> psutil.Process | None:
    """The live process of a record; None once it ended, also if its pid is another's now."""
    import psutil

    try:
        process = psutil.Process(record.pid)
        if abs(process.create_time() - record.start_time) > START_TIME_SLACK_S:
            return None
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if record.mark and record.mark not in process.cmdline():
            return None
    except psutil.AccessDenied:
        return None  # another user's, so never ours
    except psutil.NoSuchProcess:
        return None
    return process


def start_detached(
    command: Sequence[str], log: Path, directory: Path, mark: str, extra_env: Mapping[str, str]
) -> Started:
    """Start a process in a session of its own, with output appended to `log` (mode 0600).

    Raises OSError when it cannot be started.
    """
    import psutil

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        handle = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd=directory,
            env={**os.environ, **extra_env},
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    try:
        start_time = psutil.Process(handle.pid).create_time()
    except psutil.NoSuchProcess:
        start_time = 0.0
    return Started(ProcessRecord(handle.pid, start_time, mark), handle)


def end(record: ProcessRecord, timeout_s: float, kill_timeout_s: float = 5.0) -> bool:
    """SIGTERM, and SIGKILL after timeout_s. False when there was nothing to end."""
    import psutil

    process = find(record)
    if process is None:
        return False
    try:
        process.terminate()  # psutil compares the start time again before it signals
        if process.status() == psutil.STATUS_STOPPED:
            process.resume()  # else it could not even end
        if not _ended(process, timeout_s):
            process.kill()
            _ended(process, kill_timeout_s)
    except psutil.NoSuchProcess:
        pass
    return True


def _ended(process: psutil.Process, timeout_s: float) -> bool:
    """Wait; a zombie that somebody else has to reap has ended."""
    import psutil

    deadline_s = timeout_s
    while deadline_s > 0:
        try:
            process.wait(0.05)
            return True
        except psutil.TimeoutExpired:
            deadline_s -= 0.05
            if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
                return True
    return False
