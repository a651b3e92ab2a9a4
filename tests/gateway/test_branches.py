"""Branch signals: parsed from headers and body, scoped by the tenant of the key."""

from __future__ import annotations

from typing import Any

import httpx

from evctl.control.frontdoor import BranchSignal
from evctl.core.errors import NotFoundError
from tests.gateway.conftest import chat, completion, served
from tests.gateway.front_door import FakeFrontDoor

EVERY_HEADER = {
    "X-Branch-Id": "b2",
    "X-Branch-Session": "s1",
    "X-Branch-Parent": "b1",
    "X-Branch-Op": "spawn",
    "X-Branch-Version": "3",
    "X-Branch-Final": "true",
    "X-Branch-Expect-Resume": "12.5",
    "X-Branch-Kind": "subagent",
}
EVERY_FIELD: dict[str, Any] = {
    "id": "b2",
    "session": "s1",
    "parent": "b1",
    "op": "spawn",
    "version": 3,
    "final": True,
    "expect_resume": 12.5,
    "kind": "subagent",
}
EVERYTHING = BranchSignal("b2", "s1", "b1", "spawn", 3, True, 12.5, "subagent")


async def test_headers_and_body_say_the_same(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    for path, body in (("chat/completions", chat()), ("completions", completion())):
        await client.post(f"/v1/{path}", json=body, headers=EVERY_HEADER)
        await client.post(f"/v1/{path}", json=body | {"branch": EVERY_FIELD})
    assert [request.branch for request in front_door.requests] == [EVERYTHING] * 4


async def test_headers_win_field_by_field(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    headers = {"X-Branch-Id": "h", "X-Branch-Final": "false"}
    await client.post("/v1/completions", json=completion(branch=EVERY_FIELD), headers=headers)
    branch = front_door.requests[0].branch
    assert branch is not None
    assert (branch.branch, branch.final, branch.session, branch.version) == ("h", False, "s1", 3)


async def test_an_id_in_unicode_is_the_same_everywhere(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    await client.post(
        "/v1/completions", json=completion(), headers={"X-Branch-Id": "é/漢".encode()}
    )
    await client.post("/v1/completions", json=completion(branch={"id": "é/漢"}))
    await client.post("/v1/branches/%C3%A9%2F%E6%BC%A2/end")
    names = [request.branch.branch for request in front_door.requests if request.branch]
    assert [*names, front_door.signals[0][1].branch] == ["é/漢"] * 3


async def test_signals_without_inference(front_door: FakeFrontDoor) -> None:
    async with (
        served(front_door, {"k1": "acme", "k2": "zeta"}) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("k1", "k2"))
        answer = await client.post("/v1/branches/b1/end", headers=one)
        assert answer.json() == {"object": "branch.signal", "id": "b1", "signal": "end"}
        await client.post("/v1/branches/b1/rewrite", json={"version": 4}, headers=two)
        await client.post("/v1/branches/b3/fork", json={"parent": "b1"}, headers=two)
        await client.post("/v1/branches/b4/fork", headers={**two, "X-Branch-Parent": "b1"})
    assert front_door.signals == [
        ("acme", BranchSignal("b1"), "end"),
        ("zeta", BranchSignal("b1", version=4), "rewrite"),
        ("zeta", BranchSignal("b3", parent="b1", op="fork"), "fork"),
        ("zeta", BranchSignal("b4", parent="b1", op="fork"), "fork"),
    ]


async def test_bad_signals(client: httpx.AsyncClient, front_door: FakeFrontDoor) -> None:
    for path, body, status in (
        ("b/fork", {}, 400),
        ("b/fork", {"parent": "b"}, 400),
        (f"{'b' * 10_000}/end", {}, 400),
        ("b/rewrite", {"version": "x"}, 400),
        ("b/explode", {}, 404),
    ):
        response = await client.post(f"/v1/branches/{path}", json=body)
        assert response.status_code == status, response.text
        assert response.json()["error"]["message"]
    assert not front_door.signals


async def test_tenants_never_share_block_keys(front_door: FakeFrontDoor) -> None:
    async with (
        served(front_door, {"k1": "acme", "k2": "zeta"}) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        for key in ("k1", "k2"):
            headers = {"Authorization": f"Bearer {key}", "X-Branch-Id": "same"}
            await client.post("/v1/completions", json=completion([1] * 32), headers=headers)
    one, two = front_door.requests
    assert (one.tenant, two.tenant) == ("acme", "zeta")
    assert one.branch == two.branch
    assert one.root_key != two.root_key
    assert one.block_keys[:16] != two.block_keys[:16]


async def test_what_the_control_plane_refuses(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    def refuse(tenant: str, signal: BranchSignal, what: str) -> None:
        raise NotFoundError(what="no such branch", why="w", next_step="n", code="EV-1998")

    front_door.branch_signal = refuse
    response = await client.post("/v1/branches/b/end")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "EV-1998"
