"""No branch of a replay is left open at its target, and no run has the names of another."""

from __future__ import annotations

import pytest

from evctl.trace.schema import Conversation
from tests.trace.fake_server import FakeServer
from tests.trace.test_replay import play
from tests.trace.traces import growing, trace

pytestmark = pytest.mark.slow


async def test_a_branch_that_is_cut_short_is_ended_without_a_request() -> None:
    async with FakeServer().running() as server:
        await play(server, trace(Conversation("c", (growing("main", 5, 10),))), max_requests=3)
    assert len(server.seen) == 3
    assert server.ends == ["c.s0.0/main"]


async def test_a_branch_whose_last_request_failed_is_ended() -> None:
    server = FakeServer()
    server.fault = lambda seen: "error" if "x-branch-final" in seen.headers else None
    main, child = growing("main", 3, 10), growing("a1", 1, 50, kind="fork", parent="main", after=0)
    async with server.running():
        result = await play(server, trace(Conversation("c", (main, child))))
    assert sorted(server.ends) == ["c.s0.0/a1", "c.s0.0/main"]
    assert result.failed == 2


async def test_a_server_without_branches_can_be_replayed_against() -> None:
    server = FakeServer()
    server.knows_branches = False
    async with server.running():
        result = await play(
            server, trace(Conversation("c", (growing("main", 5, 10),))), max_requests=3
        )
    assert (result.requests, result.failed, server.ends) == (3, 0, [])


async def test_two_runs_of_a_seed_have_branches_of_their_own() -> None:
    conversation = trace(Conversation("c", (growing("main", 2, 10),)))
    async with FakeServer().running() as server:
        for run in ("x1", "x2"):
            await play(server, conversation, run=run)
    assert set(server.by_branch()) == {"c.s0.0.x1/main", "c.s0.0.x2/main"}
    assert len({seen.id for seen in server.seen}) == 2, "requests of equal content have one name"
