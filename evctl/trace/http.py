"""A target reached by HTTP: /v1/completions with token ids, streamed.

Token ids come back in `choices[0].token_ids`, which the request asks for with `return_token_ids`
(as vLLM names both). A server that does not know it sends text; then tokens are counted by
`usage`, and what needs their ids is left out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from evctl.core.errors import EvctlError, UnreachableError, UsageError
from evctl.core.sampling import FinishReason
from evctl.trace.target import (
    BusyError,
    Chunk,
    CompletionRequest,
    ForGoodError,
    Usage,
    request_failed,
)

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 600.0
"""Longest silence inside an answer; a queued request may wait long for its first token."""
MAX_EVENT_CHARS = 4 * 2**20
DEFAULT_RETRY_S = 1.0
MAX_BODY_CHARS = 500
FOR_GOOD = frozenset({401, 403, 404})
"""Statuses that say the same to every request of a replay: key, permission, model or path."""


class _Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []


class _Choice(msgspec.Struct, frozen=True):
    text: str = ""
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct, frozen=True):
    id: str = ""
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


class _RefusalDetails(msgspec.Struct, frozen=True):
    message: str
    code: str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    error: _RefusalDetails


_decoder = msgspec.json.Decoder(_Event)


class HttpTarget:
    """An OpenAI-like server. Use as an async context manager, or close it."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        model: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        import httpx

        if not url.startswith(("http://", "https://")):
            raise UsageError(
                what=f"cannot use {url!r} as a target",
                why="a target is the URL of a gateway",
                next_step="give a URL such as http://127.0.0.1:8080",
                code="EV-1612",
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            # The replay bounds what is in flight; a pool that queued would falsify TTFT.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            transport=transport,
            trust_env=False,
        )

    async def __aenter__(self) -> HttpTarget:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()

    async def prepare(self) -> str:
        """Learn the name of the model that is served. Raises UnreachableError, EvctlError."""
        import httpx

        try:
            response = await self._client.get("/v1/models")
        except httpx.HTTPError as error:
            raise UnreachableError(
                what=f"cannot reach {self.url}",
                why=str(error) or type(error).__name__,
                next_step="start the cluster (`evctl up`), or give another target",
                code="EV-1613",
            ) from error
        if response.status_code != 200:
            raise _refused(self.url, response.status_code, _told(response.content)[0])
        try:
            models = [str(entry["id"]) for entry in response.json()["data"]]
        except (ValueError, KeyError, TypeError) as error:
            raise _refused(self.url, 200, response.text) from error
        if not self._model and models:
            self._model = models[0]
        return self._model

    async def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        """See Target."""
        import httpx

        headers = {"Content-Type": "application/json", "X-Request-Id": request.id}
        if request.branch is not None:
            headers |= request.branch.headers()
        content = msgspec.json.encode(self._body(request))
        try:
            async with self._client.stream(
                "POST", "/v1/completions", content=content, headers=headers
            ) as response:
                if response.status_code != 200:
                    await _raise_status(self.url, request.id, response)
                async for chunk in _chunks(request.id, response):
                    yield chunk
        except httpx.HTTPError as error:
            raise request_failed(request.id, f"{type(error).__name__}: {error}") from error

    async def end_branch(self, branch: str) -> bool:
        """See Target."""
        import httpx

        path = f"/v1/branches/{quote(branch, safe='')}/end"
        try:
            response = await self._client.post(path, timeout=CONNECT_TIMEOUT_S)
        except httpx.HTTPError:
            return False
        return response.status_code == 200

    def _body(self, request: CompletionRequest) -> dict[str, object]:
        body: dict[str, object] = {
            "model": self._model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        if request.forced is not None:
            body["evctl_forced_token_ids"] = request.forced
        if request.logprobs:
            body["logprobs"] = 1
        return body


def _refused(url: str, status: int, text: str) -> EvctlError:
    return EvctlError(
        what=f"{url} is no target for a replay",
        why=f"GET /v1/models answered {status}: {text[:MAX_BODY_CHARS]}",
        next_step="check the URL and the API key",
        code="EV-1614",
    )


async def _raise_status(url: str, request_id: str, response: httpx.Response) -> None:
    body = b""
    async for part in response.aiter_bytes():
        body += part
        if len(body) > MAX_BODY_CHARS:
            break
    status, (text, code) = response.status_code, _told(body)
    if status == 429:
        raise BusyError(text, retry_after_s(response.headers))
    if code == "replay_not_allowed":
        raise ForGoodError(
            what=f"the cluster behind {url} takes no replay",
            why=text,
            next_step="set `allow_replay: true` in the cluster's file and start it anew, or replay"
            " on the one that is made for it: evctl up clusters/replay.yaml",
            code="EV-1617",
        )
    if status in FOR_GOOD:
        raise ForGoodError(
            what=f"{url} refuses the requests of the replay",
            why=f"status {status}: {text}",
            next_step="check the URL, the API key and the model: more requests would not help",
            code="EV-1618",
        )
    raise request_failed(request_id, f"status {status}: {text}")


def _told(body: bytes) -> tuple[str, str]:
    """Message and code of an error in OpenAI's form; of anything else, its beginning."""
    try:
        error = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.DecodeError, ValueError):
        return body[:MAX_BODY_CHARS].decode("utf-8", "replace"), ""
    return error.message[:MAX_BODY_CHARS], error.code or ""


