"""Messages from this engine to the control plane, in order and bounded."""

from __future__ import annotations

import logging
from collections import deque

from evctl.core.events import EngineFact, IterationSample
from evctl.wire.codec import WireError
from evctl.wire.messages import AnyMessage, Facts, PeerInfo, Tokens
from evctl.wire.sockets import Dialer
from evengine.outlet import Counters
from evengine.peers import PeerSet

MAX_QUEUED = 20_000
MAX_FACTS = 2_000

_log = logging.getLogger("evengine.uplink")


class Uplink:
    """outlet.Outlet over sockets.

    While the control plane is away its messages wait here, up to a bound, so that a short break
    loses nothing; what ended meanwhile is told after the next Hello.
    """

    def __init__(self, control: Dialer, peers: PeerSet, me: PeerInfo, counters: Counters) -> None:
        self._control = control
        self._peers = peers
        self._me = me
        self._counters = counters
        self._queue: deque[AnyMessage] = deque()
        self._facts: list[EngineFact] = []
        self.epoch = 0
        self.greeted = False
        """Whether the control plane has been told who speaks, on the present connection."""

    def tokens(self, message: Tokens) -> None:
        self.put(message)

    def fact(self, fact: EngineFact) -> None:
        self._facts.append(fact)
        if len(self._facts) >= MAX_FACTS:
            self._pack_facts()

    def to_peer(self, node: str, message: AnyMessage) -> bool:
        try:
            return self._peers.send(node, message)
        except WireError as error:
            _log.error("message not sent", extra={"peer": node, "why": error.why})
            self._counters["unsendable"] += 1
            return False

    def announced(self, node: str) -> PeerInfo | None:
        return self._peers.announced(node)

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
        while self._queue and self.greeted and self._send_first():
            self._queue.popleft()

    @property
    def backlog(self) -> int:
        """Messages that could be sent if the socket took them."""
        return len(self._queue) if self.greeted else 0

    def _send_first(self) -> bool:
        """True when the first message is done with: sent, or never to be sent."""
        try:
            return self._control.send(self._queue[0])
        except WireError as error:
            _log.error("message not sent", extra={"peer": "control", "why": error.why})
            self._counters["unsendable"] += 1
            return True

    def _pack_facts(self) -> None:
        events, self._facts = tuple(self._facts), []
        self.put(Facts(self._me.node, self._me.boot_id, self.epoch, events))
