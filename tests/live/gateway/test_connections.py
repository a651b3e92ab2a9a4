"""Bytes that are no proper HTTP, and clients that take their time."""

from __future__ import annotations

import json
import socket

import pytest

from tests.live.gateway.cluster import KEY, Cluster, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

AUTH = f"Authorization: Bearer {KEY}\r\n"
NEXT = "GET /v1/models HTTP/1.1\r\nHost: x\r\n" + AUTH + "\r\n"
"""Smuggled behind another request; if it is answered, it got through."""


def head(*lines: str, version: str = "1.1", path: str = "/v1/completions") -> str:
    names = "".join(f"{line}\r\n" for line in lines)
    return f"POST {path} HTTP/{version}\r\nHost: x\r\n{AUTH}{names}\r\n"


SMUGGLED: dict[str, str] = {
    "two lengths": head("Content-Length: 2", "Content-Length: 3") + "{}" + NEXT,
    "two lengths in one": head("Content-Length: 2, 3") + "{}" + NEXT,
    "length and chunks": head("Content-Length: 5", "Transfer-Encoding: chunked")
    + "0\r\n\r\n"
    + NEXT,
    "chunks and length": head("Transfer-Encoding: chunked", "Content-Length: 500")
    + "0\r\n\r\n"
    + NEXT,
    "two codings": head("Transfer-Encoding: chunked", "Transfer-Encoding: identity") + NEXT,
    "unknown coding": head("Transfer-Encoding: xchunked") + "0\r\n\r\n" + NEXT,
    "chunks in HTTP/1.0": head("Transfer-Encoding: chunked", version="1.0") + "0\r\n\r\n" + NEXT,
    "blank before the colon": head("Content-Length : 2") + "{}" + NEXT,
    "signed length": head("Content-Length: +2") + "{}" + NEXT,
    "hexadecimal length": head("Content-Length: 0x2") + "{}" + NEXT,
    "negative length": head("Content-Length: -1") + NEXT,
    "bad chunk size": head("Transfer-Encoding: chunked") + "-2\r\n{}\r\n0\r\n\r\n" + NEXT,
    "two hosts": head("Host: y", "Content-Length: 2") + "{}" + NEXT,
    "line end in a header": head("X-Branch-Id: a\rX: b", "Content-Length: 2") + "{}" + NEXT,
    "zero in a header": head("X-Branch-Id: a\0b", "Content-Length: 2") + "{}" + NEXT,
    "a header of 1 MB": head("X-Long: " + "a" * 1_000_000) + NEXT,
    "10,000 headers": head(*["X-Many: 123456"] * 10_000) + NEXT,
    "an address of 1 MB": head(path="/" + "a" * 1_000_000) + NEXT,
    "no HTTP": "hello\r\n\r\n" + NEXT,
    "the start of TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + "a" * 500 + "\r\n\r\n",
}


def test_smuggled_and_broken_requests(untouched: Cluster, subtests: pytest.Subtests) -> None:
    for name, raw in SMUGGLED.items():
        with subtests.test(name):
            answer = untouched.send(raw.encode("latin-1"))  # reads until it is closed
            assert answer.startswith(b"HTTP/1.1 400 "), answer[:200]
            assert answer.count(b"HTTP/1.1 ") == 1, "what follows is not taken for a request"
            assert b"random-4l256" not in answer
            untouched.answers_as_before()
    with subtests.test("HTTP/2"):
        answer = untouched.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + NEXT.encode())
        assert b"random-4l256" not in answer
        assert b" 400 " in answer


@pytest.mark.parametrize("stream", [False, True])
def test_http_1_0_is_served_and_closed(cluster: Cluster, stream: bool) -> None:
    body = json.dumps(cluster.body(stream=stream))
    raw = head("Content-Length: " + str(len(body)), version="1.0") + body
    cluster.asked += 1
    answer_head, _, rest = cluster.send(raw.encode()).partition(b"\r\n\r\n")
    assert answer_head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in answer_head.lower(), "HTTP/1.0 knows no chunks"
    tokens: list[int] = []
    if stream:
        events = rest.decode().removesuffix("\n\n").split("\n\n")
        assert events.pop() == "data: [DONE]"
        for event in events:
            tokens += json.loads(event.removeprefix("data: "))["choices"][0]["token_ids"]
    else:
        tokens = json.loads(rest)["choices"][0]["token_ids"]
    assert tokens == cluster.wanted


def test_requests_sent_one_behind_the_other_are_answered_in_order(cluster: Cluster) -> None:
    bodies = [json.dumps(cluster.body([index] * 20, max_tokens=2)) for index in range(4)]
    raw = "".join(head(f"Content-Length: {len(body)}") + body for body in bodies)
    last = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    answer = cluster.send((raw + last).encode())
    assert answer.count(b"HTTP/1.1 200 OK") == 5
    found = [json.loads(part.split(b"\r\n\r\n")[1]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    tokens = [each["choices"][0]["token_ids"] for each in found[:-1]]
    wanted = [cluster.ask([i] * 20, max_tokens=2)["choices"][0]["token_ids"] for i in range(4)]
    assert tokens == wanted
    assert found[-1] == {"status": "ok"}


def test_clients_that_never_finish_hold_up_nobody(untouched: Cluster) -> None:
    """Half-sent heads and bodies, many at once; nothing is left of them when they go."""
    slow: list[socket.socket] = []
    try:
        for _ in range(50):
            for raw in (
                head("Content-Length: 1000") + '{"model": ',
                head("Transfer-Encoding: chunked") + "5\r\n{",
                head("Content-Length: 1000")[:-20],
            ):
                connection = untouched.connect()
                slow.append(connection)
                connection.sendall(raw.encode())
        until(lambda: untouched.gateway_metric("evctl_gateway_in_flight") == 100, "100 bodies", 5)
        for _ in range(5):
            untouched.answers_as_before()
            for connection in slow:
                connection.sendall(b" " if connection is not slow[-1] else b"a")
    finally:
        for connection in slow:
            connection.close()
    until(lambda: untouched.gateway_metric("evctl_gateway_in_flight") == 0, "empty gateway", 5)
