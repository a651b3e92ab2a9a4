"""What the gateway costs: `python -m tests.gateway.overhead`, on a loopback port in this process.

The front door answers at once with 32 tokens, one a message, so every figure is the gateway's,
uvicorn's and the client's together. Prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from tests.gateway.conftest import chat, completion, served
from tests.gateway.front_door import FakeFrontDoor, byte_model, says

CHAT = "/v1/chat/completions"
OUTPUT = "x" * 31


async def measure() -> dict[str, float]:
    """Milliseconds of one client, requests a second of 32."""
    with tempfile.TemporaryDirectory() as directory:
        front_door = FakeFrontDoor(byte_model(Path(directory)), says(OUTPUT))
        async with (
            served(front_door) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as client,
        ):
            await _whole(client)
            return {
                "healthz_ms": await _median_ms(client, _health, 300),
                "one_client_whole_ms": await _median_ms(client, _whole, 300),
                "one_client_stream_ms": await _median_ms(client, _stream, 200),
                "one_client_1500_tokens_ms": await _median_ms(client, _long, 100),
                "whole_rps_at_32": await _rate(client, _whole, 32, 40),
                "stream_rps_at_32": await _rate(client, _stream, 32, 20),
            }


async def _health(client: httpx.AsyncClient) -> None:
    await client.get("/healthz")


async def _whole(client: httpx.AsyncClient) -> None:
    response = await client.post(CHAT, json=chat())
    assert response.status_code == 200


async def _long(client: httpx.AsyncClient) -> None:
    response = await client.post("/v1/completions", json=completion([1] * 1_500, max_tokens=1))
    assert response.status_code == 200


async def _stream(client: httpx.AsyncClient) -> None:
    """By a bare socket: httpx takes longer to read a stream than the gateway to write it."""
    body = json.dumps(chat(stream=True)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(head.encode() + body)
    await reader.readuntil(b"[DONE]")
    writer.close()


async def _median_ms(client: httpx.AsyncClient, call, times: int) -> float:
    took_s = []
    for _ in range(times):
        start_s = time.perf_counter()
        await call(client)
        took_s.append(time.perf_counter() - start_s)
    return round(statistics.median(took_s) * 1e3, 2)


async def _rate(client: httpx.AsyncClient, call, clients: int, each: int) -> float:
    async def one() -> None:
        for _ in range(each):
            await call(client)

    start_s = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(clients)))
    return round(clients * each / (time.perf_counter() - start_s), 1)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure()), indent=1))
