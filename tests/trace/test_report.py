"""The BenchReport of a replay: the form that scripts rely on."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evctl.bench.replay import replay
from evctl.bench.report import BenchReport, BenchRun, read_report
from evctl.core.errors import ConfigError, NotFoundError
from tests.trace.fake_server import FakeServer

RUN_FIELDS = {
    "policy", "seed", "throughput_rps", "ttft_s", "e2e_s", "tpot_s", "kv_hit_rate",
    "kv_hit_rate_ideal", "kv_lost_reuse", "kv_lost_by_cause", "uncached_tokens_per_request",
    "switches", "switch_time_s", "final_split", "split_timeline", "queue_wait_s",
    "most_loaded_over_average", "pause_s", "prefill_idle", "peak_kv_demand", "off_optimum",
    "requests", "failed", "extras",
}  # fmt: skip


@contextmanager
def serving(server: FakeServer) -> Iterator[FakeServer]:
    """The fake server in a thread, because the command has a loop of its own."""
    ready, done = threading.Event(), threading.Event()

    async def run() -> None:
        async with server.running():
            ready.set()
            while not done.is_set():
                await asyncio.sleep(0.01)

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        done.set()
        thread.join()


def test_a_replay_of_the_sample_reports_itself(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with serving(FakeServer()) as server, serving(FakeServer(cache=False)) as pure:
        server.pace_s = pure.pace_s = 0.0
        report = replay(
            "sample",
            server.url,
            agents=4,
            scale="1/64",
            max_requests=24,
            time_scale=0.0,
            verify=10,
            verify_target=pure.url,
            policy="hold",
            report_path=path,
        )
    assert report.ok
    assert read_report(path) == report
    value = json.loads(path.read_text())
    assert (value["apiVersion"], value["kind"]) == ("evctl/v1", "BenchReport")
    assert value["scenario"] == "replay-sample"
    (run,) = value["runs"]
    assert set(run) == RUN_FIELDS
    assert (run["policy"], run["seed"], run["requests"], run["failed"]) == ("hold", 0, 24, 0)
    assert set(run["ttft_s"]) == {"mean", "p50", "p95"}
    assert run["kv_hit_rate_ideal"] >= run["kv_hit_rate"] > 0
    for unmeasured in ("switches", "final_split", "queue_wait_s", "prefill_idle", "off_optimum"):
        assert run[unmeasured] is None
    extras = run["extras"]
    assert extras["ok"] is True
    assert (extras["verified"], extras["wrong_tokens"], extras["unverified"]) == (2, 0, 0)
    assert extras["branches_at_once_max"] >= 4
    assert extras["in_flight_mean"] > 0
    assert extras["mean_prompt_tokens"] > 500
    names = {row[0] for row in report.rows()}
    assert {"requests", "TTFT", "KV hit", "wrong tokens", "in flight mean"} <= names


def test_a_run_that_is_not_ok_spoils_the_report() -> None:
    good = BenchRun(policy="p", seed=0, requests=5)
    assert BenchReport(scenario="s", runs=[good]).ok
    for bad in (
        BenchRun(policy="p", seed=0, failed=1),
        BenchRun(policy="p", seed=0, extras={"ok": False}),
    ):
        report = BenchReport(scenario="s", runs=[good, bad])
        assert not report.ok
        assert all(len(row) == 3 for row in report.rows())


@pytest.mark.parametrize("content", ["", "[]", '{"scenario": "s", "runs": [], "kind": "Other"}'])
def test_what_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "r.json"
    with pytest.raises(NotFoundError):
        read_report(path)
    path.write_text(content)
    with pytest.raises(ConfigError):
        read_report(path)
