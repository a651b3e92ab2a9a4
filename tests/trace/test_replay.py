"""Replays against a server on loopback: what is sent, in which order, and what is counted."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.responses import JSONResponse, Response

from evctl.core.errors import UnreachableError, UsageError
from evctl.trace import commands, files
from evctl.trace.driver import Replay
from evctl.trace.http import HttpTarget
from evctl.trace.measure import Progress, ReplayResult, RequestRecord
from evctl.trace.plan import ReplayOptions, RetryPolicy, assignments
from evctl.trace.schema import Conversation, Trace
from evctl.trace.verify import TargetVerifier
from tests.trace.fake_server import FakeServer, Seen
from tests.trace.traces import branch, family, growing, trace

pytestmark = pytest.mark.slow

QUICK = {"time_scale": 0.0, "start": (0.0, 0.0)}


async def play(
    server: FakeServer, what: Trace, *, record: Path | None = None, **options: Any
) -> ReplayResult:
    progress = options.pop("progress", None)
    verifier = options.pop("verifier", None)
    async with HttpTarget(server.url) as target:
        await target.prepare()
        file = record.open("wb") if record else None
        try:
            chosen = ReplayOptions(**{"agents": 1, **QUICK, **options})
            replay = Replay(
                what, target, chosen, record=file, progress=progress, verifier=verifier
            )
            return await replay.run()
        finally:
            if file:
                file.close()


def records(path: Path) -> list[RequestRecord]:
    return [
        msgspec.json.decode(line, type=RequestRecord) for line in path.read_bytes().splitlines()
    ]


# ---------------------------------------------------------------------------- what is sent


async def test_every_request_is_played_as_recorded(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    async with FakeServer().running() as server:
        result = await play(server, trace(family()), record=path)
    assert result.ok
    assert (result.requests, result.failed, result.branches) == (12, 0, 4)
    assert result.branches_max == 3
    body = server.seen[0].body
    assert body["model"] == "fake-model"
    assert (body["temperature"], body["ignore_eos"], body["stream"]) == (0, True, True)
    assert body["stream_options"] == {"include_usage": True}
    assert len(body["evctl_forced_token_ids"]) == body["max_tokens"] == 6
    assert len(body["prompt"]) == 10 * 4 + 1
    kept = records(path)
    assert [r.id for r in kept] == list(dict.fromkeys(r.id for r in kept))
    assert {r.id for r in kept} == {seen.id for seen in server.seen}
    for record in kept:
        assert record.ok
        assert record.cached_tokens == record.ideal_tokens
        assert 0 < (record.ttft_s or 0) <= (record.e2e_s or 0)
        assert record.output_tokens == 6
        assert record.server_id.startswith("cmpl-")
        assert (record.tpot_s or 0) > 0
    assert result.hit_rate == result.ideal_hit_rate is not None
    assert result.uncached_tokens_per_request is not None


async def test_headers() -> None:
    prompts = [(ids, 0, 9) for ids in ([1, 2], [1, 2, 3, 4, 5], [7], [7, 8], [7, 9])]
    main = branch("main", prompts, marks={2: "compact", 4: "rewind"})
    child = growing("a1", 2, 50, kind="subagent", parent="main", after=0, join=1)
    fork = growing("f1", 1, 90, kind="fork", parent="main", after=1, join=3)
    async with FakeServer().running() as server:
        await play(server, trace(Conversation("c", (main, child, fork))))
    sent = server.by_branch()
    root = "c.s0.0"
    assert set(sent) == {f"{root}/main", f"{root}/a1", f"{root}/f1"}

    def values(name: str, header: str) -> list[str | None]:
        return [seen.headers.get(f"x-branch-{header}") for seen in sent[f"{root}/{name}"]]

    assert values("main", "op") == ["continue", "continue", "compact", "continue", "continue"]
    assert values("main", "version") == ["0", "0", "1", "1", "2"]
    assert values("main", "final") == [None, None, None, None, "true"]
    assert values("main", "kind") == ["main"] * 5
    assert values("main", "parent") == [None] * 5
    assert values("a1", "op") == ["spawn", "continue"]
    assert values("a1", "kind") == ["subagent"] * 2
    assert values("a1", "parent") == [f"{root}/main"] * 2
    assert values("a1", "final") == [None, "true"]
    assert values("f1", "op") == ["fork"]
    assert {s.headers["x-branch-session"] for s in server.seen} == {root}
    assert server.ends == [], "final requests end them"


async def test_order_within_branches_and_joins() -> None:
    async with FakeServer().running() as server:
        await play(server, trace(family("a"), family("b")), agents=2)
    sent = server.by_branch()
    assert len(sent) == 8
    for branch_requests in sent.values():
        indexes = [int(seen.id.rpartition("/")[2]) for seen in branch_requests]
        assert indexes == list(range(len(indexes)))
        for this, following in itertools.pairwise(branch_requests):
            assert this.ended < following.began
    for name in ("a", "b"):
        main, first, second, late = (sent[f"{name}.s0.0/{b}"] for b in ("main", "a1", "a2", "a3"))
        assert main[1].ended < min(first[0].began, second[0].began)
        assert max(first[-1].ended, second[-1].ended) < main[2].began
        assert first[0].began < second[-1].ended, "sub-agents run side by side"
        assert second[0].began < first[-1].ended
        assert main[3].ended < late[0].began


async def test_the_next_prompt_holds_the_forced_output() -> None:
    async with FakeServer().running() as server:
        await play(server, trace(family()))
    for requests in server.by_branch().values():
        for this, following in itertools.pairwise(requests):
            said = this.body["prompt"] + this.body["evctl_forced_token_ids"]
            assert following.body["prompt"][: len(said)] == said


# ---------------------------------------------------------------------------- the loop


async def test_n_agents_are_n_at_once() -> None:
    many = trace(*(Conversation(f"c{i}", (growing("main", 4),)) for i in range(9)))
    async with FakeServer().running() as server:
        server.pace_s = 0.003
        result = await play(server, many, agents=3)
    assert result.requests == 36
    assert server.most_in_flight == 3
    assert (result.in_flight_max, result.branches_max) == (3, 3)
    assert 1.5 < result.in_flight_mean <= 3
    assert 2 < result.branches_mean <= 3


async def test_more_agents_than_conversations_play_instances_of_their_own() -> None:
    async with FakeServer().running() as server:
        result = await play(server, trace(Conversation("c", (growing("main", 3),))), agents=3)
    assert (result.requests, result.conversations) == (9, 3)
    sent = server.by_branch()
    assert set(sent) == {f"c.s0.{i}/main" for i in range(3)}
    prompts = [requests[0].body["prompt"] for requests in sent.values()]
    assert all(a[:4] != b[:4] for a, b in itertools.combinations(prompts, 2))


async def test_max_requests_ends_the_replay() -> None:
    slow = trace(Conversation("c", (growing("main", 30, waits_s=3600.0),)), family())
    async with FakeServer().running() as server:
        result = await play(
            server, slow, agents=4, max_requests=40, time_scale=1.0, gap_cap_s=0.02
        )
    assert result.requests == len(server.seen) == 40
    assert result.ok


async def test_the_last_request_ends_the_pauses_of_all_others() -> None:
    def first_waits(seed: int) -> bool:
        plan = assignments(what, ReplayOptions(agents=2, seed=seed, start=(0, 0)), 0)
        return next(plan).conversation.id == "waits"

    what = trace(Conversation("waits", (growing("main", 2, waits_s=3600.0),)), family())
    seed = next(seed for seed in range(99) if first_waits(seed))
    async with FakeServer().running() as server:
        result = await play(
            server, what, agents=2, seed=seed, max_requests=7, time_scale=1.0, gap_cap_s=None
        )
    assert result.requests == 7
    assert result.duration_s < 60


async def test_pauses_are_scaled_and_capped(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    waits = trace(Conversation("c", (growing("main", 4, waits_s=10.0),)))
    async with FakeServer().running() as server:
        await play(server, waits, record=path, time_scale=0.004, gap_cap_s=1.0)
        assert [r.pause_s for r in records(path)] == [0.04] * 4
        result = await play(server, waits, record=path, time_scale=0.004, gap_cap_s=0.01)
    assert [r.pause_s for r in records(path)] == [0.01] * 4
    assert result.pause_s == pytest.approx(0.01)


async def test_agents_start_inside_their_first_conversation_only() -> None:
    many = trace(*(Conversation(f"c{i}", (growing("main", 20),)) for i in range(8)))
    async with FakeServer().running() as server:
        await play(server, many, agents=4, start=(0.25, 0.75))
    first = [int(requests[0].id.rpartition("/")[2]) for requests in server.by_branch().values()]
    late = [index for index in first if index]
    assert len(late) == 4
    assert all(5 <= index < 15 for index in late)
    assert len(set(late)) > 1


async def test_what_began_before_the_start_is_not_played() -> None:
    async with FakeServer().running() as server:
        result = await play(server, trace(family()), start=(0.4, 0.4))
    assert result.ok
    assert {name.rpartition("/")[2] for name in server.by_branch()} == {"main", "a3"}
    assert [s.id.rpartition("/")[2] for s in server.seen if "main" in s.id] == ["2", "3", "4"]


async def test_the_seed_decides_everything() -> None:
    what = trace(*(family(f"f{i}") for i in range(6)))

    async def sent(seed: int) -> dict[str, Any]:
        async with FakeServer().running() as server:
            await play(server, what, agents=3, seed=seed, start=(0.25, 0.75))
        return {seen.id: seen.body for seen in server.seen}

    first = await sent(1)
    assert await sent(1) == first
    other = await sent(2)
    prompts = {tuple(body["prompt"]) for body in first.values()}
    assert not prompts & {tuple(body["prompt"]) for body in other.values()}


async def test_progress_is_told() -> None:
    told: list[Progress] = []
    async with FakeServer().running() as server:
        await play(server, trace(family()), progress=told.append, max_requests=11)
    assert told[0].issued == 0
    last = told[-1]
    assert (last.done, last.failed, last.planned, last.in_flight) == (11, 0, 11, 0)
    assert last.throughput_rps > 0
    assert (last.mean_ttft_s or 0) > 0


# ---------------------------------------------------------------------------- faults


async def test_429_is_waited_out_and_sent_again(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    turned: dict[str, int] = {}

    def fault(seen: Seen) -> Response | None:
        turned[seen.id] = turned.get(seen.id, 0) + 1
        if seen.id.endswith("/1") and turned[seen.id] <= 2:
            return JSONResponse({"error": {}}, 429, {"Retry-After": "0.05"})
        return None

    async with FakeServer().running() as server:
        server.fault = fault
        result = await play(server, trace(family()), record=path)
    assert result.ok
    assert (result.requests, result.retries) == (12, 8)
    assert server.turned_away == 8
    for record in records(path):
        waited = record.id.endswith("/1")
        assert record.retries == (2 if waited else 0)
        assert not waited or (record.ttft_s or 0) > 0.1, "waits after 429 count"


async def test_429_without_end_is_a_failure() -> None:
    async with FakeServer().running() as server:
        server.fault = lambda seen: Response("full", 429, {"Retry-After": "0"})
        result = await play(
            server,
            trace(Conversation("c", (growing("main", 2),))),
            retry=RetryPolicy(attempts=3),
        )
    assert (result.requests, result.failed, result.done, result.retries) == (2, 2, 0, 6)
    assert result.errors == {"turned away 4 times": 2}
    assert not result.ok


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Response("no room", 500), "status 500: no room"),
        (Response('{"error": "x"}', 400), "status 400"),
        ("cut", "broke off"),
        ("error", "the node died"),
        ("short", "tokens came, not 6"),
        ("silent", "no end after 0.2 s"),
    ],
)
async def test_failures_are_counted_and_the_branch_goes_on(
    tmp_path: Path, fault: Response | str, why: str
) -> None:
    path = tmp_path / "record.jsonl"
    async with FakeServer().running() as server:
        server.fault = lambda seen: fault if seen.id.endswith("main/1") else None
        result = await play(server, trace(family()), record=path, request_timeout_s=0.2)
    assert (result.requests, result.failed, result.done) == (12, 1, 11)
    assert not result.ok
    (bad,) = [record for record in records(path) if not record.ok]
    assert bad.id.endswith("main/1")
    assert why in bad.error
    assert result.errors == {bad.error: 1}
    assert bad.e2e_s is None


async def test_a_dead_target_ends_the_replay() -> None:
    many = trace(*(Conversation(f"c{i}", (growing("main", 50),)) for i in range(9)))
    async with FakeServer().running() as server:
        server.fault = lambda seen: Response("gone", 503)
        result = await play(server, many)
    assert result.failed == result.requests == 25
    assert "25 requests in a row failed" in result.aborted
    assert not result.ok


async def test_other_tokens_than_the_forced_ones_are_seen() -> None:
    def fault(seen: Seen) -> None:
        if seen.id.endswith("main/2"):
            seen.body.pop("evctl_forced_token_ids")

    async with FakeServer().running() as server:
        server.fault = fault
        result = await play(server, trace(family()))
    assert (result.failed, result.changed_outputs) == (0, 1)
    assert not result.ok


async def test_a_server_of_text_alone_is_measured_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    async with FakeServer(token_ids=False).running() as server:
        result = await play(server, trace(family()), record=path)
    assert result.ok
    assert all(r.output_tokens == 6 and r.hash.startswith("text:") for r in records(path))


# ---------------------------------------------------------------------------- verification


async def verified(corrupt: Callable[[Seen], str] = lambda seen: "") -> ReplayResult:
    """A replay of 12 requests with a probe after every third, one node of two corrupt."""
    async with FakeServer().running() as server, FakeServer(cache=False).running() as pure:
        server.corrupt = corrupt
        async with HttpTarget(pure.url) as other:
            verifier = TargetVerifier(other)
            result = await play(server, trace(family()), verify_every=3, verifier=verifier)
    probes = [seen for seen in server.seen if seen.id.endswith("/probe")]
    assert {probe.id for probe in probes} == {seen.id for seen in pure.seen}
    assert len(probes) == len(pure.seen) == 4
    for probe in probes:
        checked = next(s for s in server.seen if s.id == probe.id.removesuffix("/probe"))
        said = checked.body["prompt"] + checked.body["evctl_forced_token_ids"]
        right = next(seen for seen in pure.seen if seen.id == probe.id)
        assert probe.body["prompt"] == right.body["prompt"] == said
        assert "evctl_forced_token_ids" not in probe.body
        assert not probe.branch
        assert probe.body["max_tokens"] == 8
    assert result.requests == 12, "probes are not counted"
    return result


async def test_right_answers_verify() -> None:
    result = await verified()
    assert result.verdict is not None
    assert result.ok
    assert (result.verdict.checked, result.verdict.wrong_tokens) == (4, 0)
    assert (result.verdict.compared_tokens, result.verdict.compared_logprobs) == (32, 32)


@pytest.mark.parametrize("what", ["tokens", "logprobs"])
async def test_wrong_kv_is_found_by_the_request_it_belongs_to(what: str) -> None:
    corrupted: list[str] = []

    def corrupt_second(seen: Seen) -> str:
        if not corrupted and "/main/" not in seen.id:
            corrupted.append(seen.id)
        return what if seen.id in corrupted else ""

    result = await verified(corrupt_second)
    verdict = result.verdict
    assert verdict is not None
    assert not result.ok
    assert [m.request_id for m in verdict.mismatches] == [corrupted[0].removesuffix("/probe")]
    if what == "tokens":
        assert verdict.wrong_tokens == 8
        assert verdict.mismatches[0].first == 0
    else:
        # The least difference that a double shows: no token changes, and still it is found.
        assert (verdict.wrong_tokens, verdict.wrong_logprobs) == (0, 8)
        assert msgspec.structs.replace(verdict, exact=False).ok


async def test_a_probe_without_answer_is_not_taken_for_right() -> None:
    async with FakeServer().running() as server:
        server.fault = lambda s: Response("", 500) if s.id.endswith("/probe") else None
        async with HttpTarget(server.url) as other:
            result = await play(
                server, trace(family()), verify_every=3, verifier=TargetVerifier(other)
            )
    assert result.verdict is not None
    assert (result.verdict.checked, result.verdict.unchecked) == (0, 4)
    assert not result.ok


# ---------------------------------------------------------------------------- before the start


async def test_what_keeps_a_replay_from_starting(tmp_path: Path) -> None:
    async with FakeServer().running() as server:
        dead = server.url
        with pytest.raises(UsageError, match="nothing to compare"):
            await play(server, trace(family()), verify_every=3)
        with pytest.raises(UsageError, match="no conversations"):
            await play(server, trace())
        server.api_key = "secret"
        async with HttpTarget(server.url, api_key="secret") as target:
            assert await target.prepare() == "fake-model"
        async with HttpTarget(server.url, api_key="other") as target:
            with pytest.raises(Exception, match="401"):
                await target.prepare()
    async with HttpTarget(dead) as target:
        with pytest.raises(UnreachableError):
            await target.prepare()
    with pytest.raises(UsageError):
        HttpTarget("localhost:80")
    for wrong in ({"agents": 0}, {"time_scale": -1}, {"max_requests": 0}, {"start": (0.5, 0.2)}):
        with pytest.raises(UsageError):
            ReplayOptions(**{"agents": 1, **wrong})


def test_the_command_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    files.write(path, trace().header, [family()])
    for target in ("sim", "nonsense"):
        with pytest.raises(UsageError):
            commands.replay(path, target, agents=1)
    with pytest.raises(UnreachableError):
        commands.replay(path, "http://127.0.0.1:9", agents=1)
    assert json.loads(path.read_text().splitlines()[0])["format"] == "evctl.trace"
