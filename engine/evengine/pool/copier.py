"""Moves and checks the bytes of whole batches of blocks, on a thread of its own.

Three jobs: keep (L1 -> L2), restore (L2 -> L1) and accept (a slot that was read from a peer, by
a backend that has not summed up the bytes itself). The engine's thread sees to it that nobody
else uses the slots meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from evengine.pool.headers import (
    Header,
    checksum_fault,
    header_fault,
    read_header,
    take_over,
    write_header,
)
from evengine.pool.l2 import HostPool
from evengine.pool.pages import Pages
from evengine.ports import Slot
from evengine.wake import Wake

CLOSE_WAIT_S = 5.0


class Keep(NamedTuple):
    """A block of L1 into an L2 slot, under that header."""

    l1_slot: Slot
    l2_slot: Slot
    header: Header


class Restore(NamedTuple):
    """The block of an L2 slot into L1. header: what it must say, its checksum aside."""

    l2_slot: Slot
    l1_slot: Slot
    header: Header


class Accept(NamedTuple):
    """What a read put into an L2 slot. theirs: the header it must have come with, its checksum
    aside; ours: the one it gets."""

    l2_slot: Slot
    theirs: Header
    ours: Header


class Checked(NamedTuple):
    """What became of one block: its checksum, or why it is not what it should be."""

    checksum: int
    fault: str


Item = Keep | Restore | Accept
Done = Callable[[Sequence[Checked]], None]


class Copier:
    """Somebody waits for what is restored or accepted, nobody for what is kept: keeps go when
    nothing else waits. Within either kind in the order they came. poll() calls back on the
    caller's thread."""

    def __init__(self, pages: Pages, pool: HostPool, wake: Wake) -> None:
        self._pages = pages
        self._pool = pool
        self._wake = wake
        self._changed = threading.Condition()
        self._jobs: deque[tuple[Sequence[Item], Done]] = deque()
        self._keeps: deque[tuple[Sequence[Item], Done]] = deque()
        self._ended: deque[tuple[Sequence[Checked], Done]] = deque()
        self._error: BaseException | None = None
        self._closed = False
        self._by_type: dict[type, Callable[[Any], Checked]] = {
            Keep: self._keep,
            Restore: self._restore,
            Accept: self._accept,
        }
        self.blocks_under_way = 0
        """Of all jobs that poll() has not ended yet."""
        self._thread = threading.Thread(target=self._work, name="kv-copier", daemon=True)
        self._thread.start()

    def submit(self, items: Sequence[Item], done: Done) -> None:
        """Queue a job of one kind; `done` hears of its blocks in their order."""
        self.blocks_under_way += len(items)
        queue = self._keeps if items and isinstance(items[0], Keep) else self._jobs
        with self._changed:
            queue.append((items, done))
            self._changed.notify_all()

    def poll(self) -> bool:
        """End what is done; raises what a job raised. False if there was nothing."""
        if self._error is not None:
            raise self._error
        if not self._ended:
            return False
        while self._ended:
            results, done = self._ended.popleft()
            self.blocks_under_way -= len(results)
            done(results)
        return True

    def wait(self, timeout_s: float) -> None:
        """Until a job may have ended or failed, at most so long."""
        with self._changed:
            if not self._ended and self._error is None:
                self._changed.wait(timeout_s)

    def close(self) -> None:
        """After the job under way. Idempotent."""
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._keeps.clear()
            self._changed.notify_all()
        self._thread.join(CLOSE_WAIT_S)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not (self._jobs or self._keeps or self._closed):
                    self._changed.wait()
                if self._closed:
                    return
                items, done = (self._jobs or self._keeps).popleft()
            try:
                results = self._run(items)
            except BaseException as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                self._wake.set()
                return
            with self._changed:
                self._ended.append((results, done))
                self._changed.notify_all()
                # nobody waits for a single keep, and each turn of the engine's thread is one that
                # the model's thread has to give way to: it hears of keeps when all are done
                more = bool(self._keeps and items) and isinstance(items[0], Keep)
            if not more:
                self._wake.set()

    def _run(self, items: Sequence[Item]) -> list[Checked]:
        """One job."""
        by_type = self._by_type
        return [by_type[type(item)](item) for item in items]

    def _keep(self, item: Keep) -> Checked:
        """The header goes last: whoever reads the slot too early sees that it is not there."""
        self._pages.copy_out(item.l1_slot, self._pool.data(item.l2_slot))
        write_header(self._pool.view, item.l2_slot * self._pool.stride, item.header)
        return Checked(item.header.checksum, "")

    def _restore(self, item: Restore) -> Checked:
        """What is checked are the bytes that will be used: those that have arrived in L1."""
        found = read_header(self._pool.view, item.l2_slot * self._pool.stride)
        fault = header_fault(found, item.header)
        if fault:
            return Checked(0, fault)
        self._pages.write(item.l1_slot, self._pool.data(item.l2_slot))
        here = self._pages.checksum(item.l1_slot)
        return Checked(found.checksum, checksum_fault(here, found.checksum))

    def _accept(self, item: Accept) -> Checked:
        slot, theirs, ours = item
        pool = self._pool
        return Checked._make(
            take_over(pool.view, slot * pool.stride, pool.block_bytes, theirs, ours)
        )
