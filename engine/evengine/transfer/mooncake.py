"""Transfers between machines with the Mooncake transfer engine, under our own rules.

Measured behaviour that shapes this file (docs/decisions/002-transfer-backends.md): its calls
release the GIL, so threads suffice; opening a session with a mute peer takes a minute and
holds up all other submissions, so a probe goes first, on a thread of its own; a failed batch
may still write; what a restarted peer leaves behind in the library's caches is never used
again.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from evctl.wire.messages import TransferAddress
from evengine.pool.memory import KvMemory
from evengine.ports import Clock, Piece, TransferState
from evengine.transfer.mooncake_client import MooncakeClient, set_environment
from evengine.transfer.protocol import (
    CONNECT_DEADLINE_S,
    MAX_BATCH_PIECES,
    MAX_PEER_OUTSTANDING_PIECES,
)
from evengine.transfer.queued import PeerLife, QueuedTransfer
from evengine.transfer.tickets import Ticket

POLL_S = 0.0003
POLL_OLD_S = 0.02
"""Between looks at batches that have run for longer than OLD_S: a stopped peer's never end."""
OLD_S = 1.0
IDLE_S = 1.0
OPEN_JITTER_S = 0.02
MAX_OPENERS = 256
CLOSE_WAIT_S = 1.0


class MooncakePeer(PeerLife):
    """One life of a peer. queue: batches not handed over; outstanding: pieces that were."""

    def __init__(self, address: TransferAddress, client: MooncakeClient) -> None:
        super().__init__(address)
        self.client = client
        self.ready = False
        self.queue: deque[Parcel] = deque()
        self.outstanding = 0


class Parcel:
    """A batch: at most MAX_BATCH_PIECES of one ticket."""

    def __init__(self, peer: MooncakePeer, ticket: Ticket, pieces: Sequence[Piece]) -> None:
        self.peer = peer
        self.ticket = ticket
        self.pieces = pieces
        self.batch = 0
        self.submitted_s = 0.0


