"""Figures of traces small enough to count by hand, of a public conversation, of the sample."""

from __future__ import annotations

import json
from pathlib import Path

from evctl.trace import commands, files
from evctl.trace.plan import ReplayOptions, assignments
from evctl.trace.schema import Conversation
from evctl.trace.stats import measure, spread
from tests.trace.test_weka import COMPACT
from tests.trace.traces import HEADER, branch, family


def test_reuse_by_hand() -> None:
    one = branch(
        "main",
        [
            ([1, 2, 3], 10, 100),
            # 10 + 100 more tokens are the output and the tail: 202 + 100 - 1 = 301 have KV.
            ([1, 2, 3, 4, 5], 0, 10),
            ([1, 2, 8], 0, 5),  # a rewind: nothing carried
            ([1, 2, 3, 4, 9], 63, 5),  # blocks 3 and 4 come back from the first two
        ],
        marks={2: "rewind"},
        waits_s=2.0,
    )
    stats = measure(HEADER, [Conversation("c", (one,))])
    prompt = 202 + 320 + 192 + 383
    assert (stats.requests, stats.prompt_tokens, stats.output_tokens) == (4, prompt, 120)
    assert stats.ideal_hit_prompts == (0 + 192 + 128 + 256) / prompt
    assert stats.ideal_hit == (0 + 256 + 128 + 256) / prompt
    assert stats.uncached_tokens_per_request == (202 + 64 + 64 + 127) / 4
    assert stats.carried_output == 100 / 120
    assert (stats.rewinds, stats.compactions) == (1, 0)
    assert stats.wait_s.mean == 2.0


def test_families_and_global_blocks() -> None:
    stats = measure(HEADER, [family("a"), family("b")])
    assert (stats.conversations, stats.branches, stats.subagents) == (2, 8, 6)
    assert stats.background_subagents == 2
    assert stats.fan_outs == {1: 2, 2: 2}
    assert stats.subagent_requests == 14
    assert stats.requests_per_main_branch.mean == 5
    shared = [-(2**20) + i for i in range(4)]
    twins = [Conversation(n, (branch("main", [(shared, 0, 1)]),)) for n in "ab"]
    assert measure(HEADER, twins).ideal_hit == 0.5


def test_spread() -> None:
    assert spread([]).mean is None
    found = spread(range(1, 101))
    assert (found.mean, found.p50, found.p95, found.p99, found.most) == (50.5, 50, 95, 99, 100)


def test_output_as_table_and_json() -> None:
    rows = commands.stats(COMPACT)
    assert isinstance(rows, list)
    assert dict(rows)["requests"].startswith("32")
    found = commands.stats(COMPACT, "json")
    assert isinstance(found, dict)
    assert found["kind"] == "TraceStats"
    assert json.loads(json.dumps(found))["fan_outs"] == {"2": 1}


def test_an_empty_trace_has_figures(tmp_path: Path) -> None:
    files.write(tmp_path / "t.jsonl", HEADER, [])
    assert commands.trace_stats(tmp_path / "t.jsonl").ideal_hit is None
    assert commands.stats(tmp_path / "t.jsonl")


# ---------------------------------------------------------------------------- the sample


def test_the_sample_is_what_the_demo_needs() -> None:
    path = files.locate("sample")
    assert path.stat().st_size < 300_000
    assert (path.parent / "NOTICE.md").exists()
    assert commands.validate("sample") == []
    stats = commands.trace_stats("sample")
    assert stats.licence == "Apache-2.0"
    assert stats.conversations >= 14
    assert stats.requests >= 200
    assert stats.subagents >= 4
    assert stats.prompt.mean is not None
    assert stats.prompt.mean >= 32_000
    assert stats.ideal_hit is not None
    assert stats.ideal_hit > 0.9
    text = path.parent.joinpath("NOTICE.md").read_text()
    assert f"{stats.requests} requests" in text
    assert f"{stats.prompt.mean:,.0f} a request" in text


def test_the_sample_has_long_prompts_wherever_agents_start() -> None:
    trace = files.load(files.sample_path())
    for seed in range(3):
        lengths = []
        for agent in range(12):
            first = next(assignments(trace, ReplayOptions(agents=12, seed=seed), agent))
            root = first.conversation.root.requests
            lengths += [r.in_tokens for r in root[first.start : first.start + 10]]
        assert sum(lengths) / len(lengths) >= 32_000


def test_importing_gives_our_form(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    assert commands.import_trace(COMPACT, path) == 1
    assert commands.validate(path) == []
    assert commands.trace_stats(path) == commands.trace_stats(COMPACT)
