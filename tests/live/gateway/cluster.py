"""A cluster that `evctl up` started, and what can be seen of it from outside."""

from __future__ import annotations

import re
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest_socket

from tests.live.shell import Shell

KEYS = {"sk-acme-12345678": "acme", "sk-umbra-12345678": "umbra"}
KEY, OTHER_KEY = KEYS
REST_S = 5.0
"""Five times what is promised for a cancel, and several heartbeats."""
WAIT_S = 60.0
_ENGINE = re.compile(r'^evctl_engine\{node="(\w+)",what="(\w+)"\} (\S+)$', re.MULTILINE)
GOOD_PROMPT = [(7 * i + 3) % 256 for i in range(75)]
UNCACHED_TOKENS = 75 % 16
"""Of the good prompt, once it was asked before: the block that is not full."""


def allow_sockets() -> None:
    """The admin API is on a unix socket; the rest of the run may not connect to any."""
    pytest_socket.socket_allow_hosts(["127.0.0.1", "::1"], allow_unix_socket=True)


def until(true: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> float:
    """Poll for a condition; how long it took, in seconds."""
    start_s = time.monotonic()
    while not true():
        assert time.monotonic() - start_s < timeout_s, f"no {what} within {timeout_s} s"
        time.sleep(0.02)
    return time.monotonic() - start_s


class Cluster:
    """Gateway and admin API of a running cluster, and the figures of its engines."""

    def __init__(self, shell: Shell, model: str) -> None:
        self.shell = shell
        self.model = model
        status = shell.json("status")
        self.url: str = status["gateway"]
        self.nodes = {node["name"]: node["role"] for node in status["nodes"]}
        self.http = httpx.Client(
            base_url=self.url,
            timeout=WAIT_S,
            headers={"Authorization": f"Bearer {KEY}"},
            event_hooks={"request": [self._note]},
        )
        socket_path = status["admin"].removeprefix("unix:")
        self._admin = httpx.Client(
            transport=httpx.HTTPTransport(uds=socket_path), base_url="http://evctl"
        )
        self.wanted: list[int] = []
        self.asked = 0
        """Good requests so far."""
        self.rested = False
        """Nothing was sent since the cluster was last seen at rest."""

    def close(self) -> None:
        self.http.close()
        self._admin.close()

    # ------------------------------------------------------------ asking

    def body(self, prompt: object = None, **fields: object) -> dict[str, Any]:
        """A good text completion, greedy and of 8 tokens unless `fields` say otherwise."""
        return {
            "model": self.model,
            "prompt": GOOD_PROMPT if prompt is None else prompt,
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **fields,
        }

    def chat(self, text: str = "hi", **fields: object) -> dict[str, Any]:
        messages = [{"role": "user", "content": text}]
        return {"model": self.model, "messages": messages, "max_tokens": 8, **fields}

    def ask(self, prompt: object = None, key: str = KEY, **fields: object) -> dict[str, Any]:
        """The answer to a good completion."""
        self.asked += 1
        response = self.http.post(
            "/v1/completions",
            json=self.body(prompt, **fields),
            headers={"Authorization": f"Bearer {key}"},
        )
        assert response.status_code == 200, response.text
        return response.json()

    def answers_as_before(self) -> None:
        """A good request gets the tokens that it got before anything bad was sent."""
        tokens = self.ask()["choices"][0]["token_ids"]
        assert len(tokens) == 8
        self.wanted = self.wanted or tokens
        assert tokens == self.wanted

    def settle(self) -> None:
        """Until decode happens on the decode node: engines reach each other a moment late."""
        decode = next(name for name, role in self.nodes.items() if role == "D")
        numbers = iter(range(10_000))
        until(
            lambda: self.ask([next(numbers) % 256] * 20) and self.engines("decode_tokens")[decode],
            "decode on the decode node",
        )

    # ------------------------------------------------------------ looking

    def status(self) -> dict[str, Any]:
        return self._admin.get("/admin/v1/status").json()

    def engines(self, what: str) -> dict[str, float]:
        """One of the counts that engines sent with their last heartbeat, by node."""
        return self._figures()[what]

    def _figures(self) -> dict[str, dict[str, float]]:
        # An engine does not send what it never counted.
        found: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(self.nodes, 0.0))
        for node, what, value in _ENGINE.findall(self._admin.get("/metrics").text):
            found[what][node] = float(value)
        return found

    def gateway_metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def ended(self) -> dict[str, float]:
        """How requests that were given to engines ended, so far."""
        text = self._admin.get("/metrics").text
        rows = re.findall(r'^evctl_requests_total\{outcome="(\w+)"\} (\S+)$', text, re.MULTILINE)
        return {outcome: float(value) for outcome, value in rows}

    def comes_to_rest(self, within_s: float = REST_S) -> None:
        """Within that time no request is anywhere and no KV page is held on any node.

        What engines say is a second old. So each must report twice from now on (its count of
        turns rises with each report), with no page held and no iteration between the reports:
        a request that was left behind would compute, or hold what it computed.
        """
        reports: dict[str, list[tuple[float, float, float]]] = {name: [] for name in self.nodes}
        deadline_s = time.monotonic() + within_s
        first = self.engines("turns")
        while True:
            before, status, after = self._figures(), self.status(), self._figures()
            if before["turns"] == after["turns"]:  # no report came in between
                for node in status["nodes"]:
                    name = node["name"]
                    turns = after["turns"][name]
                    seen = reports[name]
                    if turns != first[name] and (not seen or seen[-1][0] != turns):
                        seen.append((turns, after["iterations"][name], node["l1"]))
                idle = status["in_flight"] == 0 and not any(
                    node["queue"] + node["running"] for node in status["nodes"]
                )
                if idle and all(map(_is_quiet, reports.values())):
                    break
            assert time.monotonic() < deadline_s, (
                f"not at rest in {within_s} s: {reports} {status}"
            )
            time.sleep(0.02)
        until(lambda: self.gateway_metric("evctl_gateway_in_flight") == 0, "empty gateway", 5.0)
        self.rested = True

    def _note(self, request: httpx.Request) -> None:
        if request.url.path != "/metrics":
            self.rested = False

    # ------------------------------------------------------------ raw bytes

    def connect(self) -> socket.socket:
        self.rested = False
        where = urlsplit(self.url)
        connection = socket.create_connection((where.hostname, where.port), timeout=20)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def send(self, raw: bytes) -> bytes:
        """Everything that comes back until the server closes the connection."""
        with self.connect() as connection:
            try:
                connection.sendall(raw)
            except (BrokenPipeError, ConnectionResetError):
                pass  # it refused before it had read all; the answer is there all the same
            return _read_all(connection)


def _is_quiet(reports: list[tuple[float, float, float]]) -> bool:
    if len(reports) < 2:
        return False
    (_, before, _), (_, after, used) = reports[-2:]
    return before == after and used == 0.0


def _read_all(connection: socket.socket) -> bytes:
    parts = []
    while True:
        try:
            part = connection.recv(1 << 16)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


def assert_error(response: httpx.Response, status: int, code: str, param: str | None) -> None:
    """Exactly this status, in OpenAI's form, with these words for programs."""
    assert response.status_code == status, response.text[:500]
    assert response.headers["content-type"] == "application/json"
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    assert error["type"] == "invalid_request_error"
    assert 0 < len(error["message"]) < 500