class MooncakeTransfer(QueuedTransfer[MooncakePeer]):
    """Transfer over Mooncake. A copy once started cannot be stopped: its failure is unsettled.

    After any fault of a peer's life, what had not started fails as well, and new tickets are
    refused until connect() is called for it again. Nothing is ever retried here.
    """

    backend = "mooncake"

    def __init__(
        self,
        memory: KvMemory,
        node: str,
        boot_id: str,
        host: str = "127.0.0.1",
        protocol: str = "tcp",
        clock: Clock | None = None,
    ) -> None:
        """host: this node's address on the pool's private network. Raises EV-4202, EV-4203."""
        super().__init__(memory, node, boot_id, clock, stoppable=False)
        set_environment(protocol)
        self._start_client: Callable[[], MooncakeClient] = lambda: MooncakeClient(
            memory, host, protocol
        )
        self._client = self._start_client()
        self.address = TransferAddress(
            backend=self.backend,
            node=node,
            boot_id=boot_id,
            endpoint=self._client.endpoint,
            base=memory.base,
            size_bytes=memory.size_bytes,
            block_bytes=memory.block_bytes,
            ranks=memory.ranks,
            l1_blocks=memory.total_blocks,
        )
        self._seen: dict[str, tuple[str, MooncakeClient]] = {}
        self._running: list[Parcel] = []
        self._openers = 0
        self._pending = False
        self._jitter = random.Random()
        self._opening = threading.Lock()
        self._pump = threading.Thread(target=self._work, name="kv-mooncake", daemon=True)
        self._pump.start()

    def close(self) -> None:
        """Fail all tickets and stop serving. Idempotent; about a second.

        A thread inside the library cannot be interrupted: then the library is left as it is,
        until the process ends.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._book.fail_all("the transfer was closed")
            self._lives.clear()
            self._changed.notify_all()
        self._pump.join(CLOSE_WAIT_S)
        with self._changed:
            busy = self._pump.is_alive() or self._openers or self._running
            clients = {self._client, *(client for _, client in self._seen.values())}
            self._seen.clear()
        if not busy:
            for client in clients:
                client.close()

    def _new_life(self, peer: TransferAddress) -> MooncakePeer:
        return MooncakePeer(peer, self._client)

    def _open(self, peer: MooncakePeer) -> None:
        if self._openers >= MAX_OPENERS:
            peer.refusal = f"{self._openers} sessions are being opened already"
            return
        self._openers += 1
        threading.Thread(target=self._open_session, args=[peer], daemon=True).start()

    def _enqueue(self, peer: MooncakePeer, ticket: Ticket) -> None:
        parts = range(0, len(ticket.pieces), MAX_BATCH_PIECES)
        ticket.parts_left = len(parts)
        self._pending = True
        for start in parts:
            pieces = ticket.pieces[start : start + MAX_BATCH_PIECES]
            peer.queue.append(Parcel(peer, ticket, pieces))

    # ------------------------------------------------------------ opening, a thread a session

    def _open_session(self, peer: MooncakePeer) -> None:
        try:
            fault = self._reach(peer)
        except Exception as error:  # of a second client's start: the peer stays unreachable
            fault = str(error)
        with self._changed:
            self._openers -= 1
            peer.ready = not fault
            self._pending = True
            self._changed.notify_all()
        if fault:
            self._distrust(peer, fault)

    def _reach(self, peer: MooncakePeer) -> str:
        """Probe, then warm one session at a time; returns why the peer is out of reach."""
        endpoint = peer.address.endpoint
        if self._client.probe(endpoint) != 0:
            return f"{peer.address.node} does not answer at {endpoint}"
        with self._opening:
            time.sleep(self._jitter.uniform(0, OPEN_JITTER_S))
            if peer.over or self._closed:
                return "the peer's life is over"
            peer.client = self._client_for(endpoint, peer.address.boot_id)
            warm = peer.client.warm(peer.address, CONNECT_DEADLINE_S)
        return "" if warm else f"the first transfer with {peer.address.node} failed"

    def _client_for(self, endpoint: str, boot_id: str) -> MooncakeClient:
        """The shared client, or a fresh one if it knew another life at this endpoint: it would
        go on using that life's data port for ever. Called with `_opening` held."""
        boot, client = self._seen.get(endpoint, (boot_id, self._client))
        if boot != boot_id:
            client = self._start_client()
        self._seen[endpoint] = (boot_id, client)
        return client

    # ------------------------------------------------------------ the pump thread

    def _work(self) -> None:
        while not self._closed:
            parcel = self._next_parcel()
            if parcel is not None:
                self._submit(parcel)
                continue
            self._look_at_running()
            self._rest()

    def _next_parcel(self) -> Parcel | None:
        """The next batch that may start, its pieces counted as outstanding."""
        with self._changed:
            self._pending = False
            for peer in self._lives.values():
                while peer.queue and not self._book.live(peer.queue[0].ticket):
                    peer.queue.popleft()
                if not peer.queue or not peer.ready:
                    continue
                count = len(peer.queue[0].pieces)
                if peer.outstanding + count <= MAX_PEER_OUTSTANDING_PIECES:
                    peer.outstanding += count
                    return peer.queue.popleft()
        return None

    def _submit(self, parcel: Parcel) -> None:
        peer = parcel.peer
        if peer.refusal or not self._book.start(parcel.ticket):
            self._finish(parcel)
            return
        address = peer.address
        parcel.batch = peer.client.submit(
            address.endpoint, address.base, parcel.pieces, parcel.ticket.push
        )
        parcel.submitted_s = self._clock.now_s()
        if parcel.batch > 0:
            self._running.append(parcel)
            return
        self._finish(parcel)
        self._fail(parcel, f"{address.node} took no transfer")

    def _look_at_running(self) -> None:
        still_running = []
        for parcel in self._running:
            status = parcel.peer.client.status(parcel.batch)
            if status == 0:
                still_running.append(parcel)
                continue
            self._finish(parcel)
            parcel.ticket.parts_left -= 1
            if status < 0:
                self._fail(parcel, f"transfer with {parcel.peer.address.node} failed ({status})")
            elif parcel.ticket.parts_left == 0:
                self._book.end(parcel.ticket, TransferState.DONE)
        self._running = still_running

    def _finish(self, parcel: Parcel) -> None:
        """The batch is out of the library."""
        with self._changed:
            parcel.peer.outstanding -= len(parcel.pieces)

    def _fail(self, parcel: Parcel, reason: str) -> None:
        self._book.end(parcel.ticket, TransferState.FAILED, reason, settled=False)
        self._distrust(parcel.peer, reason)

    def _rest(self) -> None:
        with self._changed:
            if self._closed or self._pending:
                return
            now_s = self._clock.now_s()
            young = any(now_s - parcel.submitted_s < OLD_S for parcel in self._running)
            idle = IDLE_S if not self._running else POLL_S if young else POLL_OLD_S
            self._changed.wait(idle)
