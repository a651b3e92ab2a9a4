"""Bodies: read up to a limit, or refused without being read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from evctl.gateway.apierror import ApiError, bad_request, overloaded
from evctl.gateway.limits import GatewayLimits

LINGER_S = 2.0
LINGER_BYTES = 64 << 20


class BodyReader:
    """Reads bodies, and knows how many bytes of them are held at this moment."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._limits = limits
        self.held_bytes = 0

    @contextmanager
    def held(self, raw: bytes) -> Iterator[None]:
        """Count a body for as long as it is needed."""
        self.held_bytes += len(raw)
        try:
            yield
        finally:
            self.held_bytes -= len(raw)

    async def read(self, scope: Scope, receive: Receive) -> bytes:
        """The whole body. Raises ApiError 408, 413, 415 or 429, and ClientDisconnect."""
        limits = self._limits
        headers = Headers(scope=scope)
        _check_type(headers)
        declared = _declared_bytes(headers)
        if declared > limits.max_body_bytes:
            raise _too_large(limits.max_body_bytes)
        if self.held_bytes + declared > limits.max_held_body_bytes:
            raise overloaded("too many bytes of other requests are held", limits.retry_after_s)
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                return await self._read_all(receive)
        except TimeoutError as error:
            raise ApiError(
                408,
                f"the body did not arrive within {limits.body_timeout_s:.0f} s",
                code="request_timeout",
            ) from error

    async def _read_all(self, receive: Receive) -> bytes:
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) > self._limits.max_body_bytes:
                raise _too_large(self._limits.max_body_bytes)
            more = message.get("more_body", False)
        return bytes(body)


async def refuse_unread(error: ApiError, receive: Receive, send: Send) -> None:
    """Answer before the body was read, then let the client finish sending for a moment.

    Closing at once would reset the connection, and the client might never see the answer.
    """
    response = error.response()
    response.headers["connection"] = "close"
    start = {
        "type": "http.response.start",
        "status": response.status_code,
        "headers": response.raw_headers,
    }
    await send(start)
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    try:
        async with asyncio.timeout(LINGER_S):
            await _discard(receive)
    except TimeoutError:
        pass  # it had its moment
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard(receive: Receive) -> None:
    left_bytes = LINGER_BYTES
    more = True
    while more and left_bytes > 0:
        message = await receive()
        left_bytes -= len(message.get("body", b""))
        more = message["type"] == "http.request" and message.get("more_body", False)


def _check_type(headers: Headers) -> None:
    """What a form or a script of some web page sends without asking is no request of ours."""
    declared = headers.get("content-type", "").partition(";")[0].strip().lower()
    is_json = declared == "application/json" or declared.endswith("+json")
    if declared and not is_json:
        raise ApiError(
            415,
            f"send the body as application/json, not {declared[:80]!r}",
            param="content-type",
            code="unsupported_media_type",
        )


def _declared_bytes(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise bad_request("content-length is not a number", "content-length")
    return int(text[:19])


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit_bytes} bytes", code="request_too_large")
