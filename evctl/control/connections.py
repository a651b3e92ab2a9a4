"""How many connections a server takes, and for how long one may say nothing.

Descriptors are the scarce thing: without any left the control plane can neither read its keys nor
accept an engine. So a listener takes no more connections than it was given, and turns the rest
away at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
import time
from collections.abc import Callable
from typing import Any, Final

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

MAX_DESCRIPTORS: Final = 65_536
MAX_CONNECTIONS: Final = 8_192
"""Of one listener, however many descriptors there are: each costs memory too."""
HEAD_TIMEOUT_S: Final = 10.0
"""For a request's head to arrive whole, from when the connection or the head began."""
SEND_STALL_S: Final = 90.0
"""For a client that takes nothing; longer than the gateway's own patience with one request."""
TOLD_EVERY_S: Final = 60.0

_RESERVE: Final = 96
"""For files, the journal, the log, the wire's own sockets and a fork."""
_RESERVE_A_NODE: Final = 4
_FEWEST: Final = 8
_REFUSED_AT_ONCE: Final = 64

log = logging.getLogger(__name__)

Tell = Callable[[int, str], bytes]
"""JSON body of an error below HTTP: of a status and a message."""


def raise_descriptor_limit(most: int = MAX_DESCRIPTORS) -> int:
    """Have as many descriptors as the system lets us, up to `most`; how many that are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft == resource.RLIM_INFINITY:
        return most
    if soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft
        return wanted
    return soft


class Shares:
    """What is left of the descriptors once engines and files have theirs: `gateway` and `admin`
    connections."""

    def __init__(self, descriptors: int, nodes: int) -> None:
        left = max(4 * _FEWEST, descriptors - _RESERVE - _RESERVE_A_NODE * nodes)
        self.admin = min(256, left // 4)
        self.gateway = min(MAX_CONNECTIONS, left - self.admin)


class Door:
    """Counts the connections of one listener. on_refused: told of each that is turned away."""

    def __init__(
        self,
        name: str,
        most: int = MAX_CONNECTIONS,
        *,
        tell: Tell = lambda _status, message: message.encode(),
        on_refused: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.most = most
        self.tell = tell
        self.open = 0
        self.refused = 0
        self._on_refused = on_refused
        self._clock = clock
        self._told_s = float("-inf")
        self._spare = _spare()

    @property
    def full(self) -> bool:
        return self.open >= self.most

    def refuse(self, connection: socket.socket, why: str) -> None:
        """Answer that there is no room, if that can be said at once, and close."""
        self.refused += 1
        self._on_refused()
        body = self.tell(503, f"no more connections are taken now: {why}")
        head = (
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
        )
        try:
            connection.setblocking(False)
            connection.send(head.encode("ascii") + body)
        except OSError:
            pass  # it left, or takes nothing
        connection.close()
        now_s = self._clock()
        if now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            extra = {"event": "connections.refused", "count": self.refused, "open": self.open}
            log.warning("%s: a connection was turned away: %s", self.name, why, extra=extra)

    def give_up_spare(self) -> bool:
        """Free one descriptor, with which a connection can be accepted and refused."""
        if self._spare < 0:
            return False
        os.close(self._spare)
        self._spare = -1
        return True

    def take_spare(self) -> None:
        if self._spare < 0:
            self._spare = _spare()

    def close(self) -> None:
        self.give_up_spare()


class BoundedListener(socket.socket):
    """A listening socket that accepts no more than its door has room for.

    asyncio accepts in a row, before any connection has been looked at, and answers a lack of
    descriptors with a line of log for each try; both end here.
    """

    door: Door

    @classmethod
    def over(cls, listener: socket.socket, door: Door) -> BoundedListener:
        """Takes the socket over."""
        timeout = listener.gettimeout()
        bounded = cls(listener.family, listener.type, listener.proto, fileno=listener.detach())
        bounded.settimeout(timeout)
        bounded.door = door
        return bounded

    def accept(self) -> tuple[socket.socket, Any]:
        """Raises BlockingIOError when nobody is left, or for now, who may come in."""
        door = self.door
        for _ in range(_REFUSED_AT_ONCE):
            connection, address = self._accept_one()
            if connection is None:
                continue
            if not door.full:
                door.open += 1
                return _Connection.through(door, connection), address
            door.refuse(connection, f"{door.open} are open")
        raise BlockingIOError(errno.EAGAIN, "others have their turn first")

    def _accept_one(self) -> tuple[socket.socket | None, Any]:
        """None for one that had to be refused for want of descriptors."""
        door = self.door
        door.take_spare()
        try:
            return super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if not door.give_up_spare():
                raise BlockingIOError(errno.EAGAIN, "no file descriptor is left") from error
        connection, address = super().accept()
        door.refuse(connection, "the process has no file descriptors left")
        return None, address

    def close(self) -> None:
        if hasattr(self, "door"):
            self.door.close()
        super().close()


class _Connection(socket.socket):
    """Leaves its door when it is closed."""

    _door: Door | None = None

    @classmethod
    def through(cls, door: Door, accepted: socket.socket) -> _Connection:
        made = cls(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        made._door = door
        return made

    def close(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            door.open -= 1
        super().close()


class Timing(msgspec.Struct, frozen=True):
    """Deadlines of one server's connections."""

    head_timeout_s: float = HEAD_TIMEOUT_S
    send_stall_s: float = SEND_STALL_S


