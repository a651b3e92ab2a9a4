"""A gateway in this process, served by uvicorn on a loopback port, and a client of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from evctl.gateway.app import create_app
from evctl.gateway.limits import GatewayLimits
from evctl.gateway.listener import listen
from tests.gateway.front_door import FakeFrontDoor, byte_model, says


async def until(true: Callable[[], bool], timeout_s: float = 5.0) -> float:
    """Wait for a condition; returns how long it took, in seconds."""
    start_s = time.monotonic()
    while not true():
        if time.monotonic() - start_s > timeout_s:
            raise TimeoutError(f"waited {timeout_s} s")
        await asyncio.sleep(0.002)
    return time.monotonic() - start_s


@asynccontextmanager
async def served(
    front_door: FakeFrontDoor,
    api_keys: dict[str, str] | None = None,
    limits: GatewayLimits | None = None,
) -> AsyncIterator[str]:
    """The base URL of a gateway."""
    app = create_app(front_door, api_keys or {}, limits=limits or GatewayLimits())
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
        )
        # serve() without its signal handlers, and without the ticks that its end waits for.
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=[listener])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            if server.server_state.tasks:
                await server.shutdown(sockets=[listener])
            else:  # what shutdown does, without its fixed wait
                for connection in list(server.server_state.connections):
                    connection.shutdown()
                for accepting in server.servers:
                    accepting.close()
                await server.lifespan.shutdown()


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bytes")


@pytest.fixture
def front_door(model_directory: Path) -> FakeFrontDoor:
    return FakeFrontDoor(byte_model(model_directory), says("Paris."))


@pytest.fixture
async def url(front_door: FakeFrontDoor) -> AsyncIterator[str]:
    async with served(front_door) as base:
        yield base


@pytest.fixture
async def client(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, timeout=20) as http:
        yield http


def chat(text: str = "What is the capital of France?", **fields: object) -> dict[str, object]:
    """The body of a chat request."""
    return {"model": "bytes", "messages": [{"role": "user", "content": text}], **fields}


def completion(prompt: object = "Hello", **fields: object) -> dict[str, object]:
    """The body of a text completion."""
    return {"model": "bytes", "prompt": prompt, **fields}
