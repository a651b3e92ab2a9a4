"""Models, health, metrics, listening, and many clients at once."""

from __future__ import annotations

import asyncio
import statistics
import time

import httpx
import pytest

from evctl.core.errors import UnreachableError
from evctl.gateway.app import create_app
from evctl.gateway.listener import listen
from tests.gateway.conftest import chat, completion, served
from tests.gateway.front_door import CONTEXT_TOKENS, FakeFrontDoor, says

CHAT = "/v1/chat/completions"


async def test_models(client: httpx.AsyncClient) -> None:
    model = {
        "id": "bytes",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "evctl",
        "max_model_len": CONTEXT_TOKENS,
    }
    assert (await client.get("/v1/models")).json() == {"object": "list", "data": [model]}
    assert (await client.get("/v1/models/bytes")).json() == model


async def test_health(client: httpx.AsyncClient, front_door: FakeFrontDoor) -> None:
    front_door.not_ready = "no node decodes"
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    ready = await client.get("/readyz")
    assert (ready.status_code, ready.json()["reason"]) == (503, "no node decodes")
    front_door.not_ready = ""
    assert (await client.get("/readyz")).json() == {"status": "ready"}


async def test_metrics(client: httpx.AsyncClient) -> None:
    await client.post(CHAT, json=chat(stream=True))
    await client.post("/v1/completions", json=completion([1] * 100))
    await client.post("/v1/completions", json=completion([]))
    await client.get("/nothing/" + "x" * 50)
    text = (await client.get("/metrics")).text
    for line in (
        'evctl_gateway_requests_total{route="/v1/chat/completions",status="200"} 1.0',
        'evctl_gateway_requests_total{route="/v1/completions",status="200"} 1.0',
        'evctl_gateway_requests_total{route="/v1/completions",status="400"} 1.0',
        'evctl_gateway_requests_total{route="other",status="404"} 1.0',
        "evctl_gateway_ttft_seconds_count 2.0",
        "evctl_gateway_e2e_seconds_count 2.0",
        "evctl_gateway_output_tokens_total 14.0",
        "evctl_gateway_in_flight 0.0",
        "evctl_gateway_disconnects_total 0.0",
    ):
        assert line in text.splitlines()


async def test_32_streaming_clients_are_served_alike(front_door: FakeFrontDoor) -> None:
    front_door.script = says("x" * 30, pause_s=0.002)

    async def one(client: httpx.AsyncClient) -> list[float]:
        ttft_s = []
        for _ in range(3):
            start_s = time.monotonic()
            async with client.stream("POST", CHAT, json=chat(stream=True)) as response:
                lines = response.aiter_lines()
                await anext(lines)
                ttft_s.append(time.monotonic() - start_s)
                rest = [line async for line in lines if line]
                assert rest[-1] == "data: [DONE]"
                assert len(rest) == 31
        return ttft_s

    async with served(front_door) as url, httpx.AsyncClient(base_url=url, timeout=30) as client:
        waits = await asyncio.gather(*(one(client) for _ in range(32)))
    slowest = [max(wait) for wait in waits]
    assert max(slowest) / statistics.median(slowest) < 5
    assert len(front_door.requests) == 96
    assert not front_door.running


async def test_a_long_prompt_does_not_hold_up_a_short_one(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    long = completion(["x" * 7_000_000])
    reads = [asyncio.create_task(client.post("/v1/completions", json=long)) for _ in range(3)]
    for _ in range(5):
        assert (await client.post("/v1/completions", json=completion())).status_code == 200
    for read in reads:
        assert (await read).status_code == 400


def test_a_taken_port_is_replaced_unless_that_is_refused() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with listen("127.0.0.1", port) as second:
            assert second.getsockname()[1] != port
        with pytest.raises(UnreachableError) as caught:
            listen("127.0.0.1", port, strict=True)
    assert caught.value.code == "EV-1503"


@pytest.mark.parametrize("keys", [{"": "t"}, {"k": ""}, {"k": "t" * 300}])
def test_unusable_keys_are_refused_at_start(
    front_door: FakeFrontDoor, keys: dict[str, str]
) -> None:
    with pytest.raises(ValueError):
        create_app(front_door, keys)
