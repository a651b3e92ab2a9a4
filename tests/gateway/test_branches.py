"""Branch signals: parsed from headers and body, scoped by the tenant of the key."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from evctl.control.frontdoor import OverloadedError
from evctl.core.branches import BranchSignal
from evctl.core.errors import NotFoundError
from evctl.core.kv_status import BranchPage, BranchRow
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


async def test_a_misspelt_name_is_told(client: httpx.AsyncClient) -> None:
    for headers, body in (
        ({"X-Branch-Id": "b", "X-Branch-Verison": "2"}, {}),
        ({}, {"branch": {"id": "b", "verison": 2}}),
    ):
        answer = await client.post(
            "/v1/completions", headers=headers, json={"model": "bytes", "prompt": [1], **body}
        )
        assert answer.status_code == 400
        assert "version" in answer.text.lower() or "verison" in answer.text
    answer = await client.post("/v1/branches/b/rewrite", json={})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "version")


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


@pytest.mark.parametrize("name", ["%ff", "a%C3", "%ED%A0%80", "b%c0%af"])
async def test_an_id_that_is_no_text_is_refused_wherever_it_comes(
    client: httpx.AsyncClient, front_door: FakeFrontDoor, name: str
) -> None:
    """The server would show it as U+FFFD: another branch."""
    answers = [
        await client.post(f"/v1/branches/{name}/end"),
        await client.get(f"/v1/branches/{name}"),
        await client.get(f"/v1/branches?after={name}"),
        await client.post("/v1/completions", json=completion(), headers={"X-Branch-Id": b"\xff"}),
    ]
    for answer in answers:
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert not front_door.signals
    assert (await client.post("/v1/branches/%EF%BF%BD/end")).status_code == 200, "that is text"


async def test_signals_without_inference(front_door: FakeFrontDoor) -> None:
    async with (
        served(front_door, {"k1": "acme", "k2": "zeta"}) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        one, two = ({"Authorization": f"Bearer {key}"} for key in ("k1", "k2"))
        answer = await client.post("/v1/branches/b1/end", headers=one)
        assert answer.json() == {
            "object": "branch.signal",
            "id": "b1",
            "signal": "end",
            "applied": True,
            "reason": "",
        }
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
    def refuse(tenant: str, signal: BranchSignal, what: str) -> str:
        raise NotFoundError(what="no such branch", why="w", next_step="n", code="EV-1998")

    front_door.branch_signal = refuse
    response = await client.post("/v1/branches/b/end")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "EV-1998"


async def test_a_signal_that_changes_nothing_is_no_error(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    front_door.objection = "branch b has ended"
    for what, body in (("end", {}), ("rewrite", {"version": 2}), ("fork", {"parent": "a"})):
        answer = await client.post(f"/v1/branches/b/{what}", json=body)
        assert answer.status_code == 200
        told = answer.json()
        assert (told["applied"], told["reason"]) == (False, "branch b has ended")


def row(tenant: str, branch: str, **changes: Any) -> BranchRow:
    values: dict[str, Any] = {
        "parent": "",
        "kind": "root",
        "state": "live",
        "version": 0,
        "blocks": 3,
        "open_requests": 0,
        "silent_s": 1.23456,
        "holders": {"P": {"secret-node": 3}},
    }
    return BranchRow(tenant, branch, **{**values, **changes})


async def test_branches_are_listed_a_page_at_a_time(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    front_door.rows = [row("default", f"b{i}") for i in range(5)]
    seen, after = [], ""
    for expected in (2, 2, 1):
        page = (await client.get("/v1/branches", params={"limit": 2, "after": after})).json()
        assert page["object"] == "list"
        assert len(page["data"]) == expected
        seen += [branch["id"] for branch in page["data"]]
        assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], seen[-1])
        after = page["last_id"]
        assert page["has_more"] == (len(seen) < 5)
    assert seen == [f"b{i}" for i in range(5)]
    whole = (await client.get("/v1/branches?limit=5")).json()
    assert (len(whole["data"]), whole["has_more"]) == (5, False)
    end = (await client.get("/v1/branches", params={"after": "b4"})).json()
    assert (end["data"], end["has_more"], end["last_id"]) == ([], False, None)


async def test_a_branch_tells_its_owner_what_it_may_know(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    front_door.rows = [row("default", "a/é?%2F/end", parent="a", kind="fork", version=4)]
    answer = await client.get("/v1/branches/a%2F%C3%A9%3F%252F%2Fend")
    assert answer.json() == {
        "id": "a/é?%2F/end",
        "object": "branch",
        "parent": "a",
        "kind": "fork",
        "state": "live",
        "version": 4,
        "blocks": 3,
        "open_requests": 0,
        "silent_s": 1.235,
    }
    listed = (await client.get("/v1/branches")).text
    assert "secret-node" not in answer.text + listed


async def test_nobody_sees_another_tenants_branches(front_door: FakeFrontDoor) -> None:
    front_door.rows = [row("acme", "mine"), row("zeta", "theirs")]
    async with (
        served(front_door, {"k1": "acme", "k2": "zeta"}) as url,
        httpx.AsyncClient(base_url=url, headers={"Authorization": "Bearer k1"}) as client,
    ):
        listed = (await client.get("/v1/branches")).json()
        assert [branch["id"] for branch in listed["data"]] == ["mine"]
        hidden = await client.get("/v1/branches/theirs")
        absent = await client.get("/v1/branches/nobodys")
        assert hidden.status_code == absent.status_code == 404
        told = [answer.json()["error"] for answer in (hidden, absent)]
        assert told[0]["code"] == "branch_not_found"
        assert told[0]["message"].replace("theirs", "nobodys") == told[1]["message"]
        for path in ("/v1/branches", "/v1/branches/mine"):
            bare = await client.get(path, headers={"Authorization": ""})
            assert bare.status_code == 401


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "limit=²", "limit=1e1"])
async def test_a_page_that_cannot_be(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/v1/branches?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "limit"
    long = await client.get("/v1/branches", params={"after": "x" * 257})
    assert (long.status_code, long.json()["error"]["param"]) == (400, "after")


async def test_too_many_questions_are_turned_away(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    async def busy(tenant: str, *, after: str, limit: int) -> BranchPage:
        raise OverloadedError("too many ask", 1.0)

    front_door.branches = busy  # type: ignore[method-assign]
    answer = await client.get("/v1/branches")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
