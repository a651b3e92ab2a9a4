"""The admin API: what CLI and TUI reach over the unix socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final, Literal

import msgspec
from fastapi import FastAPI, Query, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import BeforeValidator, Field, StringConstraints
from starlette.exceptions import HTTPException

from evctl.control import admin_kv, admin_why
from evctl.control.admin_forms import (
    BASE,
    MAX_COUNT,
    Actor,
    Body,
    Text,
    answers,
    json_answer,
    on_bad_request,
    on_evctl_error,
    on_http_error,
    openapi,
)
from evctl.control.metrics import render_metrics
from evctl.control.plane import ControlPlane
from evctl.control.watch import watch
from evctl.core.errors import EvctlError
from evctl.core.status import ClusterStatus, ErrorBody, EventRecord, SplitChange, WatchFrame

NDJSON: Final = "application/x-ndjson"
MAX_EVENTS: Final = 1_000
MAX_HOLD_S: Final = 366 * 86_400
_COUNT: Final = "[1-9][0-9]{0,5}"
SPLIT_PATTERN: Final = f"^({_COUNT}[pP]{_COUNT}[dD]|{_COUNT}[dD]{_COUNT}[pP])$"
"""For the schema only: core.split says better what is wrong with a text."""


def _whole(value: object) -> object:
    """JSON has one kind of number: 7.0 is an integer there."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Generation = Annotated[Annotated[int, Field(ge=0, le=MAX_COUNT)] | None, BeforeValidator(_whole)]
HoldSeconds = Annotated[float, Field(gt=0, le=MAX_HOLD_S, allow_inf_nan=False)] | None


class SplitBody(Body):
    """generation: only if nobody wrote since then. plan: change nothing, say what would move.
    force: also in the cooldown after a change. for_s: how long to hold it; otherwise until
    somebody releases it."""

    split: Annotated[
        str,
        StringConstraints(max_length=40),
        Field(json_schema_extra={"pattern": SPLIT_PATTERN, "examples": ["1P2D"]}),
    ]
    by: Actor
    reason: Text = ""
    generation: Generation = None
    plan: bool = False
    force: bool = False
    for_s: HoldSeconds = None


class ModeBody(Body):
    """for_s: of a hold, how long; otherwise until somebody releases it."""

    mode: Literal["auto", "advise", "hold"]
    by: Actor
    reason: Text = ""
    generation: Generation = None
    for_s: HoldSeconds = None


class StopBody(Body):
    drain: bool = False


class Stopping(msgspec.Struct, frozen=True):
    """stopping: the control plane ends now, or, with drain, once nothing is in flight."""

    stopping: bool
    drain: bool


_DESCRIBED: Final = (
    ClusterStatus, SplitChange, WatchFrame, ErrorBody, EventRecord, Stopping, *admin_kv.DESCRIBED,
    *admin_why.DESCRIBED,
)  # fmt: skip


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
    app.add_exception_handler(EvctlError, on_evctl_error)
    app.add_exception_handler(RequestValidationError, on_bad_request)
    app.add_exception_handler(HTTPException, on_http_error)
    _add_reads(app, plane)
    _add_writes(app, plane)
    _add_health(app, plane)
    admin_kv.add_routes(app, plane)
    admin_why.add_routes(app, plane)
    app.add_middleware(admin_kv.KeepSegments)
    app.openapi = lambda: openapi(app, _DESCRIBED)  # type: ignore[method-assign]
    return app


def _add_reads(app: FastAPI, plane: ControlPlane) -> None:
    @app.get(f"{BASE}/status", responses=answers(ClusterStatus), response_class=Response)
    async def status() -> Response:
        return json_answer(plane.status())

    @app.get(f"{BASE}/events", responses=answers(list[EventRecord]), response_class=Response)
    async def events(
        since: Annotated[int, Query(ge=0, le=MAX_COUNT)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 200,
    ) -> Response:
        """Events with a sequence above `since`, oldest first."""
        return json_answer(plane.events.since(since, limit))

    @app.get(f"{BASE}/watch", responses=answers(WatchFrame, NDJSON), response_class=Response)
    async def watch_cluster() -> Response:
        """Newline-delimited frames for as long as the reader stays."""
        return StreamingResponse(_lines(plane), media_type=NDJSON)


def _add_writes(app: FastAPI, plane: ControlPlane) -> None:
    @app.put(f"{BASE}/split", responses=answers(SplitChange), response_class=Response)
    async def set_split(body: SplitBody) -> Response:
        change = plane.overrides.set_split(
            body.split,
            by=body.by,
            reason=body.reason,
            generation=body.generation,
            plan=body.plan,
            force=body.force,
            for_s=body.for_s,
        )
        return json_answer(change)

    @app.put(f"{BASE}/mode", responses=answers(ClusterStatus), response_class=Response)
    async def set_mode(body: ModeBody) -> Response:
        plane.overrides.set_mode(
            body.mode,
            by=body.by,
            reason=body.reason,
            generation=body.generation,
            for_s=body.for_s,
        )
        return json_answer(plane.status())

    @app.post(
        f"{BASE}/stop",
        status_code=202,
        responses=answers(Stopping, success=202),
        response_class=Response,
    )
    async def stop(body: StopBody) -> Response:
        plane.request_stop(drain=body.drain)
        return json_answer(Stopping(True, body.drain), 202)

    @app.delete(f"{BASE}/stop", responses=answers(Stopping), response_class=Response)
    async def call_off_stop() -> Response:
        """Take requests again, if the end has not begun; `stopping` says whether it has."""
        return json_answer(Stopping(not plane.call_off_stop(), False))


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
