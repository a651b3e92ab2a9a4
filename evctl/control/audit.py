"""The full audit of a state that goes on changing: a copy of the process recounts it.

An audit looks at everything at one moment and takes seconds on a large tree. A forked child has
that moment for itself, while this process goes on serving; what it pays is the fork (page tables
of its memory). A small state is audited on the spot, which costs less.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
import warnings
from typing import Final

import msgspec

from evctl.core.errors import EvctlError
from evctl.core.kv_status import KvCheck
from evctl.policy.state import ClusterState, check

LIMIT_S: Final = 300
"""A child that takes longer is ended by the system."""
MOST_PROBLEMS: Final = 1_000
SMALL: Final = 500
"""Runs, branches and requests together that are audited on the spot: some milliseconds."""
MOST_FILES: Final = 65_536
_MOST_BYTES: Final = 4_000_000
_CHUNK: Final = 65_536


class Audit:
    """One audit at a time: who asks while one runs gets the next one."""

    def __init__(self, state: ClusterState, *, small: int = SMALL) -> None:
        self._state = state
        self._small = small
        self._turn = asyncio.Lock()

    async def run(self) -> KvCheck:
        """Raises EvctlError (EV-1357) when it did not come to an end."""
        async with self._turn:
            if self._size() <= self._small:
                return _checked(self._state)
            return await self._apart()

    def _size(self) -> int:
        directory = self._state.directory
        return directory.tree.runs + len(directory.ledger.branches) + len(self._state.requests)

    async def _apart(self) -> KvCheck:
        began_s = time.perf_counter()
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Newer Pythons warn of a fork beside threads. The child takes no lock of theirs: it
            # computes, writes to its pipe and ends.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _child(self._state, writing)
        os.close(writing)
        paused_s = time.perf_counter() - began_s
        try:
            answer = await _read(reading)
        finally:
            os.close(reading)
            # It has closed its end, so it is ending; or nobody waits for its answer any more.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        found = _decoded(answer)
        if found is None:
            raise EvctlError(
                what="the audit did not come to an end",
                why=f"its process ended without an answer, or took more than {LIMIT_S} s",
                next_step="evctl logs control --tail 20; then evctl kv check again",
                code="EV-1357",
            )
        seconds = time.perf_counter() - began_s
        return msgspec.structs.replace(found, seconds=seconds, paused_s=paused_s)


def _checked(state: ClusterState) -> KvCheck:
    began_s = time.perf_counter()
    directory = state.directory
    problems = check(state)
    seconds = time.perf_counter() - began_s
    return KvCheck(
        problems=tuple(problems[:MOST_PROBLEMS]),
        found=len(problems),
        branches=len(directory.ledger.branches),
        requests=len(state.requests),
        runs=directory.tree.runs,
        blocks=directory.tree.blocks,
        copies=sum(sum(node.classes) for node in directory.nodes.values()),
        seconds=seconds,
        paused_s=seconds,
    )


def _child(state: ClusterState, writing: int) -> None:
    """Never returns. It has a copy of every file and signal handler of its parent, and may not
    keep a socket or a lock of it alive."""
    try:
        signal.alarm(LIMIT_S)
        for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, writing)
        os.closerange(writing + 1, MOST_FILES)
        gc.disable()  # collecting would touch, and so copy, every page
        left = memoryview(msgspec.json.encode(_checked(state)))
        while left:
            left = left[os.write(writing, left) :]
    finally:
        os._exit(0)


def _decoded(answer: bytes) -> KvCheck | None:
    """None where the answer is missing or cut off."""
    try:
        return msgspec.json.decode(answer, type=KvCheck)
    except msgspec.DecodeError:
        return None


async def _read(reading: int) -> bytes:
    """All that comes until the other end is closed; b"" when it is too much or cut off."""
    loop = asyncio.get_running_loop()
    content = bytearray()
    ended: asyncio.Future[None] = loop.create_future()

    def more() -> None:
        chunk = os.read(reading, _CHUNK)
        content.extend(chunk)
        if (not chunk or len(content) > _MOST_BYTES) and not ended.done():
            ended.set_result(None)

    os.set_blocking(reading, False)
    loop.add_reader(reading, more)
    try:
        async with asyncio.timeout(LIMIT_S + 10):
            await ended
    except TimeoutError:
        return b""
    finally:
        loop.remove_reader(reading)
    return bytes(content) if len(content) <= _MOST_BYTES else b""
