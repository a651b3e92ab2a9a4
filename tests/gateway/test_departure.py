"""A client that leaves: its request ends everywhere within a fraction of a second."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from evctl.control.frontdoor import InferenceRequest
from evctl.gateway.limits import GatewayLimits
from evctl.wire.messages import Tokens
from tests.gateway.conftest import chat, completion, served, until
from tests.gateway.front_door import FakeFrontDoor, Script, endless, says, silent, tokens

CHAT = "/v1/chat/completions"
SOON_S = 0.5


async def metric(client: httpx.AsyncClient, name: str) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def test_leaving_in_the_middle_of_a_stream(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    front_door.script = endless
    async with client.stream("POST", CHAT, json=chat(stream=True)) as response:
        lines = response.aiter_lines()
        for _ in range(5):
            await anext(lines)
    took_s = await until(lambda: bool(front_door.closed))
    assert took_s < SOON_S
    assert not front_door.running
    await until_metric(client, "evctl_gateway_disconnects_total", 1)
    assert await metric(client, "evctl_gateway_in_flight") == 0


async def until_metric(client: httpx.AsyncClient, name: str, value: float) -> None:
    async with asyncio.timeout(5):
        while await metric(client, name) != value:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("script", "stream"), [(silent, False), (silent, True), (endless, False)])
async def test_leaving_before_the_first_byte_of_an_answer(
    client: httpx.AsyncClient, front_door: FakeFrontDoor, script: Script, stream: bool
) -> None:
    front_door.script = script
    request = asyncio.create_task(client.post(CHAT, json=chat(stream=stream)))
    await until(lambda: bool(front_door.running))
    request.cancel()
    took_s = await until(lambda: bool(front_door.closed))
    assert took_s < SOON_S
    await until_metric(client, "evctl_gateway_disconnects_total", 1)
    front_door.script = says("alive")
    assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_leaving_while_the_body_is_sent(url: str, client: httpx.AsyncClient) -> None:
    host, port = url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    await until_metric(client, "evctl_gateway_in_flight", 1)
    writer.close()
    await until_metric(client, "evctl_gateway_in_flight", 0)
    assert await metric(client, "evctl_gateway_disconnects_total") == 1


async def test_a_client_that_reads_nothing_is_given_up(front_door: FakeFrontDoor) -> None:
    async def flood(request: InferenceRequest) -> AsyncIterator[Tokens]:
        start = 0
        while True:
            yield tokens(request, start, [97] * 10_000)
            start += 10_000
            await asyncio.sleep(0)

    front_door.script = flood
    limits = GatewayLimits(send_timeout_s=0.3)
    async with served(front_door, limits=limits) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1_000)
        body = b'{"model": "bytes", "prompt": "x", "stream": true, "return_token_ids": true}'
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        writer.write(body)
        await until(lambda: bool(front_door.closed), 20)
        writer.close()


async def test_a_stop_string_closes_the_request_at_once(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    front_door.script = endless
    response = await client.post("/v1/completions", json=completion(stop="aaa"))
    assert response.json()["choices"][0]["finish_reason"] == "stop"
    assert front_door.closed == [response.json()["id"]]
    assert not front_door.running


async def test_the_server_stops_while_a_stream_runs(front_door: FakeFrontDoor) -> None:
    front_door.script = endless
    async with httpx.AsyncClient(timeout=10) as client:
        async with served(front_door) as url:
            stream = client.stream("POST", url + CHAT, json=chat(stream=True))
            response = await stream.__aenter__()
            await anext(response.aiter_lines())
            await stream.__aexit__(None, None, None)
        assert not front_door.running
