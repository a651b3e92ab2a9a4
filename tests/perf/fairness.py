"""Whether many clients at once are served alike:
`python -m tests.perf.fairness URL [--clients 32] [--seconds 60]`, against a cluster that is up.

Each client streams one completion after another over a connection of its own: a prompt of its own
of 64 to 512 tokens, 16 tokens out. Starvation is what a mean hides, so the figure is the slowest
time to first token of all requests over the median one, and the client that was served worst.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time

import httpx

GOAL_RATIO = 5.0


async def one_request(http: httpx.AsyncClient, model: str, rng: random.Random) -> float:
    """Seconds to the first token; the stream is read to its end, which must be [DONE]."""
    body = {
        "model": model,
        "prompt": [rng.randrange(3, 250) for _ in range(rng.randrange(64, 513))],
        "max_tokens": 16,
        "temperature": 0,
        "stream": True,
    }
    started_s = time.monotonic()
    first_s, last = None, ""
    async with http.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError((await response.aread()).decode())
        async for line in response.aiter_lines():
            if line.startswith("data: {") and first_s is None:
                first_s = time.monotonic() - started_s
            last = line or last
    if first_s is None or last != "data: [DONE]":
        raise RuntimeError(f"a stream ended early: {last!r}")
    return first_s


async def client(url: str, model: str, seed: int, until_s: float, ttfts: list[float]) -> None:
    rng = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        while time.monotonic() < until_s:
            ttfts.append(await one_request(http, model, rng))


async def measure(url: str, clients: int, seconds: float) -> list[list[float]]:
    """Times to first token in seconds, a list a client."""
    model = httpx.get(f"{url}/v1/models").raise_for_status().json()["data"][0]["id"]
    until_s = time.monotonic() + seconds
    ttfts: list[list[float]] = [[] for _ in range(clients)]
    async with asyncio.TaskGroup() as group:
        for seed, mine in enumerate(ttfts):
            group.create_task(client(url, model, seed, until_s, mine))
    return ttfts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    ttfts = asyncio.run(measure(options.url, options.clients, options.seconds))
    every = [ttft for mine in ttfts for ttft in mine]
    median_s, slowest_s = statistics.median(every), max(every)
    means = sorted(statistics.mean(mine) for mine in ttfts)
    counts = sorted(len(mine) for mine in ttfts)
    ratio = slowest_s / median_s
    print(
        f"{len(every)} requests of {options.clients} clients in {options.seconds:.0f} s, 0 failed"
    )
    print(f"TTFT median {median_s:.3f} s, slowest {slowest_s:.3f} s: ratio {ratio:.2f}")
    print(f"mean TTFT of a client: {means[0]:.3f} to {means[-1]:.3f} s")
    print(f"requests of a client: {counts[0]} to {counts[-1]}")
    return 0 if ratio < GOAL_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
