"""Two processes' worth of zmq contexts, keys, and sockets between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from evctl.core.errors import UnreachableError
from evctl.wire import Dialer, KeyPair, KeyRing, Listener, Received, SocketLimits, generate_keypair
from evctl.wire.channel import Channel

QUICK = SocketLimits(
    handshake_timeout_s=2.0,
    reconnect_s=0.05,
    reconnect_max_s=0.2,
)
DEADLINE_S = 20.0


class Wire:
    """One listener with its ring of keys, and dialers in a context of their own."""

    def __init__(self) -> None:
        self.here: zmq.Context[Any] = zmq.Context()
        self.there: zmq.Context[Any] = zmq.Context()
        self.server, self.client = generate_keypair(), generate_keypair()
        self.ring = KeyRing([self.client.public])
        self._open: list[Channel] = []
        self.listener = self.listen()

    def listen(
        self, endpoint: str = "tcp://127.0.0.1:0", limits: SocketLimits = QUICK
    ) -> Listener:
        """A port that was in use is free only a moment after its owner's close()."""
        end_s = time.monotonic() + DEADLINE_S
        while True:
            try:
                listener = Listener(self.here, self.server, self.ring, endpoint, limits=limits)
            except UnreachableError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.01)
            else:
                self._open.append(listener)
                return listener

    def dial(
        self,
        keypair: KeyPair | None = None,
        server_key: bytes | None = None,
        limits: SocketLimits = QUICK,
        endpoint: str = "",
    ) -> Dialer:
        key, endpoint = server_key or self.server.public, endpoint or self.listener.endpoint
        dialer = Dialer(self.there, keypair or self.client, key, endpoint, limits=limits)
        self._open.append(dialer)
        return dialer

    def connect(self, **options: Any) -> Dialer:
        dialer = self.dial(**options)
        self.until(lambda: dialer.connected, dialer)
        return dialer

    def until(self, happened: Callable[[], bool], *channels: Channel) -> list[Received]:
        """Receive on the channels until `happened`; what came in meanwhile."""
        received: list[Received] = []
        self.collect(received, happened, *channels)
        return received

    def collect(
        self, into: list[Received], happened: Callable[[], bool], *channels: Channel
    ) -> None:
        poller = zmq.Poller()
        for channel in channels:
            for socket in channel.pollables:
                poller.register(socket, zmq.POLLIN)
        end_s = time.monotonic() + DEADLINE_S
        while not happened():
            assert time.monotonic() < end_s, [dict(c.counters) for c in channels]
            poller.poll(20)
            for channel in channels:
                into += channel.receive()

    def take(self, channel: Channel, count: int = 1) -> list[Received]:
        """The next `count` messages of a channel."""
        received: list[Received] = []
        self.collect(received, lambda: len(received) >= count, channel)
        return received

    def close(self) -> None:
        for channel in self._open:
            channel.close()
        self.there.term()
        self.here.term()


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()
