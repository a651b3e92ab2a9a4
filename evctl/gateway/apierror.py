"""Errors in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import msgspec
from starlette.responses import Response

from evctl.control.frontdoor import OverloadedError
from evctl.core.errors import EvctlError, ExitCode

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
RATE_LIMIT = "rate_limit_error"

CLIENT_GONE_STATUS = 499
"""Never sent: what metrics count when the client left before an answer began."""


class ApiError(Exception):
    """An answer other than 200. param: the field at fault; code: what programs compare."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        kind: str = INVALID_REQUEST,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.kind = kind
        self.headers = dict(headers or {})

    def payload(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> Response:
        """The answer itself."""
        return json_response(self.payload(), self.status, self.headers)


def json_response(
    payload: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """`payload` as JSON."""
    return Response(
        msgspec.json.encode(payload), status, headers=headers, media_type="application/json"
    )


def bad_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """400: the client must change something."""
    return ApiError(400, message, param=param, code=code)


def overloaded(message: str, retry_after_s: float) -> ApiError:
    """429. Always with Retry-After: some agents give up at once without it."""
    return ApiError(
        429,
        message,
        kind=RATE_LIMIT,
        code="overloaded",
        headers={"retry-after": str(max(1, ceil(retry_after_s)))},
    )


def unavailable(message: str, retry_after_s: float) -> ApiError:
    """503: nothing is wrong with the request, nobody can serve it yet."""
    return ApiError(
        503,
        message,
        kind=SERVER_ERROR,
        code="not_ready",
        headers={"retry-after": str(max(1, ceil(retry_after_s)))},
    )


def generation_failed(message: str) -> ApiError:
    """500: the request was taken, and the cluster could not finish it."""
    return ApiError(500, message, kind=SERVER_ERROR, code="generation_failed")


_STATUS_OF_EXIT: dict[int, int] = {
    ExitCode.USAGE: 400,
    ExitCode.CONFLICT: 409,
    ExitCode.REFUSED: 403,
    ExitCode.NOT_FOUND: 404,
    ExitCode.UNREACHABLE: 503,
}


def from_evctl(error: EvctlError) -> ApiError:
    """What a client is told about an error of the control plane, with its EV code."""
    if isinstance(error, OverloadedError):
        return overloaded(f"{error.what}: {error.why}", error.retry_after_s)
    status = _STATUS_OF_EXIT.get(error.exit_code, 500)
    return ApiError(
        status,
        f"{error.what}: {error.why}; {error.next_step}",
        kind=SERVER_ERROR if status >= 500 else INVALID_REQUEST,
        code=error.code,
    )


_BELOW_HTTP = {400: "invalid_http", 408: "request_timeout", 503: "too_many_connections"}


def told_below_http(status: int, message: str) -> bytes:
    """The body of an answer to what never became a request."""
    kind = SERVER_ERROR if status >= 500 else INVALID_REQUEST
    error = ApiError(status, message, code=_BELOW_HTTP.get(status, "invalid_http"), kind=kind)
    return msgspec.json.encode(error.payload())
