"""The TCP socket that a gateway is served on."""

from __future__ import annotations

import errno
import socket

from evctl.core.errors import UnreachableError

BACKLOG_CONNECTIONS = 2_048


def listen(host: str, port: int, *, strict: bool = False) -> socket.socket:
    """A socket for uvicorn's `sockets`; on a free port where `port` is taken, unless strict.

    Answers leave at once: asyncio does not do that for sockets that it did not make, and the
    40 ms that TCP may wait for more would be added to each. Raises UnreachableError (EV-1503).
    """
    try:
        listener = _bound(host, port)
    except OSError as error:
        if strict or error.errno != errno.EADDRINUSE:
            raise _unusable(host, port, error) from error
        try:
            listener = _bound(host, 0)
        except OSError as second:
            raise _unusable(host, 0, second) from second
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG_CONNECTIONS)


def _unusable(host: str, port: int, error: OSError) -> UnreachableError:
    return UnreachableError(
        what=f"the gateway cannot listen on {host}:{port}",
        why=error.strerror or str(error),
        next_step="choose another gateway host or port, or stop what uses this one",
        code="EV-1503",
    )
