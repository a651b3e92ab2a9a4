"""Sockets that carry messages: a Listener accepts peers, a Dialer connects to one Listener.

The contract, for both:
- Nothing blocks. A socket belongs to one thread; only its KeyRing may be changed elsewhere.
- `receive(max_messages)` returns what has arrived, at most that many, [] when nothing has.
  It never raises for what a peer did: a bad frame is answered with Refused, logged and
  counted, and a Refused from the peer is delivered as a message. It also reads connection
  events, so call it at least about once a second even when the poller reports nothing.
- `send(...)` returns True when the message was queued, not when it arrived: a connection
  that breaks loses what was queued, in both directions. It returns False, and counts, when
  the peer's queue is full (`send_full`), the peer is gone (`send_unroutable`) or the Dialer
  is not connected (`send_unconnected`); the caller keeps the message or drops it. It raises
  WireError only for a message that has no frame (too large, a value out of range), which is
  the caller's mistake.
- A `peer` is one connection: it changes at each reconnect and cannot be chosen or taken over
  by another peer. `public_key` (32 bytes) is what the connection proved; compare it with
  PeerInfo.public_key before believing a node name in a message.
- A Dialer queues nothing while unconnected (a send just after a disconnect may still be
  taken, and is lost). `connections` counts completed handshakes:
  when it rises, send Hello again.
- Wait with a zmq.Poller on all of `pollables`; under asyncio use `evctl.wire.aio.Readiness`.

`counters`: received, sent, connections, disconnections; send_*; refused_REASON for each
reason of codec.CODES, refusal_unsent; denied_key, handshake_protocol, handshake_failed,
accept_failed; redials.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from typing import Final

import zmq

from evctl.wire.auth import AllowKey, authenticator_of
from evctl.wire.channel import Channel, Clock, Received, SocketLimits, bad_endpoint, cannot_listen
from evctl.wire.codec import WireError, decode, encode
from evctl.wire.keys import KeyPair, to_z85
from evctl.wire.messages import AnyMessage
from evctl.wire.monitor import ConnectionEvent, describe_failure

_FAILURES: Final[dict[int, str]] = {
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "denied_key",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "handshake_protocol",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "handshake_failed",
    zmq.EVENT_ACCEPT_FAILED: "accept_failed",
}
_MAX_DENIALS: Final = 256
KEY_DENIED: Final = "EV-3014"
"""Code of a connection that was turned away because its key is not on the list."""
_DEFAULT_LIMITS: Final = SocketLimits()


class Listener(Channel):
    """ROUTER with CURVE. endpoint: tcp://HOST:PORT; HOST * is every address, PORT 0 a free one.

    allowed: a KeyRing or a function; also asked for each message, so that a key that is taken
    back is refused on connections it already has. Raises UnreachableError (EV-3033) when the
    address cannot be listened on, ConflictError (EV-3031) when the context has another ZAP
    handler.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keypair: KeyPair,
        allowed: AllowKey,
        endpoint: str = "tcp://127.0.0.1:0",
        *,
        limits: SocketLimits = _DEFAULT_LIMITS,
        name: str = "listener",
        clock: Clock = time.monotonic,
    ) -> None:
        self._authenticator = authenticator_of(context)
        super().__init__(context, zmq.ROUTER, keypair, limits, name, clock)
        self._allowed = allowed
        self._denials: deque[tuple[bytes, str]] = deque()
        self._denials_unlogged = 0
        self._denials_counted = 0
        self._domain = self._authenticator.register(allowed, self._deny)
        self._socket.router_mandatory = True
        self._socket.curve_server = True
        self._socket.zap_domain = self._domain
        self._socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise cannot_listen(endpoint, error) from error
        self._endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    @property
    def endpoint(self) -> str:
        """Where it listens, with the real port; the host is 0.0.0.0 for *."""
        return self._endpoint

    @property
    def port(self) -> int:
        return int(self._endpoint.rpartition(":")[2])

    def send(self, peer: bytes, message: AnyMessage) -> bool:
        """Queue a message for one connection; the contract is in the module's docstring."""
        return self._send_frames([peer, encode(message)])

    def close(self, linger_s: float = 0.0) -> None:
        self._authenticator.unregister(self._domain)
        super().close(linger_s)

    def _accept(self, frames: list[zmq.Frame]) -> Received | None:
        """What one multipart message says; None after it was refused."""
        peer, payload = frames[0].bytes, frames[-1]
        public_key = bytes.fromhex(str(payload.get("User-Id")))
        try:
            if len(frames) != 2:
                why = f"a message is one frame, not {len(frames) - 1}"
                raise WireError("bad_envelope", why)
            if not self._allowed(public_key):
                raise WireError("key_revoked", "the sender's key was taken off the list")
            return Received(peer, public_key, decode(payload.buffer))
        except WireError as error:
            self._refuse(error, public_key, peer)
            return None

    def _deny(self, public_key: bytes, address: str) -> None:
        """Called by the authenticator's thread."""
        if len(self._denials) < _MAX_DENIALS:
            self._denials.append((public_key, address))
        else:
            self._denials_unlogged += 1

    def _read_events(self) -> None:
        for event in self._monitor.drain():
            if event.kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.counters["connections"] += 1
            elif event.kind == zmq.EVENT_DISCONNECTED:
                self.counters["disconnections"] += 1
            elif event.kind in _FAILURES and event.kind != zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._note(_FAILURES[event.kind], describe_failure(event))
        while self._denials:
            key, address = self._denials.popleft()
            why = f"a key from {address} is not on the list"
            name = to_z85(key)
            self._note_denied(name, why, public_key=name, address=address)
            self.on_refusal(key, KEY_DENIED, why)
        unlogged = self._denials_unlogged
        self.counters["denied_key"] += unlogged - self._denials_counted
        self._denials_counted = unlogged


