"""What Listener and Dialer share: options, counters, bounded logging, frames in and out."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec
import zmq

from evctl.core.errors import UnreachableError, UsageError
from evctl.wire.codec import WireError, encode_refused
from evctl.wire.keys import KeyPair, to_z85
from evctl.wire.messages import AnyMessage
from evctl.wire.monitor import ConnectionMonitor

Clock = Callable[[], float]
"""Seconds, monotonic."""

MAX_FRAME_BYTES: Final = 128 * 2**20
"""libzmq drops the connection of a peer that sends more; below, the peer is told why not."""
MAX_DENIED: Final = 1024
"""Denied keys that are remembered at once."""
LOG_EVERY_S: Final = 1.0
"""Each reason is logged at most once in this time, with its count so far."""

log = logging.getLogger("evctl.wire")


class SocketLimits(msgspec.Struct, frozen=True):
    """Bounds of one socket. Queues are counted in messages, per connection and direction."""

    queue_messages: int = 2000
    handshake_timeout_s: float = 10.0
    heartbeat_s: float = 2.0
    dead_after_s: float = 10.0
    reconnect_s: float = 0.1
    reconnect_max_s: float = 5.0


CONTROL_LIMITS: Final = SocketLimits(dead_after_s=30.0)
"""Between an engine and the control plane. Each judges the other by its words; what the connection
does on its own is only to make room for a new one. A connection that breaks costs every request
in flight, so a process that stands still for a while, while its host lives, must not break it."""


class Received(NamedTuple):
    """peer: b"" on a Dialer. public_key: proven by the connection (the server's on a Dialer)."""

    peer: bytes
    public_key: bytes
    message: AnyMessage


class Channel:
    """A CURVE socket with its monitor; the contract is in `evctl.wire.sockets`."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: int,
        keypair: KeyPair,
        limits: SocketLimits,
        name: str,
        clock: Clock = time.monotonic,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.name = name
        self.limits = limits
        self.on_ready: Callable[[], None] | None = None
        """Called after a send that may have hidden a message from an edge-triggered poller."""
        self.on_refusal: Callable[[bytes, str, str], None] = lambda _key, _code, _why: None
        """Told the public key of a peer that may not connect, or whose frame was refused, with
        code and reason. Called within receive()."""
        self.patience_s = 0.0
        """A key may be denied for so long before that is worth a warning: where lists of keys are
        handed out one side after the other, a peer may call before it is announced."""
        self._clock = clock
        self._quiet_until_s: dict[tuple[str, int], float] = {}
        self._denied_s: dict[str, tuple[float, float]] = {}
        """Key or endpoint -> when it was denied first and last."""
        self._socket: zmq.Socket[bytes] = context.socket(kind, socket_class=zmq.Socket)
        self._monitor = ConnectionMonitor(context, self._socket)
        _set_options(self._socket, keypair, limits)

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """For a poller; use it for nothing else."""
        return self._socket

    @property
    def pollables(self) -> tuple[zmq.Socket[bytes], ...]:
        """Register all of them with a zmq.Poller for POLLIN."""
        return (self._socket, self._monitor.socket)

    @property
    def closed(self) -> bool:
        return bool(self._socket.closed)

    def fileno(self) -> int:
        """libzmq's edge-triggered descriptor: when it is readable, `readable()` may be True."""
        return int(self._socket.getsockopt(zmq.FD))

    def readable(self) -> bool:
        """Whether receive() has something to do."""
        flags = [int(s.getsockopt(zmq.EVENTS)) for s in self.pollables]
        return any(f & zmq.POLLIN for f in flags)

    def receive(self, max_messages: int = 100) -> list[Received]:
        """At most `max_messages` of what has arrived."""
        self._read_events()
        received = []
        for _ in range(max_messages):
            frames = self._receive_frames()
            if frames is None:
                break
            if item := self._accept(frames):
                received.append(item)
        self.counters["received"] += len(received)
        return received

    def close(self, linger_s: float = 0.0) -> None:
        """linger_s: how long the context's term() may wait to send what is queued. Idempotent.

        The port of a Listener is free a moment later, not at once.
        """
        if not self._socket.closed:
            self._monitor.close()
            self._socket.close(linger=round(linger_s * 1000))

    def _read_events(self) -> None:
        """Take in what happened to connections."""
        raise NotImplementedError

    def _accept(self, frames: list[zmq.Frame]) -> Received | None:
        """What one multipart message says; None after it was refused."""
        raise NotImplementedError

    def _full_reason(self) -> str:
        """The counter of a send that found no room."""
        return "send_full"

    def _receive_frames(self) -> list[zmq.Frame] | None:
        """The next message's frames, None when there is none now."""
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None

    def _send_frames(self, frames: list[bytes]) -> bool:
        """Queue a message; False, counted, when the peer has no room or is gone."""
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self.counters[self._full_reason()] += 1
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self.counters["send_unroutable"] += 1
            return False
        finally:
            if self.on_ready is not None and self.readable():
                self.on_ready()
        self.counters["sent"] += 1
        return True

    def _note_denied(self, who: str, why: str, **fields: Any) -> None:
        """Count and log a denied key: a warning once patience is over."""
        now_s = self._clock()
        first_s, last_s = self._denied_s.get(who, (now_s, now_s))
        if now_s - last_s > LOG_EVERY_S + self.patience_s:
            first_s = now_s  # it was in meanwhile, or away
        if len(self._denied_s) >= MAX_DENIED:
            self._denied_s.clear()
        self._denied_s[who] = first_s, now_s
        if now_s - first_s < self.patience_s:
            why += "; it was not announced yet, and calls again"
            self._note("denied_key", why, level=logging.INFO, **fields)
        else:
            self._note("denied_key", why, **fields)

    def _note(self, reason: str, why: str, *, level: int = logging.WARNING, **fields: Any) -> None:
        """Count an irregularity and log it, at most once in LOG_EVERY_S for each reason."""
        self.counters[reason] += 1
        now_s = self._clock()
        if now_s < self._quiet_until_s.get((reason, level), now_s):
            return
        self._quiet_until_s[reason, level] = now_s + LOG_EVERY_S
        extra = {"event": f"wire.{reason}", "socket": self.name, "why": why, **fields}
        extra["count"] = self.counters[reason]
        log.log(level, "%s: %s: %s", self.name, reason, why, extra=extra)

    def _refuse(self, error: WireError, public_key: bytes, peer: bytes = b"") -> None:
        """Count, log and answer a bad frame of `peer`."""
        identity: dict[str, Any] = {"peer": peer.hex(), "public_key": to_z85(public_key)}
        self._note(f"refused_{error.reason}", error.why, code=error.code, **identity)
        answer = encode_refused(error.code, error.why, error.request_id, version=error.version)
        if not self._send_frames([peer, answer] if peer else [answer]):
            self.counters["refusal_unsent"] += 1
        self.on_refusal(public_key, error.code, error.why)


def _set_options(socket: zmq.Socket[bytes], keypair: KeyPair, limits: SocketLimits) -> None:
    socket.linger = 0
    socket.sndhwm = socket.rcvhwm = limits.queue_messages
    socket.maxmsgsize = MAX_FRAME_BYTES
    socket.handshake_ivl = round(limits.handshake_timeout_s * 1000)
    socket.connect_timeout = round(limits.handshake_timeout_s * 1000)
    socket.heartbeat_ivl = round(limits.heartbeat_s * 1000)
    socket.heartbeat_timeout = round(limits.dead_after_s * 1000)
    socket.heartbeat_ttl = round(limits.dead_after_s * 1000)
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = max(1, round(limits.dead_after_s))
    socket.reconnect_ivl = round(limits.reconnect_s * 1000)
    socket.reconnect_ivl_max = round(limits.reconnect_max_s * 1000)
    socket.curve_publickey = to_z85(keypair.public).encode("ascii")
    socket.curve_secretkey = to_z85(keypair.secret).encode("ascii")


def bad_endpoint(endpoint: str, error: zmq.ZMQError) -> UsageError:
    return UsageError(
        what=f"cannot use the endpoint {endpoint!r}",
        why=str(error.strerror),
        next_step="write it as tcp://HOST:PORT",
        code="EV-3032",
    )


def cannot_listen(endpoint: str, error: zmq.ZMQError) -> UnreachableError:
    return UnreachableError(
        what=f"cannot listen on {endpoint}",
        why=str(error.strerror),
        next_step="choose another address or port; port 0 takes a free one",
        code="EV-3033",
    )
