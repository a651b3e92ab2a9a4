"""Overload, and a cluster that is not there yet: 429 and 503, always with Retry-After."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from evctl.control.frontdoor import InferenceRequest, OverloadedError
from evctl.gateway.limits import GatewayLimits
from evctl.wire.messages import Tokens
from tests.gateway.conftest import chat, served, until
from tests.gateway.front_door import FakeFrontDoor, byte_model, says, silent
from tests.gateway.test_bad_input import CHAT, assert_error


@pytest.mark.parametrize("stream", [False, True])
async def test_overload_is_a_429_with_retry_after(
    client: httpx.AsyncClient, front_door: FakeFrontDoor, stream: bool
) -> None:
    async def overloaded(request: InferenceRequest) -> AsyncIterator[Tokens]:
        raise OverloadedError("256 requests are queued", 2.2)
        yield

    front_door.script = overloaded
    response = await client.post(CHAT, json=chat(stream=stream))
    assert "256 requests" in assert_error(response, 429, type="rate_limit_error")["message"]
    assert response.headers["retry-after"] == "3"


async def test_too_many_at_once_is_a_429_too(front_door: FakeFrontDoor) -> None:
    front_door.script = silent
    limits = GatewayLimits(max_in_flight=1)
    async with (
        served(front_door, limits=limits) as url,
        httpx.AsyncClient(base_url=url, timeout=10) as client,
    ):
        first = asyncio.create_task(client.post(CHAT, json=chat()))
        await until(lambda: bool(front_door.running))
        response = await client.post(CHAT, json=chat())
        assert_error(response, 429)
        assert response.headers["retry-after"] == "1"
        first.cancel()
        await until(lambda: not front_door.running)
        front_door.script = says("ok")
        assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_held_bytes_are_bounded(front_door: FakeFrontDoor) -> None:
    limits = GatewayLimits(max_held_body_bytes=10)
    async with served(front_door, limits=limits) as url, httpx.AsyncClient(base_url=url) as client:
        assert_error(await client.post(CHAT, json=chat()), 429)


async def test_a_body_that_never_comes_is_given_up(front_door: FakeFrontDoor) -> None:
    limits = GatewayLimits(body_timeout_s=0.1)
    async with served(front_door, limits=limits) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()


async def test_before_an_engine_has_joined(model_directory: Path) -> None:
    front_door = FakeFrontDoor(None, says("x"))
    front_door.not_ready = "no engine has joined"
    async with served(front_door) as url, httpx.AsyncClient(base_url=url) as client:
        response = await client.post(CHAT, json=chat())
        assert "no engine has joined" in assert_error(response, 503)["message"]
        assert response.headers["retry-after"] == "1"
        ready = await client.get("/readyz")
        assert (ready.status_code, ready.json()["reason"]) == (503, "no engine has joined")
        assert (await client.get("/v1/models")).json() == {"object": "list", "data": []}
        front_door.card, front_door.not_ready = byte_model(model_directory), ""
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.post(CHAT, json=chat())).status_code == 200
