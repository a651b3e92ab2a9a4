"""Transfers between nodes of one machine: a memmove between two mapped segments.

One thread copies. It maps a peer's segment under the name that holds the peer's boot id, and
keeps a descriptor on it: the owner's lock on that very file tells whether it still lives. A
later life of the same node is another file, so it can never be written by mistake. What a read
is to be checked by is computed piece by piece, while the bytes are in the core's cache.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from evctl.wire.messages import TransferAddress
from evengine.pool.memory import KvMemory, address_of, owner_alive, segment_name
from evengine.ports import Clock, TransferState
from evengine.transfer.protocol import block_checksum
from evengine.transfer.queued import PeerLife, QueuedTransfer
from evengine.transfer.tickets import Ticket

SLICE_BYTES = 1 << 20
"""Copied between two looks at deadline and cancellation; about 0.2 ms."""
HELD_BYTES = 128 << 10
"""A piece up to so long is copied with the interpreter held, for 10 us at most: giving it up and
getting it back takes longer than that beside a thread that computes."""
CLOSE_WAIT_S = 5.0


class ShmPeer(PeerLife):
    """One life of a peer. Mapping and descriptor belong to the worker thread."""

    def __init__(self, address: TransferAddress) -> None:
        super().__init__(address)
        self.mapping: mmap.mmap | None = None
        self.view = memoryview(b"")
        self.base = 0
        self.descriptor = -1

    def attach(self, directory: Path) -> str:
        """Map the peer's segment; returns why that is not possible, or ""."""
        if self.address.endpoint != segment_name(*self.life):
            return f"segment {self.address.endpoint!r} is not that of {self.life}"
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.descriptor = os.open(directory / self.address.endpoint, flags)
            if os.fstat(self.descriptor).st_size != self.address.size_bytes:
                return f"segment {self.address.endpoint} has another size than announced"
            self.mapping = mmap.mmap(self.descriptor, self.address.size_bytes)
        except OSError as error:
            return f"segment {self.address.endpoint}: {error.strerror}"
        self.base = address_of(self.mapping)
        self.view = memoryview(self.mapping)
        return self.death()

    def death(self) -> str:
        """Why the segment may not be used any more, or ""."""
        return "" if owner_alive(self.descriptor) else f"{self.address.node} has died"

    def detach(self) -> None:
        if self.mapping is not None:
            self.view.release()
            self.mapping.close()
            self.mapping = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class ShmTransfer(QueuedTransfer[ShmPeer]):
    """Transfer over /dev/shm. Stopped copies are settled: the worker itself has stopped."""

    backend = "shm"
    digests = True

    def __init__(
        self, memory: KvMemory, node: str, boot_id: str, clock: Clock | None = None
    ) -> None:
        super().__init__(memory, node, boot_id, clock, stoppable=True)
        self.address = TransferAddress(
            backend=self.backend,
            node=node,
            boot_id=boot_id,
            endpoint=memory.name,
            base=0,
            size_bytes=memory.size_bytes,
            block_bytes=memory.block_bytes,
            ranks=memory.ranks,
            l1_blocks=memory.total_blocks,
        )
        self._jobs: deque[Callable[[], None]] = deque()
        self._worker = threading.Thread(target=self._work, name="kv-copy", daemon=True)
        self._worker.start()

    def close(self) -> None:
        """Stop after the current slice and unmap all peers. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._book.fail_all("the transfer was closed")
            for peer in self._lives.values():
                self._end_life(peer, "the transfer was closed")
            self._lives.clear()
            self._changed.notify_all()
        self._worker.join(CLOSE_WAIT_S)

    def _new_life(self, peer: TransferAddress) -> ShmPeer:
        return ShmPeer(peer)

    def _open(self, peer: ShmPeer) -> None:
        self._jobs.append(lambda: self._attach(peer))

    def _enqueue(self, peer: ShmPeer, ticket: Ticket) -> None:
        self._jobs.append(lambda: self._copy(peer, ticket))

    def _end_life(self, peer: ShmPeer, reason: str) -> None:
        super()._end_life(peer, reason)
        self._jobs.append(peer.detach)  # after every job that uses the mapping

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    if self._closed:
                        return
                    self._changed.wait()
                job = self._jobs.popleft()
            job()

    def _attach(self, peer: ShmPeer) -> None:
        fault = "" if peer.over else peer.attach(self._memory.path.parent)
        if fault:
            self._distrust(peer, fault)

    def _copy(self, peer: ShmPeer, ticket: Ticket) -> None:
        """Copy a ticket's pieces. A dead owner's memory is harmless, but its ticket fails."""
        if peer.mapping is None or not self._book.start(ticket):
            return
        copy = self._copy_pieces if ticket.digest is None else self._read_summed
        fault = peer.death() or copy(peer, ticket)
        fault = fault or peer.death()
        if not fault:
            self._book.end(ticket, TransferState.DONE)
            return
        self._book.end(ticket, TransferState.FAILED, fault)
        if fault == peer.death():
            self._distrust(peer, fault)

    def _copy_pieces(self, peer: ShmPeer, ticket: Ticket) -> str:
        """Returns why it stopped early, or "". memmove through ctypes releases the GIL."""
        local, remote, push = self._memory.base, peer.base, ticket.push
        memmove = ctypes.memmove
        unseen_bytes = SLICE_BYTES  # copied since the last look; a look before the first byte
        for piece in ticket.pieces:
            here, there = local + piece.local_offset, remote + piece.remote_offset
            source, target = (here, there) if push else (there, here)
            left_bytes = piece.length_bytes
            while left_bytes:
                if unseen_bytes >= SLICE_BYTES:
                    if ticket.stop or self._clock.now_s() >= ticket.deadline_s:
                        return ticket.stop or "deadline passed"
                    unseen_bytes = 0
                length_bytes = min(left_bytes, SLICE_BYTES - unseen_bytes)
                memmove(target, source, length_bytes)
                source += length_bytes
                target += length_bytes
                left_bytes -= length_bytes
                unseen_bytes += length_bytes
        return ""

    def _read_summed(self, peer: ShmPeer, ticket: Ticket) -> str:
        """Copy piece by piece and sum each up while it is in the cache: as fast as the code around
        it is short. Returns why it stopped early, or ""."""
        assert ticket.digest is not None
        skip, size = ticket.digest.skip_bytes, ticket.digest.length_bytes
        here, there = self._memory.view, peer.view
        summed = ticket.checksums.append
        unseen_bytes = SLICE_BYTES
        for piece in ticket.pieces:
            if unseen_bytes >= SLICE_BYTES:
                if ticket.stop or self._clock.now_s() >= ticket.deadline_s:
                    return ticket.stop or "deadline passed"
                unseen_bytes = 0
            at, source, length_bytes = piece.local_offset, piece.remote_offset, piece.length_bytes
            if length_bytes <= HELD_BYTES:
                here[at : at + length_bytes] = there[source : source + length_bytes]
            else:
                ctypes.memmove(self._memory.base + at, peer.base + source, length_bytes)
            unseen_bytes += length_bytes
            summed(block_checksum(here[at + skip : at + skip + size]))
        return ""
