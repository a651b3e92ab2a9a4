"""The agent: carries messages between the wire and the loop, in the loop's own thread."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import zmq

from evctl.core.errors import EvctlError
from evctl.policy.eviction import RefClass
from evctl.wire import Dialer, Listener, Received
from evctl.wire.codec import WireError
from evctl.wire.messages import (
    AnyMessage,
    CancelRequest,
    FetchAhead,
    GetInventory,
    Heartbeat,
    Hello,
    Inspect,
    Inspection,
    Inventory,
    KvRefused,
    Peers,
    Ping,
    Pong,
    RecallRequest,
    Reclassify,
    Refused,
    ReserveKv,
    StartRequest,
    Stop,
    WarmUp,
    Welcome,
)
from evengine.blockstore import BlockStore
from evengine.outlet import Counters
from evengine.peers import PeerSet
from evengine.ports import Clock, Engine, PeerHandler
from evengine.uplink import Uplink
from evengine.wake import Wake

HEARTBEAT_S = 1.0
IDLE_WAIT_S = 0.25
"""Longest sleep of an idle engine; a message ends it at once."""
ACTIVE_WAIT_S = 0.02
TRANSFER_WAIT_S = 0.005
"""While a copy is under way. Its end wakes us; this is for its deadline."""
STALL_S = 0.1
"""A turn must not spend longer than this outside the model, whatever a peer does."""
MAX_MESSAGES = 64
INVENTORY_PAGE_BLOCKS = 4_096

_log = logging.getLogger("evengine.agent")


class Agent:
    """Runs an engine until it is told to stop."""

    def __init__(
        self,
        *,
        hello: Hello,
        control: Dialer,
        listener: Listener,
        peers: PeerSet,
        uplink: Uplink,
        engine: Engine,
        store: BlockStore,
        clock: Clock,
        wake: Wake,
        counters: Counters,
    ) -> None:
        self._hello = hello
        self._me = hello.peer
        self._control = control
        self._listener = listener
        self._peers = peers
        self._uplink = uplink
        self._engine = engine
        self._store = store
        self._clock = clock
        self._wake = wake
        self._counters = counters
        self._greeted_connection = 0
        self._peers_epoch = -1
        self._sequence = 0
        self._next_beat_s = float("-inf")
        self._overhead_max_s = 0.0
        self._stopping = self._draining = False
        self._poller = self._new_poller()
        self._from_control: dict[type, Callable[[Any], AnyMessage | None]] = {
            Welcome: self._on_welcome,
            Peers: self._on_peers,
            StartRequest: self._on_start,
            CancelRequest: self._on_cancel,
            RecallRequest: lambda m: self._engine.recall(m.request_id),
            Reclassify: self._on_reclassify,
            FetchAhead: lambda m: self._engine.fetch_ahead(m),
            WarmUp: lambda m: self._engine.warm_up(m.on),
            GetInventory: self._on_get_inventory,
            Inspect: self._on_inspect,
            Stop: self._on_stop,
            Refused: self._on_refused,
        }
        self._peer_handlers = engine.peer_handlers()
        self._from_peer: dict[type, PeerHandler] = {
            **self._peer_handlers,
            Ping: lambda _, m: Pong(self._me.node, self._me.boot_id, m.sequence),
            ReserveKv: self._on_reserve,
            CancelRequest: lambda _, m: self._on_cancel(m),
            Refused: lambda _, m: self._on_refused(m),
        }

    def stop(self) -> None:
        """Leave `run` after the present turn; safe to call from a signal handler."""
        self._stopping = True

    def run(self) -> None:
        """Serve until stopped. Returns after the last message was handed to the sockets."""
        while not self._stopping and not (self._draining and self._engine.idle):
            started_s = self._clock.now_s()
            self._greet()
            self._receive()
            self._engine.turn()
            now_s = self._clock.now_s()
            self._peers.tick(now_s)
            beat = now_s >= self._next_beat_s
            self._uplink.flush(samples_too=beat)
            if beat:
                self._heartbeat(now_s)
            self._note_overhead(self._clock.now_s() - started_s)
            self._wait(now_s)
        self._uplink.flush(samples_too=True)

    # ------------------------------------------------------------ turns

    def _greet(self) -> None:
        """Say Hello once for each connection that came up."""
        if self._control.connections != self._greeted_connection and self._control.send(
            self._hello
        ):
            self._greeted_connection = self._control.connections
        self._uplink.greeted = (
            self._control.connected and self._greeted_connection == self._control.connections
        )

    def _receive(self) -> None:
        for received in self._control.receive(MAX_MESSAGES):
            answer = self._answer(self._from_control.get(type(received.message)), received)
            if answer is not None:
                self._uplink.put(answer)
        for _, received in self._peers.receive(MAX_MESSAGES):
            answer = self._serve_peer(received)
            if answer is not None and not isinstance(received.message, Refused):
                self._uplink.to_peer(self._peers.node_of(received.public_key) or "", answer)
        for received in self._listener.receive(MAX_MESSAGES):
            answer = self._serve_peer(received)
            if answer is not None and not self._reply(received.peer, answer):
                self._counters["replies_lost"] += 1

    def _serve_peer(self, received: Received) -> AnyMessage | None:
        """Handle a peer's message; only a node that the control plane named may send one."""
        node = self._peers.node_of(received.public_key)
        if node is None:
            return Refused("EV-2401", "this key belongs to no node of the cluster")
        handle = self._from_peer.get(type(received.message))
        return self._answer(handle and partial(handle, node), received)

    def _answer(
        self, handle: Callable[[Any], AnyMessage | None] | None, received: Received
    ) -> AnyMessage | None:
        """Run a handler. Whatever is wrong with one message must not end the others' requests."""
        message = received.message
        if handle is None:
            name = type(message).__name__
            return Refused("EV-2404", f"{name} is not for this end of the channel")
        try:
            return handle(message)
        except Exception:
            kind = type(message).__name__
            _log.exception("a message could not be handled", extra={"type": kind})
            self._counters["handler_errors"] += 1
            request_id = getattr(message, "request_id", "")
            return Refused("EV-9001", "the message could not be handled; see the log", request_id)

    def _reply(self, peer: bytes, answer: AnyMessage) -> bool:
        try:
            return self._listener.send(peer, answer)
        except WireError as error:
            _log.error("answer not sent", extra={"why": error.why})
            return False

    def _wait(self, now_s: float) -> None:
        """Sleep until a message comes, or until time itself may change something."""
        if self._engine.polled or self._uplink.backlog:
            wait_s = TRANSFER_WAIT_S
        elif not self._engine.idle:
            wait_s = ACTIVE_WAIT_S
        else:
            wait_s = IDLE_WAIT_S
        self._poller.poll(math.ceil(1e3 * max(0.0, min(wait_s, self._next_beat_s - now_s))))
        self._wake.clear()

    def _note_overhead(self, overhead_s: float) -> None:
        """Time of a turn without its sleep: everybody on this node waits for it."""
        self._overhead_max_s = max(self._overhead_max_s, overhead_s)
        self._counters["turns"] += 1
        if overhead_s > STALL_S:
            self._counters["stalled_turns"] += 1

    def _heartbeat(self, now_s: float) -> None:
        self._next_beat_s = now_s + HEARTBEAT_S
        self._sequence += 1
        self._control.send(
            Heartbeat(
                node=self._me.node,
                boot_id=self._me.boot_id,
                epoch=self._uplink.epoch,
                sequence=self._sequence,
                load=self._engine.load(),
                counters=self._all_counters(),
            )
        )

    # ------------------------------------------------------------ from control

    def _on_welcome(self, message: Welcome) -> None:
        if message.cluster != self._hello.cluster or not 16 <= len(message.kv_secret) <= 64:
            self._uplink.put(
                Refused("EV-2402", f"this is {self._hello.cluster!r}; a secret has 16-64 bytes")
            )
            return
        if self._engine.kv_secret not in (b"", message.kv_secret):
            _log.error("the control plane has another KV secret; every block here is void")
            self._stopping = True
            return
        self._engine.kv_secret = message.kv_secret
        self._uplink.epoch = message.epoch
        self._store.forget_classes()
        self._engine.warm_up(False)  # a control plane that wants it says so
        self._next_beat_s = float("-inf")

    def _on_peers(self, message: Peers) -> None:
        if message.epoch < self._peers_epoch:
            self._counters["stale_peers"] += 1
            return
        self._peers_epoch = message.epoch
        for ended in self._peers.update(message.peers):
            self._engine.peer_lost(ended.node, ended.boot_id)
        self._poller = self._new_poller()

    def _on_reserve(self, node: str, message: ReserveKv) -> AnyMessage | None:
        if self._draining:
            return KvRefused(
                message.request_id,
                self._me.boot_id,
                message.attempt,
                retry=False,
                reason="this engine is about to stop",
            )
        return self._peer_handlers[ReserveKv](node, message)

    def _on_start(self, message: StartRequest) -> None:
        try:
            if self._draining:
                raise EvctlError(
                    what="request not accepted",
                    why="this engine is about to stop",
                    next_step="send it to another node",
                    code="EV-2405",
                )
            if message.epoch != self._uplink.epoch or not self._engine.kv_secret:
                raise EvctlError(
                    what="request not accepted",
                    why=f"it is of epoch {message.epoch}, this engine is in {self._uplink.epoch}",
                    next_step="send it again after Welcome",
                    code="EV-2403",
                )
            self._engine.submit(message)
        except EvctlError as error:
            self._counters[f"refused_{error.code}"] += 1
            self._uplink.put(Refused(error.code, error.why, message.request_id))

    def _on_cancel(self, message: CancelRequest) -> None:
        self._engine.cancel(message.request_id)

    def _on_reclassify(self, message: Reclassify) -> None:
        self._store.reclassify(message.epoch, RefClass(message.ref_class), message.keys)

    def _on_get_inventory(self, message: GetInventory) -> None:
        blocks = self._store.inventory()
        for first in range(0, max(1, len(blocks)), INVENTORY_PAGE_BLOCKS):
            page = tuple(blocks[first : first + INVENTORY_PAGE_BLOCKS])
            self._uplink.put(
                Inventory(
                    node=self._me.node,
                    boot_id=self._me.boot_id,
                    ticket=message.ticket,
                    blocks=page,
                    last=first + INVENTORY_PAGE_BLOCKS >= len(blocks),
                )
            )

    def _on_inspect(self, message: Inspect) -> None:
        self._uplink.put(
            Inspection(
                node=self._me.node,
                boot_id=self._me.boot_id,
                ticket=message.ticket,
                load=self._engine.load(),
                counters=self._all_counters(),
                problems=tuple(self._engine.check_integrity()),
            )
        )

    def _on_stop(self, message: Stop) -> None:
        if message.drain:
            self._draining = True
        else:
            self._stopping = True

    # ------------------------------------------------------------ small things

    def _on_refused(self, message: Refused) -> None:
        _log.warning(
            "refused by the other side", extra={"code": message.code, "why": message.reason}
        )
        self._counters["refused_by_others"] += 1

    def _all_counters(self) -> dict[str, float]:
        totals: dict[str, float] = dict(self._counters)
        totals.update(self._engine.gauges())
        totals["turn_overhead_max_ms"] = self._overhead_max_s * 1e3
        for name, counts in (
            ("control", self._control.counters),
            ("peer", self._listener.counters),
        ):
            totals.update({f"wire_{name}_{key}": float(value) for key, value in counts.items()})
        return totals

    def _new_poller(self) -> zmq.Poller:
        poller = zmq.Poller()
        poller.register(self._wake.descriptor, zmq.POLLIN)
        for channel in (self._control, self._listener, *self._peers.dialers()):
            for socket in channel.pollables:
                poller.register(socket, zmq.POLLIN)
        return poller
