"""Requests whose end two readers would see at different places."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from evctl.gateway.apierror import bad_request
from evctl.gateway.body import refuse_unread


class RefuseAmbiguousEnd:
    """Middleware: 400 and an end of the connection where a proxy before us might have cut the
    stream of requests elsewhere than we do, so that one client's bytes become another's request.

    The HTTP parser below lets these pass: a length beside chunks, and chunks in HTTP/1.0.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_ambiguous(scope):
            error = bad_request(
                "send Content-Length or Transfer-Encoding, not both, and no chunks in HTTP/1.0",
                "transfer-encoding",
                "ambiguous_length",
            )
            await refuse_unread(error, receive, send)
            return
        await self._app(scope, receive, send)


def _is_ambiguous(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    if "transfer-encoding" not in headers:
        return False
    return "content-length" in headers or scope.get("http_version") == "1.0"
