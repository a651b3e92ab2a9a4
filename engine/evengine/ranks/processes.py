"""The ranks of a node as processes: started, met, watched and ended by their lead."""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from evctl.core.errors import EvctlError
from evengine.ranks.link import Link, LinkClosedError

START_S = 120.0
"""For a rank to import torch, map the weights and pass the self-check beside all others."""
MEET_S = 60.0
"""A rank that is so far behind in one layer is taken for stuck."""
END_S = 2.0
"""For a rank to notice that its lead is done."""


T = TypeVar("T")


class RankProcess:
    """One child: rank number, process and the lead's end of its link."""

    def __init__(self, rank: int, ranks: int, exchange: int, wait_s: float) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "evengine.rank", "--rank", str(rank)]
            command += ["--of", str(ranks), "--lead", str(os.getpid())]
            command += ["--link", str(theirs.fileno()), "--exchange", str(exchange)]
            # Only what is named here is inherited: no listening socket, no lock of the segment.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(), exchange)
            )
        self.link = Link(ours, wait_s)

    def how_it_ended(self) -> str:
        try:
            status = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            return "closed its link"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"


class RankProcesses:
    """Ranks 1 .. ranks - 1 of `node`; the process that makes this is rank 0, their lead.

    Made in the main thread: the kernel kills a rank when the thread that started it ends.
    `failure` is the first thing that went wrong, after which every meeting raises it. `meet` and
    `tell` are called from one thread at a time.
    """

    def __init__(self, node: str, ranks: int, wait_s: float = MEET_S) -> None:
        self.node = node
        self.ranks = ranks
        self.failure: EvctlError | None = None
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._closing = False
        self._exchange = os.memfd_create("evengine-ranks", os.MFD_CLOEXEC) if ranks > 1 else -1
        self._children = [
            RankProcess(rank, ranks, self._exchange, START_S) for rank in range(1, ranks)
        ]
        self._watcher: threading.Thread | None = None

    @property
    def pids(self) -> list[int]:
        return [child.process.pid for child in self._children]

    def share_memory(self, size_bytes: int) -> memoryview:
        """Memory that every rank maps; before any of them is set up."""
        os.ftruncate(self._exchange, size_bytes)
        return memoryview(mmap.mmap(self._exchange, size_bytes))

    # ------------------------------------------------------------ together

    def tell(self, payload_of: Callable[[int], bytes]) -> None:
        """Send each rank its frame. Raises the failure."""
        for child in self._children:
            self._do(child, partial(child.link.send, payload_of(child.rank)))

    def meet(self) -> None:
        """Wait until every rank is here, then let all go on. Raises the failure."""
        for child in self._children:
            if self._do(child, child.link.receive):
                raise self._fail(child.rank, "is out of step")
        for child in self._children:
            self._do(child, child.link.send)

    def answers(self) -> list[bytearray]:
        """One frame of each rank; what they say once they are set up. From here on they are
        quick."""
        answers = [self._do(child, child.link.receive) for child in self._children]
        for child in self._children:
            child.link.patience(self._wait_s)
        return answers

    # ------------------------------------------------------------ life and death

    def watch(self, on_failure: Callable[[], None]) -> None:
        """From now on a rank's end is a failure at once, and not only at the next meeting.
        on_failure: called from a thread of its own, which ends every wait on the other ranks."""
        if self._children:
            self._watcher = threading.Thread(
                target=self._watch, args=(on_failure,), name="ranks", daemon=True
            )
            self._watcher.start()

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """End all ranks and collect them. Idempotent."""
        with self._lock:
            self._closing = True
        for child in self._children:
            child.link.interrupt()
        for child in self._children:
            try:
                child.process.wait(END_S)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        if self._watcher is not None:
            self._watcher.join()
        for child in self._children:
            child.link.close()
        if self._exchange >= 0:
            os.close(self._exchange)
            self._exchange = -1

    def _watch(self, on_failure: Callable[[], None]) -> None:
        poller = select.poll()
        watched = {os.pidfd_open(child.process.pid): child for child in self._children}
        for descriptor in watched:
            poller.register(descriptor, select.POLLIN)
        first = watched[poller.poll()[0][0]]
        for descriptor in watched:
            os.close(descriptor)
        with self._lock:
            if self._closing:
                return
        self._fail(first.rank, first.how_it_ended())
        for child in self._children:
            child.link.interrupt()
        on_failure()

    def _do(self, child: RankProcess, action: Callable[[], T]) -> T:
        self.raise_failure()
        try:
            return action()
        except TimeoutError as error:
            waited = f"did not answer within {child.link.wait_s:g} s"
            raise self._fail(child.rank, waited) from error
        except LinkClosedError as error:
            self.raise_failure()  # the watcher ended the wait: another rank is to blame
            raise self._fail(child.rank, child.how_it_ended()) from error

    def _fail(self, rank: int, why: str) -> EvctlError:
        with self._lock:
            if self.failure is None:
                self.failure = EvctlError(
                    what=f"engine {self.node} ends: it has lost rank {rank} of {self.ranks}",
                    why=f"rank {rank} {why}",
                    next_step="see what that rank wrote to this log, then start the engine again",
                    code="EV-2012",
                )
            return self.failure