class Dialer(Channel):
    """DEALER with CURVE that connects again, with backoff, until closed.

    Raises UsageError (EV-3032) when the endpoint is malformed, ValueError when the server's
    key has not 32 bytes.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keypair: KeyPair,
        server_public_key: bytes,
        endpoint: str,
        *,
        limits: SocketLimits = _DEFAULT_LIMITS,
        name: str = "dialer",
        clock: Clock = time.monotonic,
    ) -> None:
        server_key = to_z85(server_public_key).encode("ascii")
        super().__init__(context, zmq.DEALER, keypair, limits, name, clock)
        self.connections = 0
        self.connected = False
        """As of the last receive()."""
        self.endpoint = endpoint
        self._server_public_key = server_public_key
        self._last_event: int = zmq.EVENT_CONNECT_DELAYED
        self._last_event_s = clock()
        self._socket.immediate = True
        self._socket.curve_serverkey = server_key
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise bad_endpoint(endpoint, error) from error

    def send(self, message: AnyMessage) -> bool:
        """Queue a message for the server; the contract is in the module's docstring."""
        return self._send_frames([encode(message)])

    def _full_reason(self) -> str:
        return "send_full" if self.connected else "send_unconnected"

    def _read_events(self) -> None:
        for event in self._monitor.drain():
            self._follow(event)
        self._redial_if_dead()

    def _accept(self, frames: list[zmq.Frame]) -> Received | None:
        try:
            if len(frames) != 1:
                raise WireError("bad_envelope", f"a message is one frame, not {len(frames)}")
            return Received(b"", self._server_public_key, decode(frames[0].buffer))
        except WireError as error:
            self._refuse(error, self._server_public_key)
            return None

    def _follow(self, event: ConnectionEvent) -> None:
        self._last_event, self._last_event_s = event.kind, self._clock()
        if event.kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.connected = True
            self.connections += 1
            self.counters["connections"] += 1
        elif event.kind == zmq.EVENT_DISCONNECTED:
            self.connected = False
            self.counters["disconnections"] += 1
        elif event.kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self._note_denied(self.endpoint, describe_failure(event), endpoint=self.endpoint)
        elif event.kind in _FAILURES:
            self._note(_FAILURES[event.kind], describe_failure(event), endpoint=self.endpoint)

    def _redial_if_dead(self) -> None:
        """Connect anew where libzmq has given up, as it does after any protocol error.

        It emits an event at each step of its own attempts, so a long silence while not
        connected means that there are none.
        """
        if self.connected:
            return
        silent_s = self._clock() - self._last_event_s
        limits = self.limits
        if self._last_event == zmq.EVENT_DISCONNECTED:
            patience_s = limits.reconnect_max_s
        else:
            patience_s = limits.reconnect_max_s + limits.handshake_timeout_s + 1.0
        if silent_s < patience_s:
            return
        self.counters["redials"] += 1
        self._last_event, self._last_event_s = zmq.EVENT_CONNECT_DELAYED, self._clock()
        try:
            self._socket.disconnect(self.endpoint)
        except zmq.ZMQError as error:
            if error.errno != errno.ENOENT:
                raise
        self._socket.connect(self.endpoint)
