"""A server's connections: how many, for how long, and what is said to what is no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Iterator
from typing import IO, Any

import pytest
import pytest_asyncio

from evctl.control.connections import Door, Shares, Sparing, Timing, raise_descriptor_limit
from evctl.control.serving import HttpServer, listen_tcp
from evctl.gateway.apierror import told_below_http

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    size = 10_000_000 if scope["path"] == "/large" else 2
    headers = [(b"content-length", str(size).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"o" * size})


class Served:
    def __init__(self, most: int, timing: Timing) -> None:
        self.refused = 0
        self.door = Door("test", most, tell=told_below_http, on_refused=self._count)
        self.listener = listen_tcp("127.0.0.1", [0])
        self.port = self.listener.getsockname()[1]
        self.server = HttpServer(app, self.listener, "test", self.door, timing)

    def _count(self) -> None:
        self.refused += 1

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, raw: bytes) -> tuple[int, dict[str, Any]]:
        """Status and JSON body of an answer after which the server closes."""
        reader, writer = await self.connect()
        writer.write(raw)
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert b"content-type: application/json" in head
        return int(head.split()[1]), json.loads(body)


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    made = Served(4, Timing(head_timeout_s=0.3, send_stall_s=0.4))
    await made.server.start()
    yield made
    await made.server.close()


async def until(true: Any, timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not true():
            await asyncio.sleep(0.01)


async def test_one_connection_too_many_is_turned_away_at_once(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    held = [await served.connect() for _ in range(4)]
    await until(lambda: served.door.open == 4)
    for _ in range(50):
        reader, writer = await served.connect()
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"] == "server_error"
        writer.close()
    assert served.refused == served.door.refused == 50
    assert sum("turned away" in record.message for record in caplog.records) == 1
    held[0][1].close()
    await until(lambda: served.door.open < 4)
    reader, writer = await served.connect()
    writer.write(REQUEST)
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 200")
    for _, each in [*held, (reader, writer)]:
        each.close()
    await until(lambda: served.door.open == 0)


async def test_who_says_nothing_is_let_go(served: Served) -> None:
    reader, writer = await served.connect()
    start_s = time.monotonic()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert time.monotonic() - start_s < 2
    writer.close()


@pytest.mark.parametrize("first", [b"", REQUEST])
async def test_half_a_head_has_a_deadline_however_it_drips(served: Served, first: bytes) -> None:
    reader, writer = await served.connect()
    if first:
        writer.write(first)
        assert (await reader.readuntil(b"oo")).startswith(b"HTTP/1.1 200")
    start_s = time.monotonic()
    writer.write(b"GET / HTTP/1.1\r\n")
    answer = b""
    while not answer:
        writer.write(b"x: y\r\n")
        try:
            answer = await asyncio.wait_for(reader.read(), 0.05)
        except TimeoutError:
            continue
    assert 0.2 < time.monotonic() - start_s < 2
    assert answer.startswith(b"HTTP/1.1 408")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
    writer.close()


async def test_a_client_that_takes_nothing_is_let_go(served: Served) -> None:
    _, writer = await served.connect()
    writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
    await until(lambda: served.door.open == 1)
    writer.transport.pause_reading()
    await until(lambda: served.door.open == 0)
    writer.close()


@pytest.mark.parametrize(
    "raw", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET  /\r\n\r\n"]
)
async def test_what_is_no_http_is_refused_in_our_form(served: Served, raw: bytes) -> None:
    status, body = await served.ask(raw)
    assert status == 400
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] == "invalid_request_error"


async def test_clients_do_not_fill_the_log() -> None:
    now_s = 0.0
    filtered = Sparing(60.0, lambda: now_s)

    def passes(level: int) -> bool:
        return bool(filtered.filter(logging.LogRecord("u", level, "", 0, "Invalid", (), None)))

    assert [passes(logging.WARNING) for _ in range(3)] == [True, False, False]
    assert all(passes(logging.ERROR) for _ in range(3))
    now_s = 61.0
    assert passes(logging.WARNING)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_descriptors_connections_are_refused_not_left_waiting(
    few_descriptors: None, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served(1_000, Timing())
    half = socket.socket()
    half.setblocking(False)
    await served.server.start()
    files: list[IO[bytes]] = []
    try:
        files = _use_up()
        await asyncio.get_running_loop().sock_connect(half, ("127.0.0.1", served.port))
        answer = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(half, 1000), 5)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert served.refused == 1
        assert not [r for r in caplog.records if r.name == "asyncio" and r.levelno > logging.INFO]
        files.pop().close()
        files.pop().close()
        _, writer = await served.connect()
        await until(lambda: served.door.open == 1)
        writer.close()
    finally:
        half.close()
        for file in files:
            file.close()
        await served.server.close()


def _use_up() -> list[IO[bytes]]:
    files = []
    with contextlib.suppress(OSError):
        while True:
            files.append(open(os.devnull, "rb"))  # noqa: PTH123, SIM115
    return files


def test_the_limit_is_raised_and_shared_out(few_descriptors: None) -> None:
    soft = raise_descriptor_limit(300)
    assert soft == 300 == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert raise_descriptor_limit(100) == 300, "never lowered"
    for descriptors, nodes in ((64, 1), (256, 3), (1024, 3), (1024, 100), (65_536, 500)):
        shares = Shares(descriptors, nodes)
        assert min(shares.gateway, shares.admin) >= 8
        if descriptors > 200:
            assert shares.gateway + shares.admin + nodes < descriptors - 50
