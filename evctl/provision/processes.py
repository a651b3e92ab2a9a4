"""Processes that outlive us: started detached, known by pid and start time, ended gently."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:  # 45 ms at run time, paid by whoever looks at processes
    import psutil

START_TIME_SLACK_S: Final = 1.5
"""Two readings of one start time differ by less: it is computed from the clock's boot time. No
pid comes round again in so short a time."""


Mark = tuple[str, str]


class ProcessRecord(msgspec.Struct, frozen=True):
    """Who a process is. start_time: seconds since the epoch, as psutil's create_time.

    mark: an option of its command line with its value, which no other process of ours has; then
    not even a pid reused at once is mistaken, and a clock that was set in between does no harm.
    """

    pid: int
    start_time: float
    mark: Mark | None = None


class Started(msgspec.Struct, frozen=True):
    """A process of ours, and the handle that collects its end."""

    record: ProcessRecord
    handle: subprocess.Popen[bytes]


def find(record: ProcessRecord) -> psutil.Process | None:
    """The live process of a record; None once it ended, also if its pid is another's now."""
    import psutil

    try:
        process = psutil.Process(record.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        if record.mark is not None:
            return process if _is_marked(process.cmdline(), record.mark) else None
        if abs(process.create_time() - record.start_time) > START_TIME_SLACK_S:
            return None
    except psutil.AccessDenied:
        return None  # another user's, so never ours
    except (psutil.NoSuchProcess, ValueError):
        return None
    return process


def find_all(mark: Mark) -> list[ProcessRecord]:
    """Every live process of this user that carries the mark, whoever recorded it, or nobody."""
    import psutil

    found, me = [], os.getuid()
    for process in psutil.process_iter(["pid", "cmdline", "create_time", "status", "uids"]):
        told = process.info
        ours = told["uids"] is not None and told["uids"].real == me
        lives = told["status"] != psutil.STATUS_ZOMBIE
        if ours and lives and _is_marked(told["cmdline"] or [], mark):
            found.append(ProcessRecord(told["pid"], told["create_time"], mark))
    return found


def _is_marked(words: Sequence[str], mark: Mark) -> bool:
    return mark in pairwise(words)


def start_detached(
    command: Sequence[str], log: Path, directory: Path, mark: Mark, extra_env: Mapping[str, str]
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