def protocol_class(tell: Tell, timing: Timing) -> type[H11Protocol]:
    """uvicorn's HTTP/1.1 with deadlines, and with errors in the server's own form."""

    class Bounded(_BoundedProtocol):
        _tell = staticmethod(tell)
        _timing = timing

    return Bounded


class _BoundedProtocol(H11Protocol):
    """A connection ends that sends no whole head in time (uvicorn's own timeout begins only after
    a first answer), or that takes nothing of its answers."""

    _tell: Tell
    _timing: Timing

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        timing = self._timing
        self._head = _Deadline(self.loop, timing.head_timeout_s, self._head_overdue)
        self._stall = _Deadline(self.loop, timing.send_stall_s, transport.abort)
        self._head.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head.clear()
        self._stall.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle: Any = self.cycle  # None before the first
        if cycle is not None and not cycle.response_complete:
            self._head.clear()
        else:
            self._head.set()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall.set()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stall.clear()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._stall.set()  # closing waits for what is left to send; that has an end too

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _head_overdue(self) -> None:
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            timeout_s = self._timing.head_timeout_s
            self._refuse(408, f"the request did not arrive within {timeout_s:.0f} s")
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = self._tell(status, message)
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode("ascii")),
                (b"connection", b"close"),
            ]
            for event in (
                h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self._stall.set()
        self.transport.close()


class _Deadline:
    """Calls `passed` after a time, unless cleared before. Setting it again changes nothing."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, after_s: float, passed: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._after_s = after_s
        self._passed = passed
        self._timer: asyncio.TimerHandle | None = None

    def set(self) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(self._after_s, self._run)

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _run(self) -> None:
        self._timer = None
        self._passed()


class Sparing(logging.Filter):
    """Lets each warning through once in a while: clients must not fill the log."""

    def __init__(
        self, every_s: float = TOLD_EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._every_s = every_s
        self._clock = clock
        self._quiet_until_s: dict[str, float] = {}
        self._withheld: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        kind, now_s = str(record.msg), self._clock()
        if now_s < self._quiet_until_s.get(kind, now_s):
            self._withheld[kind] = self._withheld.get(kind, 0) + 1
            return False
        self._quiet_until_s[kind] = now_s + self._every_s
        record.withheld = self._withheld.pop(kind, 0)
        return True


def _spare() -> int:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
