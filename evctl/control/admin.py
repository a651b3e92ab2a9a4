"""The admin API: what CLI and TUI reach over the unix socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from starlette.exceptions import HTTPException

from evctl.control.metrics import render_metrics
from evctl.control.plane import ControlPlane
from evctl.control.watch import watch
from evctl.core.errors import (
    ConflictError,
    EvctlError,
    ExitCode,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from evctl.core.status import ClusterStatus, ErrorBody, EventRecord, SplitChange, WatchFrame

BASE: Final = "/admin/v1"
NDJSON: Final = "application/x-ndjson"
MAX_EVENTS: Final = 1_000
MAX_COUNT: Final = 2**53
"""The largest integer that every JSON reader keeps exact."""
_COUNT: Final = "[1-9][0-9]{0,5}"
SPLIT_PATTERN: Final = f"^({_COUNT}[pP]{_COUNT}[dD]|{_COUNT}[dD]{_COUNT}[pP])$"
"""For the schema only: core.split says better what is wrong with a text."""
_NOT_HERE: Final = frozenset({"EV-1103"})
"""Well-formed, but not for a cluster of this size: 409, though the caller's exit code is usage."""

_STATUS: Final[tuple[tuple[type[EvctlError], int], ...]] = (
    (UsageError, 422),
    (ConflictError, 409),
    (RefusedError, 409),
    (NotFoundError, 404),
    (UnreachableError, 503),
)

Actor = Annotated[
    str, StringConstraints(min_length=1, max_length=200), Field(examples=["ann@laptop"])
]
Text = Annotated[str, StringConstraints(max_length=1000)]


def _whole(value: object) -> object:
    """JSON has one kind of number: 7.0 is an integer there."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SplitBody(_Body):
    """generation: only if nobody wrote since then. plan: change nothing, say what would move.
    force: also in the cooldown after a change."""

    split: Annotated[
        str,
        StringConstraints(max_length=40),
        Field(json_schema_extra={"pattern": SPLIT_PATTERN, "examples": ["1P2D"]}),
    ]
    by: Actor
    reason: Text = ""
    generation: Annotated[
        Annotated[int, Field(ge=0, le=MAX_COUNT)] | None, BeforeValidator(_whole)
    ] = None
    plan: bool = False
    force: bool = False


class ModeBody(_Body):
    mode: Literal["advise", "hold"]
    by: Actor
    reason: Text = ""


class StopBody(_Body):
    drain: bool = False


class Stopping(msgspec.Struct, frozen=True):
    """The control plane ends now, or once nothing is in flight."""

    stopping: bool
    drain: bool


def create_admin_app(plane: ControlPlane) -> FastAPI:
    """The admin API of one control plane, on its loop."""
    app = FastAPI(
        title="evctl admin",
        version="1",
        openapi_url=f"{BASE}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(EvctlError, _on_evctl_error)
    app.add_exception_handler(RequestValidationError, _on_bad_request)
    app.add_exception_handler(HTTPException, _on_http_error)
    _add_reads(app, plane)
    _add_writes(app, plane)
    _add_health(app, plane)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _add_reads(app: FastAPI, plane: ControlPlane) -> None:
    @app.get(f"{BASE}/status", responses=_answers(ClusterStatus), response_class=Response)
    async def status() -> Response:
        return _json(plane.status())

    @app.get(f"{BASE}/events", responses=_answers(list[EventRecord]), response_class=Response)
    async def events(
        since: Annotated[int, Query(ge=0, le=MAX_COUNT)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 200,
    ) -> Response:
        """Events with a sequence above `since`, oldest first."""
        return _json(plane.events.since(since, limit))

    @app.get(f"{BASE}/watch", responses=_answers(WatchFrame, NDJSON), response_class=Response)
    async def watch_cluster() -> Response:
        """Newline-delimited frames for as long as the reader stays."""
        return StreamingResponse(_lines(plane), media_type=NDJSON)


def _add_writes(app: FastAPI, plane: ControlPlane) -> None:
    @app.put(f"{BASE}/split", responses=_answers(SplitChange), response_class=Response)
    async def set_split(body: SplitBody) -> Response:
        change = plane.overrides.set_split(
            body.split,
            by=body.by,
            reason=body.reason,
            generation=body.generation,
            plan=body.plan,
            force=body.force,
        )
        return _json(change)

    @app.put(f"{BASE}/mode", responses=_answers(ClusterStatus), response_class=Response)
    async def set_mode(body: ModeBody) -> Response:
        plane.overrides.set_mode(body.mode, by=body.by, reason=body.reason)
        return _json(plane.status())

    @app.post(
        f"{BASE}/stop",
        status_code=202,
        responses=_answers(Stopping, success=202),
        response_class=Response,
    )
    async def stop(body: StopBody) -> Response:
        plane.request_stop(drain=body.drain)
        return _json(Stopping(True, body.drain), 202)


def _add_health(app: FastAPI, plane: ControlPlane) -> None:
    @app.get("/healthz", response_class=Response)
    async def healthz() -> Response:
        return Response("ok\n", media_type="text/plain")

    @app.get("/readyz", response_class=Response, responses={503: {"description": "Not ready"}})
    async def readyz() -> Response:
        why = plane.ready()
        text = f"{why}\n" if why else "ready\n"
        return Response(text, 503 if why else 200, media_type="text/plain")

    @app.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        content = render_metrics(plane.snapshot)
        return Response(content, media_type="text/plain; version=0.0.4")


async def _lines(plane: ControlPlane) -> AsyncIterator[bytes]:
    async for frame in watch(plane):
        yield msgspec.json.encode(frame) + b"\n"


# ---------------------------------------------------------------------- answers and errors


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _failure(status: int, error: EvctlError) -> Response:
    body = ErrorBody(error.code, error.what, error.why, error.next_step, error.exit_code)
    return _json(body, status)


async def _on_evctl_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, EvctlError)
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    if error.code in _NOT_HERE:
        status = 409
    return _failure(status, error)


async def _on_bad_request(_: Request, error: Exception) -> Response:
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


async def _on_http_error(_: Request, error: Exception) -> Response:
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
    return response


# ---------------------------------------------------------------------- OpenAPI

_DESCRIBED: Final = (
    ClusterStatus, SplitChange, WatchFrame, ErrorBody, EventRecord, Stopping,
)  # fmt: skip


def _answers(
    kind: Any, media_type: str = "application/json", success: int = 200
) -> dict[Any, Any]:
    """The answers of a route: its own, and errors in the one form they have."""
    (schema,), _ = msgspec.json.schema_components(
        [kind], ref_template="#/components/schemas/{name}"
    )
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
    return {
        success: {"description": "Done", "content": {media_type: {"schema": schema}}},
        400: {"description": "The body is no text", "content": error},
        409: {"description": "Changed by somebody else, or refused", "content": error},
        422: {"description": "Malformed", "content": error},
    }


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, components = msgspec.json.schema_components(
            _DESCRIBED, ref_template="#/components/schemas/{name}"
        )
        schema.setdefault("components", {}).setdefault("schemas", {}).update(components)
        app.openapi_schema = schema
    return app.openapi_schema
