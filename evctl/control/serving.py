"""HTTP servers on the control plane's loop, which end when we say so."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from evctl.control.connections import BoundedListener, Door, Timing, protocol_class
from evctl.core.errors import UnreachableError

START_TIMEOUT_S = 10.0
GRACE_S = 2
"""How long open connections may take to finish when a server ends."""
_TIMING = Timing()


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process has its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """One ASGI app on one listening socket. door: how many connections it takes."""

    def __init__(
        self,
        app: Any,
        listener: socket.socket,
        name: str,
        door: Door | None = None,
        timing: Timing = _TIMING,
    ) -> None:
        door = door or Door(name)
        config = uvicorn.Config(
            app,
            http=protocol_class(door.tell, timing),
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
            ws="none",
            server_header=False,
        )
        self._server = _Server(config)
        self._listener = BoundedListener.over(listener, door)
        self._name = name
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Returns once it accepts connections."""
        serving = self._server.serve(sockets=[self._listener])
        self._task = asyncio.create_task(serving, name=self._name)
        async with asyncio.timeout(START_TIMEOUT_S):
            while not self._server.started:
                if self._task.done():
                    self._task.result()
                    raise RuntimeError(f"the {self._name} server ended at its start")
                await asyncio.sleep(0.01)

    async def close(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._listener.close()


def listen_unix(path: Path) -> socket.socket:
    """A listening unix socket that only this user can reach; replaces what lies at `path`."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(128)
    listener.setblocking(False)
    return listener


def listen_tcp(host: str, ports: list[int]) -> socket.socket:
    """A listening socket on the first of `ports` that is free; 0 is any.

    Raises UnreachableError (EV-1371) when none is.
    """
    problem = ""
    for port in ports:
        try:
            listener = socket.create_server((host, port), family=_family(host), backlog=512)
        except OSError as error:
            problem = f"port {port}: {error.strerror or error}"
            continue
        listener.setblocking(False)
        return listener
    raise UnreachableError(
        what=f"the gateway cannot listen on {host}",
        why=problem,
        next_step="end what uses the port, or choose another one: gateway.port",
        code="EV-1371",
    )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def url_of(listener: socket.socket) -> str:
    """http://HOST:PORT of a TCP listener."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
