"""Requests that the cluster took and could not finish."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from evctl.control.frontdoor import InferenceRequest
from evctl.core.errors import EvctlError
from evctl.core.sampling import FinishReason
from evctl.wire.messages import Tokens
from tests.gateway.conftest import chat, completion
from tests.gateway.front_door import FakeFrontDoor, tokens
from tests.gateway.test_inference import CHAT, TEXT, stream


@pytest.mark.parametrize(
    ("finish", "status_text"),
    [(FinishReason.ERROR, "node n2 is gone"), (FinishReason.CANCELLED, "cancelled")],
)
async def test_a_request_that_fails(
    client: httpx.AsyncClient, front_door: FakeFrontDoor, finish: str, status_text: str
) -> None:
    async def fails(request: InferenceRequest) -> AsyncIterator[Tokens]:
        yield tokens(request, 0, [97])
        yield Tokens(request.request_id, 1, (), finish=finish, error="node n2 is gone")

    front_door.script = fails
    response = await client.post(TEXT, json=completion())
    assert response.status_code == 500
    assert status_text in response.json()["error"]["message"]
    events = await stream(client, TEXT, completion())
    assert events[0]["choices"][0]["text"] == "a"
    assert events[-1]["error"]["type"] == "server_error"
    assert status_text in events[-1]["error"]["message"]
    assert "[DONE]" not in events


async def test_bugs_behind_the_front_door_do_not_leak(
    front_door: FakeFrontDoor, client: httpx.AsyncClient
) -> None:
    async def breaks(request: InferenceRequest) -> AsyncIterator[Tokens]:
        yield tokens(request, 0, [97])
        raise RuntimeError("secret")

    front_door.script = breaks
    events = await stream(client, TEXT, completion())
    assert events[-1]["error"]["message"] == "internal error"
    response = await client.post(TEXT, json=completion())
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"


@pytest.mark.parametrize("missing", ["gap", "end"])
async def test_an_output_with_a_hole_is_an_error(
    front_door: FakeFrontDoor, client: httpx.AsyncClient, missing: str
) -> None:
    async def holes(request: InferenceRequest) -> AsyncIterator[Tokens]:
        yield tokens(request, 0, [97])
        if missing == "gap":
            yield tokens(request, 2, [97])

    front_door.script = holes
    response = await client.post(TEXT, json=completion())
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "generation_failed"


async def test_refusals_of_the_control_plane_keep_their_meaning(
    front_door: FakeFrontDoor, client: httpx.AsyncClient
) -> None:
    async def refuses(request: InferenceRequest) -> AsyncIterator[Tokens]:
        raise EvctlError(what="no", why="w", next_step="n", code="EV-1999", exit_code=8)
        yield

    front_door.script = refuses
    response = await client.post(CHAT, json=chat(stream=True))
    assert response.status_code == 403
    assert response.json()["error"]["code"] == "EV-1999"
