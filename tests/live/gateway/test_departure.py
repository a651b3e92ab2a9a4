"""Clients that leave: within seconds their requests are gone from every node, and so are the
KV pages that they held."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from tests.live.gateway.cluster import KEY, Cluster, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

LONG_TOKENS = 3_000
"""Of output: nobody waits for their end."""


@contextmanager
def asked(cluster: Cluster, prompt: list[int], stream: bool) -> Iterator[socket.socket]:
    """A request without an end, sent and not read; leaving the block hangs up."""
    body = json.dumps(cluster.body(prompt, max_tokens=LONG_TOKENS, stream=stream))
    with cluster.connect() as connection:
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall((head + body).encode())
        yield connection


def hang_up(cluster: Cluster, connections: list[socket.socket]) -> dict[str, float]:
    """Each is cancelled, none ends in another way, and the cluster comes to rest in time.
    Returns in which stages the engines met them."""
    before = cluster.ended()
    for connection in connections:
        connection.close()
    cluster.comes_to_rest()
    after = cluster.ended()
    assert after == {**before, "cancelled": before["cancelled"] + len(connections)}
    return met(cluster)


def met(cluster: Cluster) -> dict[str, float]:
    """How many requests engines cancelled so far, by stage."""
    stages = ("waiting", "prefill", "handing_over", "decode")
    return {stage: sum(cluster.engines(f"cancelled_in_{stage}").values()) for stage in stages}


def prompt(number: int, length: int = 40) -> list[int]:
    return [number, *((13 * i + number) % 256 for i in range(length - 1))]


@pytest.mark.parametrize("stream", [True, False])
def test_gone_while_it_decodes(cluster: Cluster, stream: bool) -> None:
    before = met(cluster)
    with asked(cluster, prompt(1), stream) as one, asked(cluster, prompt(2), stream) as two:
        until(lambda: cluster.status()["decode"]["running"] == 2, "two that decode")
        until(lambda: any(node["l1"] for node in cluster.status()["nodes"]), "KV in use")
        if stream:
            assert one.recv(100).startswith(b"HTTP/1.1 200 ")
        after = hang_up(cluster, [one, two])
    assert after == {**before, "decode": before["decode"] + 2}


@pytest.mark.parametrize("stream", [True, False])
def test_gone_in_the_middle_of_a_prompt(cluster: Cluster, stream: bool) -> None:
    """A prompt of sixteen chunks."""
    before = met(cluster)
    with asked(cluster, prompt(3 + stream, 4_000), stream) as one:
        until(lambda: cluster.status()["prefill"]["running"] == 1, "one that is prefilled")
        after = hang_up(cluster, [one])
    assert after == {**before, "prefill": before["prefill"] + 1}


@pytest.mark.parametrize("stream", [True, False])
def test_gone_while_it_waits(cluster: Cluster, stream: bool) -> None:
    """A prefill node has memory for one such prompt at a time; the others wait behind it."""
    before = met(cluster)
    with ExitStack() as stack:
        connections = [
            stack.enter_context(asked(cluster, prompt(10 + 6 * stream + i, 3_500), stream))
            for i in range(6)
        ]

        def some_wait() -> bool:
            prefill = cluster.status()["prefill"]
            return prefill["running"] >= 1 and prefill["waiting"] >= 2

        until(some_wait, "requests that wait behind others", 20.0)
        after = hang_up(cluster, connections)
    assert after["waiting"] > before["waiting"]
    assert sum(after.values()) == sum(before.values()) + 6


def test_gone_between_the_phases(cluster: Cluster) -> None:
    """The decode node takes two; the others hold their KV where it was computed."""
    before = met(cluster)
    with ExitStack() as stack:
        connections = [
            stack.enter_context(asked(cluster, prompt(30 + number), stream=True))
            for number in range(6)
        ]
        until(
            lambda: (
                (decode := cluster.status()["decode"])["running"] == 2 and decode["waiting"] == 4
            ),
            "four that wait for the decode node",
        )
        after = hang_up(cluster, connections)
    assert after["decode"] >= before["decode"] + 2
    assert after["handing_over"] > before["handing_over"]
    assert sum(after.values()) == sum(before.values()) + 6


def test_gone_at_every_moment(cluster: Cluster) -> None:
    """One after the other, each a little later in its life than the one before."""
    before = cluster.ended()
    for number in range(20):
        with asked(cluster, prompt(100 + number, 300), stream=bool(number % 2)) as connection:
            connection.settimeout(number * 0.01 or None)
            if number:
                try:
                    connection.recv(1)
                except TimeoutError:
                    pass  # this one leaves before it was answered
    cluster.comes_to_rest()
    after = cluster.ended()
    assert (after["done"], after["failed"]) == (before["done"], before["failed"])
    assert after["cancelled"] - before["cancelled"] <= 20


def test_a_client_that_stays_gets_all_of_it_beside_those_that_leave(cluster: Cluster) -> None:
    body = cluster.body(prompt(201), max_tokens=60)
    alone = cluster.ask(prompt(201), max_tokens=60)["choices"][0]["token_ids"]
    with cluster.http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        tokens: list[int] = []
        for number, event in enumerate(events_of(response)):
            tokens += event["choices"][0]["token_ids"]
            if number % 10 == 0:
                with asked(cluster, prompt(210 + number), stream=True):
                    pass  # comes and goes
    cluster.asked += 1
    assert tokens == alone
    assert len(tokens) == 60


def events_of(response: httpx.Response) -> Iterator[dict]:
    for line in response.iter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))
