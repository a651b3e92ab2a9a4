"""Forms of the admin API: bodies, answers, errors, and how its OpenAPI tells them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException
from starlette.routing import Match

from evctl.control.frontdoor import OverloadedError
from evctl.core.errors import (
    ConflictError,
    EvctlError,
    ExitCode,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from evctl.core.status import ErrorBody

BASE: Final = "/admin/v1"
MAX_COUNT: Final = 2**53
"""The largest integer that every JSON reader keeps exact."""
_NOT_HERE: Final = frozenset({"EV-1103", "EV-1356"})
"""Well-formed, but not for a cluster of this size or with these blocks: 409, though the caller's
exit code is usage."""

_MALFORMED: Final = frozenset({"EV-1101"})
"""Refused by a rule that holds for every cluster: the schema tells it as well."""

_STATUS: Final[tuple[tuple[type[EvctlError], int], ...]] = (
    (UsageError, 422),
    (ConflictError, 409),
    (RefusedError, 409),
    (NotFoundError, 404),
    (UnreachableError, 503),
    (OverloadedError, 503),
)

Actor = Annotated[
    str, StringConstraints(min_length=1, max_length=200), Field(examples=["ann@laptop"])
]
Text = Annotated[str, StringConstraints(max_length=1000)]


class Body(BaseModel):
    """Of a write: nothing unknown, no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True)


def json_answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _failure(status: int, error: EvctlError) -> Response:
    body = ErrorBody(error.code, error.what, error.why, error.next_step, error.exit_code)
    return json_answer(body, status)


def told_below_http(status: int, message: str) -> bytes:
    """The body of an answer to what never became a call. status: 400, 408 or 503."""
    failure = EvctlError(
        what="the call was not answered",
        why=message,
        next_step="try again in a moment" if status == 503 else "send HTTP/1.1",
        code="EV-1362",
    )
    return bytes(_failure(status, failure).body)


async def on_evctl_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, EvctlError)
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    if error.code in _NOT_HERE:
        status = 409
    elif error.code in _MALFORMED:
        status = 422
    return _failure(status, error)


async def on_bad_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = "; ".join(
        f"{'.'.join(str(part) for part in problem['loc'][1:]) or 'body'}: {problem['msg']}"
        for problem in error.errors()[:5]
    )
    return _failure(
        422,
        UsageError(
            what="the call was not understood",
            why=problems,
            next_step=f"compare with {BASE}/openapi.json",
            code="EV-1361",
        ),
    )


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    failure = EvctlError(
        what="the call was not answered",
        why=str(error.detail),
        next_step=f"compare with {BASE}/openapi.json",
        code="EV-1362",
        exit_code=ExitCode.NOT_FOUND if error.status_code == 404 else ExitCode.USAGE,
    )
    response = _failure(error.status_code, failure)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["Allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """Of all routes of a path; each of them knows only its own."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return found


def answers(
    kind: Any,
    media_type: str = "application/json",
    success: int = 200,
    *,
    searches: bool = False,
) -> dict[Any, Any]:
    """The answers of a route: its own, and errors in the one form they have. searches: it looks
    for something that may not be there, through much."""
    (schema,), _ = msgspec.json.schema_components(
        [kind], ref_template="#/components/schemas/{name}"
    )
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
    found = {
        success: {"description": "Done", "content": {media_type: {"schema": schema}}},
        400: {"description": "The body is no text", "content": error},
        409: {"description": "Changed by somebody else, or refused", "content": error},
        422: {"description": "Malformed", "content": error},
    }
    if searches:
        found[404] = {"description": "Not here", "content": error}
        found[503] = {"description": "Too many such questions wait", "content": error}
    return found


def openapi(app: FastAPI, described: tuple[type, ...]) -> dict[str, Any]:
    """The schema of all routes; described: the values that they answer with."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, components = msgspec.json.schema_components(
            described, ref_template="#/components/schemas/{name}"
        )
        schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
        app.openapi_schema = schema
    return app.openapi_schema
