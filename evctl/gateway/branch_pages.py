"""The endpoints under /v1/branches: signals without inference, and what became of branches."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote_to_bytes

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from evctl.core.errors import EvctlError
from evctl.core.ids import MAX_ID_CHARS
from evctl.core.kv_status import BranchRow
from evctl.gateway.apierror import ApiError, bad_request, from_evctl, json_response
from evctl.gateway.branches import SIGNALS, path_signal
from evctl.gateway.generation import Inference
from evctl.gateway.schema import BranchBody, decode_body

DEFAULT_LIMIT: Final = 20
MOST: Final = 100
"""Branches a page, as OpenAI's lists have them."""
MAX_NUMBER_CHARS: Final = 8


class BranchPages:
    """Each caller sees the branches of its own tenant, as if there were no others."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._front_door = inference.front_door

    async def signal(self, request: Request) -> Response:
        tenant = self._inference.keys.tenant(request.headers)
        branch, what = request.path_params["branch"], request.path_params["signal"]
        if what not in SIGNALS:
            raise HTTPException(404)
        _require_text(request)
        try:
            raw = await self._inference.bodies.read(request.scope, request.receive)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to read it
        body = decode_body(raw, BranchBody) if raw.strip() else BranchBody()
        signal = path_signal(request.headers, body, branch, what)
        try:
            reason = self._front_door.branch_signal(tenant, signal, what)
        except EvctlError as error:
            raise from_evctl(error) from error
        return json_response(
            {
                "object": "branch.signal",
                "id": branch,
                "signal": what,
                "applied": not reason,
                "reason": reason,
            }
        )

    async def listed(self, request: Request) -> Response:
        tenant = self._inference.keys.tenant(request.headers)
        _require_text(request)
        limit = _limit(request.query_params.get("limit"))
        after = request.query_params.get("after", "")
        if len(after) > MAX_ID_CHARS:
            raise bad_request(f"after has more than {MAX_ID_CHARS} characters", "after")
        try:
            page = await self._front_door.branches(tenant, after=after, limit=limit)
        except EvctlError as error:
            raise from_evctl(error) from error
        return json_response(
            {
                "object": "list",
                "data": [_branch_object(row) for row in page.branches],
                "first_id": page.branches[0].branch if page.branches else None,
                "last_id": page.branches[-1].branch if page.branches else None,
                "has_more": page.next is not None,
            }
        )

    async def one(self, request: Request) -> Response:
        tenant = self._inference.keys.tenant(request.headers)
        name = request.path_params["branch"]
        _require_text(request)
        row = self._front_door.branch(tenant, name)
        if row is None:
            raise ApiError(
                404,
                f"The branch {name[:MAX_ID_CHARS]!r} does not exist, or has ended",
                param="id",
                code="branch_not_found",
            )
        return json_response(_branch_object(row))


def _require_text(request: Request) -> None:
    """The server shows bytes that are no UTF-8 as U+FFFD, so that another id would be meant."""
    for part, param in (("raw_path", "id"), ("query_string", "after")):
        try:
            unquote_to_bytes(request.scope.get(part, b"")).decode("utf-8")
        except UnicodeDecodeError as error:
            raise bad_request(f"{param} is not valid UTF-8", param) from error


def _limit(shown: str | None) -> int:
    if shown is None:
        return DEFAULT_LIMIT
    if shown.isascii() and shown.isdecimal() and len(shown) <= MAX_NUMBER_CHARS:
        limit = int(shown)
        if 1 <= limit <= MOST:
            return limit
    raise bad_request(f"limit must be in 1..{MOST}", "limit")


def _branch_object(row: BranchRow) -> dict[str, Any]:
    """Which nodes hold it is the operator's business, and left out."""
    return {
        "id": row.branch,
        "object": "branch",
        "parent": row.parent or None,
        "kind": row.kind,
        "state": row.state,
        "version": row.version,
        "blocks": row.blocks,
        "open_requests": row.open_requests,
        "silent_s": round(row.silent_s, 3),
    }
