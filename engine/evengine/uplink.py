"""Messages from this engine to the control plane, in order and bounded."""

from __future__ import annotations

from collections import deque

from evctl.core.events import EngineFact, IterationSample
from evctl.wire.messages import AnyMessage, Facts, PeerInfo, Tokens
from evctl.wire.sockets import Dialer
from evengine.outlet import Counters
from evengine.peers import PeerSet

MAX_QUEUED = 20_000
MAX_FACTS = 2_000


class Uplink:
    """outlet.Outlet over sockets.

    While the control plane is away its messages are dropped: after a reconnect it asks for an
    inventory, and requests go on by the tokens that arrived.
    """

    def __init__(self, control: Dialer, peers: PeerSet, me: PeerInfo, counters: Counters) -> None:
        self._control = control
        self._peers = peers
        self._me = me
        self._counters = counters
        self._queue: deque[AnyMessage] = deque()
        self._facts: list[EngineFact] = []
        self.epoch = 0

    def tokens(self, message: Tokens) -> None:
        self.put(message)

    def fact(self, fact: EngineFact) -> None:
        self._facts.append(fact)
        if len(self._facts) >= MAX_FACTS:
            self._pack_facts()

    def to_peer(self, node: str, message: AnyMessage) -> bool:
        return self._peers.send(node, message)

    def peer(self, node: str) -> PeerInfo | None:
        return self._peers.alive(node)

    def recheck_peer(self, node: str) -> None:
        self._peers.recheck(node)

    def put(self, message: AnyMessage) -> None:
        """Queue a message; over the bound the oldest is lost, and counted."""
        if len(self._queue) >= MAX_QUEUED:
            self._queue.popleft()
            self._counters["uplink_dropped"] += 1
        self._queue.append(message)

    def flush(self, *, samples_too: bool) -> None:
        """Send what can be sent now. Iteration samples alone wait for company or a heartbeat."""
        if self._facts and (
            samples_too or any(not isinstance(fact, IterationSample) for fact in self._facts)
        ):
            self._pack_facts()
        if not self._control.connected:
            self._counters["uplink_dropped"] += len(self._queue)
            self._queue.clear()
        while self._queue and self._control.send(self._queue[0]):
            self._queue.popleft()

    @property
    def backlog(self) -> int:
        return len(self._queue)

    def _pack_facts(self) -> None:
        events, self._facts = tuple(self._facts), []
        self.put(Facts(self._me.node, self._me.boot_id, self.epoch, events))