def retry_after_s(headers: httpx.Headers) -> float:
    """Seconds of a Retry-After header, or a second when there is none that can be read."""
    value = headers.get("retry-after", "")
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        then, now = parsedate_to_datetime(value), parsedate_to_datetime(headers.get("date", ""))
        return max(0.0, (then - now).total_seconds())
    except (ValueError, TypeError):
        return DEFAULT_RETRY_S


async def _chunks(request_id: str, response: httpx.Response) -> AsyncIterator[Chunk]:
    """The events of an answer. An answer that ends without [DONE] or a finish is a failure."""
    finished = False
    async for line in response.aiter_lines():
        if len(line) > MAX_EVENT_CHARS:
            raise request_failed(request_id, "an event of the answer is too long")
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            if finished:
                return
            raise request_failed(request_id, "the answer ended without a finish reason")
        chunk = _chunk(request_id, data)
        if chunk.finish is not None:
            if chunk.finish in (FinishReason.ERROR, FinishReason.CANCELLED):
                raise request_failed(request_id, f"the answer ended with {chunk.finish!r}")
            finished = True
        yield chunk
    raise request_failed(request_id, "the answer broke off")


def _chunk(request_id: str, data: str) -> Chunk:
    try:
        event = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise request_failed(request_id, f"an event cannot be read: {error}") from error
    if event.error is not None:
        raise request_failed(request_id, f"the server says {event.error}")
    usage = None
    if event.usage is not None:
        details = event.usage.prompt_tokens_details
        usage = Usage(
            event.usage.prompt_tokens,
            event.usage.completion_tokens,
            details.cached_tokens if details else None,
        )
    if not event.choices:
        return Chunk(usage=usage, server_id=event.id)
    choice = event.choices[0]
    ids = _token_ids(choice)
    logprobs: tuple[float, ...] = ()
    if choice.logprobs is not None:
        logprobs = tuple(v for v in choice.logprobs.token_logprobs if v is not None)
    return Chunk(
        tokens=max(len(ids), len(logprobs), bool(choice.text)),
        token_ids=ids,
        logprobs=logprobs,
        text=choice.text,
        finish=choice.finish_reason,
        usage=usage,
        server_id=event.id,
    )


def _token_ids(choice: _Choice) -> tuple[int, ...]:
    if choice.token_ids is not None:
        return tuple(choice.token_ids)
    if choice.logprobs is None:
        return ()
    names = choice.logprobs.tokens
    if names and all(n.startswith("token_id:") and n[9:].isdecimal() for n in names):
        return tuple(int(name[9:]) for name in names)
    return ()
