"""Routes of the admin API about branches and blocks.

A branch's id may hold any printable character, slashes included: in a path it is one segment,
percent-encoded (`a/b` is a%2Fb), and the tenant's name as well.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal
from urllib.parse import unquote

from fastapi import FastAPI, Path, Query, Response
from pydantic import Field, StringConstraints
from starlette.types import ASGIApp, Receive, Scope, Send

from evctl.control.admin_forms import BASE, Actor, Body, Text, answers, json_answer
from evctl.control.branch_list import MOST_ROWS, Wanted
from evctl.control.plane import ControlPlane
from evctl.core.errors import NotFoundError
from evctl.core.ids import MAX_ID_CHARS
from evctl.core.kv_status import (
    BranchDetail,
    BranchEnd,
    BranchPage,
    BranchPlace,
    BranchTree,
    KvBlock,
    KvCheck,
    KvSummary,
)

DESCRIBED: Final = (
    BranchDetail, BranchEnd, BranchPage, BranchTree, KvBlock, KvCheck, KvSummary,
)  # fmt: skip
KEY_PATTERN: Final = "^[0-9a-fA-F]{8,32}$"
_BRANCHES: Final = f"{BASE}/branches/"
_NAMED: Final = (_BRANCHES, f"{BASE}/why/")
"""Paths with segments that may hold a slash."""

Name = Annotated[str, StringConstraints(max_length=MAX_ID_CHARS)]
Tenant = Annotated[str, Path(description="Percent-encoded.", examples=["default"])]
BranchId = Annotated[str, Path(description="Percent-encoded.", examples=["agent-7/main"])]


class EndBody(Body):
    """by: whom the event log names."""

    by: Actor
    reason: Text = ""


class KeepSegments:
    """Middleware: a slash inside a segment of a path stays encoded until the route is found.

    The server hands over paths decoded, where it could not be told from one between segments.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw: bytes | None = scope.get("raw_path")
        if scope["type"] == "http" and raw is not None and scope["path"].startswith(_NAMED):
            kept = raw.replace(b"%25", b"%2525").replace(b"%2F", b"%252F")
            kept = kept.replace(b"%2f", b"%252F")
            path = unquote(kept.partition(b"?")[0].decode("ascii"), errors="replace")
            scope = {**scope, "path": path}
        await self._app(scope, receive, send)


def add_routes(app: FastAPI, plane: ControlPlane) -> None:
    _add_kv(app, plane)
    _add_branches(app, plane)
    _add_end(app, plane)


def _add_kv(app: FastAPI, plane: ControlPlane) -> None:
    @app.get(f"{BASE}/kv/check", responses=answers(KvCheck), response_class=Response)
    async def check() -> Response:
        """Recount everything and compare. Takes seconds on a large cluster, which serves on."""
        return json_answer(await plane.audit.run())

    @app.get(f"{BASE}/kv/summary", responses=answers(KvSummary), response_class=Response)
    async def summary() -> Response:
        return json_answer(plane.kv.summary())

    @app.get(
        f"{BASE}/kv/blocks/{{key}}",
        responses=answers(KvBlock, searches=True),
        response_class=Response,
    )
    async def block(
        key: Annotated[
            str, Path(pattern=KEY_PATTERN, description="Or its first digits, 8 at least.")
        ],
    ) -> Response:
        return json_answer(await plane.kv.blocks.find(key))


def _add_branches(app: FastAPI, plane: ControlPlane) -> None:
    @app.get(
        f"{BASE}/branches", responses=answers(BranchPage, searches=True), response_class=Response
    )
    async def branches(
        tenant: Annotated[Name | None, Query()] = None,
        state: Annotated[Literal["live", "suspect"] | None, Query()] = None,
        kind: Annotated[Literal["root", "fork", "sub-agent"] | None, Query()] = None,
        node: Annotated[Name | None, Query()] = None,
        prefix: Annotated[Name, Query(description="Of the id.")] = "",
        sort: Annotated[Literal["name", "blocks", "silent"], Query()] = "name",
        after_figure: Annotated[
            Annotated[float, Field(allow_inf_nan=False)] | None,
            Query(description="With the other two: `next` of the page before."),
        ] = None,
        after_tenant: Annotated[Name, Query()] = "",
        after_branch: Annotated[Name, Query()] = "",
        limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 100,
    ) -> Response:
        """Live and suspect branches, a page at a time. Without a figure, after the name alone."""
        after = None
        if after_figure is not None or after_tenant or after_branch:
            after = BranchPlace(after_figure or 0.0, after_tenant, after_branch)
        wanted = Wanted(tenant, state, kind, node, prefix, sort, after, limit)
        return json_answer(await plane.kv.branches.page(wanted))

    @app.get(
        f"{_BRANCHES}{{tenant}}/{{branch}}",
        responses=answers(BranchDetail, searches=True),
        response_class=Response,
    )
    async def branch(tenant: Tenant, branch: BranchId) -> Response:
        tenant, branch = unquote(tenant), unquote(branch)
        found = await plane.kv.branches.detail(tenant, branch)
        if found is None:
            raise _unknown(plane, tenant, branch)
        return json_answer(found)

    @app.get(
        f"{_BRANCHES}{{tenant}}/{{branch}}/tree",
        responses=answers(BranchTree, searches=True),
        response_class=Response,
    )
    async def tree(tenant: Tenant, branch: BranchId) -> Response:
        """Ancestors, the branch itself, and all that came of it."""
        tenant, branch = unquote(tenant), unquote(branch)
        found = await plane.kv.branches.tree(tenant, branch)
        if found is None:
            raise _unknown(plane, tenant, branch)
        return json_answer(found)


def _add_end(app: FastAPI, plane: ControlPlane) -> None:
    @app.post(
        f"{_BRANCHES}{{tenant}}/{{branch}}/end",
        responses=answers(BranchEnd, searches=True),
        response_class=Response,
    )
    async def end(tenant: Tenant, branch: BranchId, body: EndBody) -> Response:
        """The branch needs its blocks no more. Ending it again changes nothing."""
        tenant, branch = unquote(tenant), unquote(branch)
        if not plane.has_heard_of(tenant, branch):
            raise _unknown(plane, tenant, branch)
        why = plane.end_branch(tenant, branch, by=body.by, reason=body.reason)
        return json_answer(BranchEnd(tenant, branch, applied=not why, reason=why))


def _unknown(plane: ControlPlane, tenant: str, branch: str) -> NotFoundError:
    ended = plane.has_heard_of(tenant, branch)
    return NotFoundError(
        what=f"tenant {tenant} has no branch {branch}",
        why="it has ended" if ended else "no request has named it, or it ended long ago",
        next_step="evctl branches lists those there are, with --tenant those of another tenant",
        code="EV-1354",
    )
