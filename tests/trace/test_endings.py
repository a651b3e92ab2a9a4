"""How a replay ends before its end, and what its report says of a run that proves little."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from starlette.responses import JSONResponse, Response

from evctl.bench.replay import replay, to_report
from evctl.cli.main import main
from evctl.core.errors import EvctlError
from evctl.trace.http import HttpTarget
from evctl.trace.schema import Conversation
from evctl.trace.target import ForGoodError
from evctl.trace.verify import TargetVerifier
from tests.trace.fake_server import FakeServer, Seen
from tests.trace.test_replay import play, records
from tests.trace.test_report import serving
from tests.trace.traces import family, growing, trace

pytestmark = pytest.mark.slow

NOT_ALLOWED = {
    "error": {
        "message": "this cluster takes no forced output",
        "type": "invalid_request_error",
        "param": "evctl_forced_token_ids",
        "code": "replay_not_allowed",
    }
}


def test_a_cluster_that_takes_no_replay_is_told_at_once(tmp_path: Path) -> None:
    server = FakeServer()
    server.fault = lambda seen: JSONResponse(NOT_ALLOWED, 403)
    started_s = time.monotonic()
    with serving(server), pytest.raises(EvctlError) as raised:
        replay("sample", server.url, agents=12, scale="1/64", gap_cap_s=30.0)
    error = raised.value
    assert error.code == "EV-1617"
    assert error.why == "this cluster takes no forced output", "not JSON"
    assert "allow_replay: true" in error.next_step
    assert "clusters/replay.yaml" in error.next_step
    assert time.monotonic() - started_s < 15


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_what_every_request_would_hear_ends_a_replay(status: int) -> None:
    sent: list[Seen] = []

    def fault(seen: Seen) -> Response:
        sent.append(seen)
        return JSONResponse({"error": {"message": "not for you", "code": "x"}}, status)

    async with FakeServer().running() as server:
        server.fault = fault
        with pytest.raises(ForGoodError) as raised:
            await play(server, trace(Conversation("c", (growing("main", 9),))))
    assert raised.value.code == "EV-1618"
    assert raised.value.why == f"status {status}: not for you"
    assert len(sent) == 1


async def test_a_refusal_after_answers_is_in_the_result() -> None:
    async with FakeServer().running() as server:
        server.fault = lambda s: Response("key revoked", 401) if len(server.seen) == 3 else None
        result = await play(server, trace(Conversation("c", (growing("main", 9),))))
    assert (result.done, result.failed) == (3, 1)
    assert result.aborted == "status 401: key revoked"


def test_ctrl_c_keeps_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report, record = tmp_path / "report.json", tmp_path / "record.jsonl"
    server = FakeServer()

    def fault(seen: Seen) -> str | None:
        if len(server.seen) == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return "silent" if len(server.seen) >= 7 else None

    server.fault = fault
    handler = signal.getsignal(signal.SIGINT)
    with serving(server):
        words = f"trace replay sample --target {server.url} --agents 4 --scale 1/64 --time-scale 0"
        code = main([*words.split(), "--report", str(report), "--record", str(record)])
        ended = set(server.ends)
    assert signal.getsignal(signal.SIGINT) is handler
    assert code == 130
    said = capsys.readouterr()
    (run,) = json.loads(report.read_text())["runs"]
    assert run["extras"]["interrupted"] is True
    assert run["failed"] == 0, "what was dropped did not fail"
    assert 3 <= run["requests"] == len(records(record)) <= 7
    assert "NOT OK: interrupted, this is what was done until then" in said.out
    assert str(report) in said.err
    assert str(record) in said.err
    assert "stays done" not in said.err
    assert ended == set(server.by_branch()), "no branch is left open at the target"


async def test_a_replay_on_a_warm_cluster_says_so() -> None:
    what = trace(family("a"), family("b"))
    async with FakeServer().running() as server:
        cold = await play(server, what)
        assert (cold.warm_requests, cold.hit_rate) == (0, cold.ideal_hit_rate)
        warm = await play(server, what)
    assert warm.warm_requests > 0
    assert (warm.hit_rate or 0) > (warm.ideal_hit_rate or 0)
    report = to_report(warm, scenario="s", policy="p")
    (run,) = report.runs
    assert run.kv_lost_reuse is None
    assert run.extras["warm_requests"] == warm.warm_requests
    table = dict(row for row in report.rows())  # type: ignore[misc]
    assert f"the cluster was warm: {warm.warm_requests} requests found more" in table["warning"]
    assert table["KV hit"].endswith("(above the ideal: not a result)")
    assert "warning" not in dict(to_report(cold, scenario="s", policy="p").rows())  # type: ignore[arg-type]


async def test_probes_do_not_make_a_cluster_warm() -> None:
    async with FakeServer().running() as server, HttpTarget(server.url) as other:
        verifier = TargetVerifier(other)
        result = await play(server, trace(family()), verify_every=1, verifier=verifier)
    assert result.warm_requests == 0


async def test_the_table_of_a_replay_reads_without_a_manual() -> None:
    async with FakeServer().running() as server:
        server.fault = lambda s: Response("no", 500) if s.id.endswith("main/1") else None
        result = await play(server, trace(family()))
    rows = dict(row for row in to_report(result, scenario="s", policy="mine").rows())  # type: ignore[misc]
    assert rows["result"] == "NOT OK: 1 of 12 requests failed"
    assert rows["policy (a label)"] == "mine"
    assert rows["agent's pause, mean"] == "0.0 ms"
    assert rows["duration"].endswith("s")
    assert not {"ok", "pause", "policy", "duration s"} & set(rows)
