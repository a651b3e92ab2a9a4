"""A stand-in for a gateway on loopback: token ids in, forced ids out, a perfect prefix cache.

It keeps what it was sent, and can be told to turn away, fail, break off or corrupt.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

BLOCK = 4


class Seen(msgspec.Struct):
    """One request as the server saw it; began and ended count events of the server."""

    headers: dict[str, str]
    body: dict[str, Any]
    began: int
    ended: int = -1

    @property
    def id(self) -> str:
        return self.headers["x-request-id"]

    @property
    def branch(self) -> str:
        return self.headers.get("x-branch-id", "")


class FakeServer:
    """fault: called with each request; a Response, "cut", "short", "error", "silent" or None.

    corrupt: called with each unforced request; "tokens" or "logprobs" makes those wrong.
    """

    def __init__(self, *, token_ids: bool = True, cache: bool = True) -> None:
        self.token_ids = token_ids
        self.cache = cache
        self.seen: list[Seen] = []
        self.turned_away = 0
        self.in_flight = self.most_in_flight = 0
        self.pace_s = 0.0005
        self.fault: Callable[[Seen], Response | str | None] = lambda _: None
        self.corrupt: Callable[[Seen], str] = lambda _: ""
        self.api_key = ""
        self.url = ""
        self.ends: list[str] = []
        """Branches that were ended without a request."""
        self.knows_branches = True
        self._events = itertools.count()
        self._blocks: set[tuple[int, ...]] = set()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/branches/{branch:path}/end", self._end, methods=["POST"]),
            ]
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[FakeServer]:
        config = uvicorn.Config(
            self.app(), host="127.0.0.1", port=0, log_level="error", lifespan="off", ws="none"
        )
        # Not serve(): its loop looks for the end ten times a second only.
        server = uvicorn.Server(config)
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            await server.shutdown()

    def by_branch(self) -> dict[str, list[Seen]]:
        found: dict[str, list[Seen]] = {}
        for seen in self.seen:
            if seen.branch:
                found.setdefault(seen.branch, []).append(seen)
        return found

    # ------------------------------------------------------------ routes

    async def _models(self, request: Request) -> Response:
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return JSONResponse({"error": {"message": "wrong key"}}, 401)
        return JSONResponse({"object": "list", "data": [{"id": "fake-model"}]})

    async def _end(self, request: Request) -> Response:
        if not self.knows_branches:
            return JSONResponse({"error": {"message": "no such path"}}, 404)
        self.ends.append(request.path_params["branch"])
        return JSONResponse({"object": "branch.signal", "applied": True})

    async def _completions(self, request: Request) -> Response:
        seen = Seen(dict(request.headers), json.loads(await request.body()), next(self._events))
        fault = self.fault(seen)
        if isinstance(fault, Response):
            self.turned_away += fault.status_code == 429
            return fault
        self.seen.append(seen)
        return StreamingResponse(self._stream(seen, fault), media_type="text/event-stream")

    async def _stream(self, seen: Seen, fault: str | None) -> AsyncIterator[bytes]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            async for event in self._events_of(seen, fault):
                yield event
        finally:
            self.in_flight -= 1
            seen.ended = next(self._events)

    async def _events_of(self, seen: Seen, fault: str | None) -> AsyncIterator[bytes]:
        body = seen.body
        prompt, count = body["prompt"], body["max_tokens"]
        cached = self._cached(prompt)
        output = body.get("evctl_forced_token_ids") or self._sampled(seen)
        if fault == "silent":
            await asyncio.sleep(3600)
        for place, token in enumerate(output[: count - (fault == "short")]):
            await asyncio.sleep(self.pace_s)
            if fault == "cut" and place == 1:
                return
            if fault == "error" and place == 1:
                yield _event({"error": {"message": "the node died"}})
                return
            choice: dict[str, Any] = {"index": 0, "text": chr(97 + token % 26)}
            choice["finish_reason"] = "length" if place == count - 1 else None
            if self.token_ids and body.get("return_token_ids"):
                choice["token_ids"] = [token]
            if body.get("logprobs") is not None:
                choice["logprobs"] = {
                    "tokens": [choice["text"]],
                    "token_logprobs": [self._logprob(seen, place)],
                }
            yield _event({"id": f"cmpl-{seen.began}", "choices": [choice], "usage": None})
        if fault == "short":
            yield _event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
        self._store(prompt + output[:-1])
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": count - (fault == "short"),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        yield _event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    # ------------------------------------------------------------ a model and a cache

    def _sampled(self, seen: Seen) -> list[int]:
        body = seen.body
        salt = b"wrong" if self.corrupt(seen) == "tokens" else b""
        tokens = [
            blake2b(f"{body['prompt']}{place}".encode() + salt).digest()[0]
            for place in range(body["max_tokens"])
        ]
        return tokens

    def _logprob(self, seen: Seen, place: int) -> float:
        digest = blake2b(f"{seen.body['prompt']}{place}".encode(), digest_size=4).digest()
        return -int.from_bytes(digest) / 2**32 - (
            2**-50 if self.corrupt(seen) == "logprobs" else 0
        )

    def _cached(self, prompt: list[int]) -> int:
        if not self.cache:
            return 0
        cached = 0
        while cached + BLOCK < len(prompt) and tuple(prompt[: cached + BLOCK]) in self._blocks:
            cached += BLOCK
        return cached

    def _store(self, tokens: list[int]) -> None:
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            self._blocks.add(tuple(tokens[:end]))


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
