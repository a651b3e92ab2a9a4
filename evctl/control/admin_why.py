"""Routes of the admin API about the planner, and why something is as it is.

The id of a request is one segment of a path, percent-encoded.
"""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import unquote

from fastapi import FastAPI, Path, Query, Response

from evctl.control.admin_forms import BASE, MAX_COUNT, answers, json_answer
from evctl.control.admin_kv import KEY_PATTERN
from evctl.control.plane import ControlPlane
from evctl.core.planning import PlanDecision
from evctl.core.why import BlockWhy, NodeWhy, RequestWhy, SplitWhy

DESCRIBED: Final = (BlockWhy, NodeWhy, PlanDecision, RequestWhy, SplitWhy)
MOST_DECISIONS: Final = 64

Named = Annotated[str, Path(description="Percent-encoded.", examples=["n1"])]


def add_routes(app: FastAPI, plane: ControlPlane) -> None:
    _add_plan(app, plane)
    _add_why(app, plane)


def _add_plan(app: FastAPI, plane: ControlPlane) -> None:
    @app.get(f"{BASE}/plan", responses=answers(PlanDecision), response_class=Response)
    async def plan() -> Response:
        """What the planner would decide now. Changes nothing."""
        return json_answer(plane.why.plan())


def _add_why(app: FastAPI, plane: ControlPlane) -> None:
    @app.get(
        f"{BASE}/why/split", responses=answers(SplitWhy, searches=True), response_class=Response
    )
    async def split(
        number: Annotated[int | None, Query(ge=1, le=MAX_COUNT)] = None,
        last: Annotated[int, Query(ge=1, le=MOST_DECISIONS)] = 3,
    ) -> Response:
        """The planner's last decisions, or the one of that number, with what came of them."""
        return json_answer(plane.why.split(number, last))

    @app.get(
        f"{BASE}/why/nodes/{{node}}",
        responses=answers(NodeWhy, searches=True),
        response_class=Response,
    )
    async def node(node: Named) -> Response:
        """Its role, how it came to it, and what is there."""
        return json_answer(plane.why.node(unquote(node)))

    @app.get(
        f"{BASE}/why/requests/{{request}}",
        responses=answers(RequestWhy, searches=True),
        response_class=Response,
    )
    async def request(request: Named) -> Response:
        """Where it was sent and why, and what then happened; from the journals if need be."""
        return json_answer(await plane.why.request(unquote(request)))

    @app.get(
        f"{BASE}/why/blocks/{{key}}",
        responses=answers(BlockWhy, searches=True),
        response_class=Response,
    )
    async def block(
        key: Annotated[
            str, Path(pattern=KEY_PATTERN, description="Or its first digits, 8 at least.")
        ],
    ) -> Response:
        """Where it is, who refers to it, and when each copy would be evicted."""
        return json_answer(await plane.why.block(key))
