"""The half of a backend that runs on the loop's thread: known lives, checks, tickets."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from evctl.wire.messages import TransferAddress
from evengine.clock import SystemClock
from evengine.pool.memory import KvMemory
from evengine.ports import Clock, Digest, Outcome, Piece, TransferState
from evengine.transfer.protocol import coalesce, range_fault
from evengine.transfer.tickets import Life, Ticket, TicketBook


class PeerLife:
    """What is known of one life of a peer. refusal: why new tickets fail, or ""."""

    def __init__(self, address: TransferAddress) -> None:
        self.address = address
        self.refusal = ""
        self.over = False

    @property
    def life(self) -> Life:
        return self.address.node, self.address.boot_id


P = TypeVar("P", bound=PeerLife)


class QueuedTransfer(ABC, Generic[P]):
    """Checks and queues on the caller's thread; a backend's own threads do the rest.

    `_changed` guards `_lives` and the backend's queues, is held for microseconds only, and is
    notified when there is work.
    """

    backend: str
    address: TransferAddress
    digests = False
    """Whether it computes checksums while it copies. Then pieces stay as they were given."""

    def __init__(
        self, memory: KvMemory, node: str, boot_id: str, clock: Clock | None, *, stoppable: bool
    ) -> None:
        if (memory.node, memory.boot_id) != (node, boot_id):
            raise ValueError(f"memory of {memory.node}/{memory.boot_id}, not {node}/{boot_id}")
        self._memory = memory
        self._clock = clock or SystemClock()
        self._book = TicketBook(self._clock, stoppable=stoppable)
        self._changed = threading.Condition()
        self._lives: dict[str, P] = {}
        self._closed = False

    def connect(self, peer: TransferAddress) -> None:
        """See Transfer.connect. Repeated for the same life, it lifts a refusal: the caller
        has confirmed the boot id since (transfer rule 2)."""
        with self._changed:
            known = self._lives.get(peer.node)
            if self._closed or (known and known.address == peer and not known.refusal):
                return
            if known is not None:
                self._end_life(known, "the peer was connected anew")
            fresh = self._new_life(peer)
            self._lives[peer.node] = fresh
            if peer.backend != self.backend:
                fresh.refusal = f"{peer.node} speaks {peer.backend}, not {self.backend}"
                return
            self._open(fresh)
            self._changed.notify_all()

    def disconnect(self, node: str, boot_id: str) -> None:
        with self._changed:
            known = self._lives.get(node)
            if known is None or known.address.boot_id != boot_id:
                return
            del self._lives[node]
            self._end_life(known, "the peer was disconnected")
            self._changed.notify_all()

    def write(self, node: str, boot_id: str, pieces: Sequence[Piece], deadline_s: float) -> int:
        """deadline_s: seconds from now."""
        return self._request((node, boot_id), pieces, True, deadline_s, None)

    def read(
        self,
        node: str,
        boot_id: str,
        pieces: Sequence[Piece],
        deadline_s: float,
        digest: Digest | None = None,
    ) -> int:
        """deadline_s: seconds from now."""
        digest = digest if self.digests else None
        return self._request((node, boot_id), pieces, False, deadline_s, digest)

    def when_ended(self, call: Callable[[], None]) -> None:
        """Have `call` called, on any thread, whenever a ticket ends."""
        self._book.on_end = call

    def poll(self) -> list[Outcome]:
        return self._book.drain()

    @abstractmethod
    def close(self) -> None:
        """End all tickets and the backend's threads; the memory may be closed afterwards."""

    @abstractmethod
    def _new_life(self, peer: TransferAddress) -> P: ...

    @abstractmethod
    def _open(self, peer: P) -> None:
        """Begin to reach the peer in the background. Called with `_changed` held."""

    @abstractmethod
    def _enqueue(self, peer: P, ticket: Ticket) -> None:
        """Take a ticket over. Called with `_changed` held."""

    def _end_life(self, peer: P, reason: str) -> None:
        """Called with `_changed` held; a backend extends it to release what it holds."""
        peer.over = True
        peer.refusal = peer.refusal or reason
        self._book.fail_life(peer.life, reason)

    def _distrust(self, peer: P, reason: str) -> None:
        """After a fault: fail what has not started, until connect() confirms the boot id."""
        with self._changed:
            peer.refusal = peer.refusal or reason
            if self._lives.get(peer.address.node) is peer:  # else its tickets have failed
                self._book.fail_life(peer.life, reason, waiting_only=True)

    def _request(
        self,
        life: Life,
        pieces: Sequence[Piece],
        push: bool,
        deadline_s: float,
        digest: Digest | None,
    ) -> int:
        with self._changed:
            peer = self._lives.get(life[0])
            fault = self._fault(peer, life, pieces)
            if fault:
                return self._book.ended(TransferState.FAILED, fault)
            if not pieces:
                return self._book.ended(TransferState.DONE)
            assert peer is not None
            parts = coalesce(pieces) if digest is None else pieces
            ticket = self._book.open(life, parts, push, deadline_s, digest)
            if isinstance(ticket, int):
                return ticket
            self._enqueue(peer, ticket)
            self._changed.notify_all()
            return ticket.number

    def _fault(self, peer: P | None, life: Life, pieces: Sequence[Piece]) -> str:
        if peer is None:
            return f"unknown peer {life[0]}"
        if peer.address.boot_id != life[1]:
            return f"{life[0]} lives as {peer.address.boot_id}, not {life[1]}"
        if peer.refusal:
            return peer.refusal
        return range_fault(pieces, self._memory.size_bytes, peer.address.size_bytes)
