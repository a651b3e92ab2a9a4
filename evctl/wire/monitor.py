"""What libzmq tells about connections: completed and failed handshakes, disconnects."""

from __future__ import annotations

import os
import struct
from itertools import count
from typing import Final, NamedTuple

import zmq

WATCHED: Final = (
    zmq.EVENT_CONNECT_DELAYED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_CONNECTED
    | zmq.EVENT_ACCEPT_FAILED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)

_EVENT: Final = struct.Struct("=HI")
_PROTOCOL_ERRORS: Final = {
    int(value): name.removeprefix("PROTOCOL_ERROR_").lower()
    for name, value in zmq.Event.__members__.items()
    if name.startswith("PROTOCOL_ERROR_")
}
_numbers = count(1)


class ConnectionEvent(NamedTuple):
    """kind: a zmq.Event. value: errno, ZAP status or protocol error, depending on it."""

    kind: int
    value: int


class ConnectionMonitor:
    """Reads the events of one socket; belongs to that socket's thread.

    Its queue is unbounded, at about 100 bytes an event: libzmq's I/O thread would otherwise
    block once it is full, and one peer that reconnects all the time would stall all others.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes]) -> None:
        endpoint = f"inproc://evctl.monitor.{os.getpid()}.{next(_numbers)}"
        self._watched = socket
        socket.monitor(endpoint, WATCHED)
        self.socket: zmq.Socket[bytes] = context.socket(zmq.PAIR, socket_class=zmq.Socket)
        self.socket.linger = 0
        self.socket.rcvhwm = 0
        self.socket.connect(endpoint)

    def drain(self) -> list[ConnectionEvent]:
        """All events since the last call, oldest first. Does not block."""
        events = []
        while int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            frames = self.socket.recv_multipart(zmq.NOBLOCK)
            if len(frames[0]) == _EVENT.size:
                events.append(ConnectionEvent(*_EVENT.unpack(frames[0])))
        return events

    def close(self) -> None:
        """Call before the watched socket is closed."""
        self._watched.monitor(None, 0)
        self.socket.close()


def describe_failure(event: ConnectionEvent) -> str:
    """Why a handshake failed, in words."""
    if event.kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return f"the listener does not allow this key (status {event.value})"
    if event.kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        name = _PROTOCOL_ERRORS.get(event.value, f"{event.value:#x}")
        return f"protocol error {name}: the peer expects another server key, or is not evctl"
    return (
        f"the peer ended the handshake ({os.strerror(event.value)}): it is gone,"
        " too slow, or its server key is not the expected one"
    )
