"""The importer of Weka's traces: its rules, both forms, and any broken input."""

from __future__ import annotations

import gzip
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evctl.core.errors import ConfigError, EvctlError
from evctl.trace import commands, files
from evctl.trace.schema import Branch, Conversation, expand

DATA = Path(__file__).resolve().parents[1] / "data" / "traces"
RAW = DATA / "weka_0291.json.gz"
COMPACT = DATA / "weka_0291_compact.jsonl"


def only(path: Path, *, share_prefix: bool = False) -> Conversation:
    (conversation,) = files.load(path, share_prefix=share_prefix).conversations
    return conversation


def request(t: float, blocks: list[int], tail: int = 0, out: int = 50, **more: Any) -> Any:
    return {
        "t": t, "type": "n", "model": "m", "in": 64 * len(blocks) + tail, "out": out,
        "hash_ids": blocks, "stop": "tool_use", "api_time": 2.0, **more,
    }  # fmt: skip


def subagent(t: float, requests: list[Any], **more: Any) -> Any:
    return {
        "t": t, "type": "subagent", "agent_id": "x", "subagent_type": "Explore",
        "duration_ms": 30_000, "status": "completed", "requests": requests, **more,
    }  # fmt: skip


def document(requests: list[Any], **more: Any) -> Any:
    return {
        "id": "t1", "block_size": 64, "hash_id_scope": "local", "tool_tokens": 192,
        "system_tokens": 64, "requests": requests, **more,
    }  # fmt: skip


def imported(path: Path, content: Any, *, share_prefix: bool = False) -> Conversation:
    path.write_text(json.dumps(content, indent=1))
    return only(path, share_prefix=share_prefix)


def branch_of(conversation: Conversation, name: str) -> Branch:
    return next(b for b in conversation.branches if b.id == name)


# ---------------------------------------------------------------------------- rules


def test_both_forms_of_a_public_conversation_are_the_same() -> None:
    raw, compact = only(RAW), only(COMPACT)
    assert raw == compact
    assert [len(b.requests) for b in raw.branches] == [20, 5, 7]
    source = json.loads(gzip.decompress(RAW.read_bytes()))
    listed = [r for r in source["requests"] if r["type"] == "n"]
    assert [r["hash_ids"] for r in listed] == list(expand(raw.root))
    assert [(r["in"], r["out"]) for r in listed] == [
        (r.in_tokens, r.out_tokens) for r in raw.root.requests
    ]


def test_subagents_of_a_public_conversation() -> None:
    raw = only(RAW)
    first, second = raw.branches[1:]
    for child in (first, second):
        assert (child.kind, child.parent, child.after, child.join) == ("subagent", "main", 15, 16)
        # Both ended at their `t`; their start is that less their duration, right after 1100.64.
        assert child.delay_s == pytest.approx(0.7, abs=0.1)
    # The parent went on 28 s after the later one ended (1209 - 1180.553).
    assert raw.root.requests[16].wait_s == pytest.approx(28.447)


def test_waits(tmp_path: Path) -> None:
    content = document(
        [
            request(5.0, [1]),
            request(10.0, [1, 2], think_time=1.5),
            request(20.0, [1, 2, 3]),
            request(21.0, [1, 2, 3, 4], api_time=None),
            request(30.0, [1, 2, 3, 4, 5], think_time=-3),
        ]
    )
    root = imported(tmp_path / "t.json", content).root
    assert [r.wait_s for r in root.requests] == [5.0, 1.5, 8.0, 0.0, 0.0]
    assert [r.service_s for r in root.requests] == [2.0, 2.0, 2.0, None, 2.0]


def test_joins_and_background(tmp_path: Path) -> None:
    inner = [request(0.0, [50]), request(4.0, [50, 51])]
    content = document(
        [
            subagent(31.0, inner),
            request(40.0, [1]),
            subagent(80.0, inner),
            subagent(90.0, [*inner, subagent(31.0, inner)]),
            request(100.0, [1, 2], think_time=58.0),
            subagent(103.0, inner, status="async_launched", duration_ms=None),
            subagent(110.0, []),
            request(120.0, [1, 2, 3], think_time=18.0),
            subagent(160.0, inner),
        ]
    )
    conversation = imported(tmp_path / "t.json", content)
    assert [(b.id, b.parent, b.after, b.join, b.delay_s) for b in conversation.branches] == [
        ("main", "", -1, None, 0.0),
        ("a1", "main", -1, 0, 1.0),
        ("a2", "main", 0, 1, 8.0),
        ("a3", "main", 0, 1, 18.0),
        ("a4", "a3", 1, None, 0.0),
        ("a5", "main", 1, None, 1.0),  # launched without waiting
        ("a6", "main", 2, None, 8.0),  # nothing follows
    ]
    # Waits of a request after sub-agents begin when the last of them ended.
    assert [r.wait_s for r in conversation.root.requests] == [9.0, 10.0, 10.0]


def test_compaction_and_rewind_are_found(tmp_path: Path) -> None:
    long = list(range(1, 101))
    content = document(
        [
            request(0.0, long),
            request(5.0, [*long[:99], 200, 201]),  # the last block only: goes on
            request(9.0, [*long[:60], *range(300, 360)]),  # rewinds
            request(12.0, [*long[:30], *range(400, 410)]),  # compacts
            request(15.0, [*long[:30], *range(400, 410), 500]),
        ]
    )
    root = imported(tmp_path / "t.json", content).root
    assert [r.mark for r in root.requests] == ["", "", "rewind", "compact", ""]


def test_common_text_is_shared_across_conversations(tmp_path: Path) -> None:
    for name, base in (("a", 0), ("b", 500)):
        blocks = list(range(base, base + 6))
        child = subagent(30.0, [request(0.0, [90, 91])], tool_tokens=64, system_tokens=0)
        content = document([request(0.0, blocks), child, request(40.0, [*blocks, 70])], id=name)
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    a, b = files.load(tmp_path, share_prefix=True).conversations
    prompts = [[*expand(c.root)] for c in (a, b)]
    assert prompts[0][0][:4] == prompts[1][0][:4] == prompts[0][1][:4]
    assert all(i < 0 for i in prompts[0][0][:4])
    assert prompts[0][0][4:] == [4, 5]
    assert prompts[1][1][4:] == [504, 505, 70]
    assert [*expand(a.branches[1])] == [*expand(b.branches[1])]
    assert all(i >= 0 for c in files.load(tmp_path, share_prefix=False).conversations
               for p in expand(c.root) for i in p)  # fmt: skip


def test_prompts_never_claim_more_blocks_than_fit(tmp_path: Path) -> None:
    content = document([{**request(0.0, [1, 2, 3]), "in": 130}])
    assert imported(tmp_path / "t.json", content).root.requests[0].blocks == 2


# ---------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "broken",
    [
        document([]),
        document([request(0.0, [1])], block_size=32),
        document([request(0.0, [1]) | {"type": "strange"}]),
        document([request(0.0, [1]) | {"in": -1}]),
        document([request(0.0, [1]) | {"in": 10**12}]),
        document([request(0.0, [-1])]),
        document([request(0.0, [2**60])]),
        document([request(-1.0, [1])]),
        document([request(1e300, [1])]),
        document([{k: v for k, v in request(0.0, [1]).items() if k != "hash_ids"}]),
        document([{**request(0.0, [1]), "hash_ids": None, "keep": 3, "add": []}]),
        document([{**request(0.0, [1]), "hash_ids": None, "add": [[2**52 - 1, 9]]}]),
        document([request(0.0, [1]), subagent(1e300, [])]),
        document([request(0.0, [1])], id=""),
        document([request(0.0, [1])], id="line\nbreak"),
        document([request(0.0, [1])], id="x" * 81),
        [1, 2],
        "text",
    ],
)
def test_bad_documents_are_refused_with_their_place(tmp_path: Path, broken: Any) -> None:
    path = tmp_path / "t.json"
    with pytest.raises(ConfigError) as caught:
        imported(path, broken)
    assert f"{path}:" in caught.value.what
    assert commands.validate(path)


def test_the_line_of_a_fault_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    text = json.dumps(document([request(0.0, [1])]), indent=1)
    path.write_text(text.replace('"model": "m"', '"model": nonsense'))
    with pytest.raises(ConfigError) as caught:
        files.load(path)
    expected = 1 + text[: text.index('"model"')].count("\n")
    assert caught.value.what.endswith(f"t.json:{expected}")

    good = json.dumps(document([request(0.0, [1])], id="other"))
    lines = tmp_path / "t.jsonl"
    lines.write_text(f'{good}\n{{"id": "x", "block_size": 64, "requests": 5}}\n')
    with pytest.raises(ConfigError) as caught:
        files.load(lines)
    assert caught.value.what.endswith("t.jsonl:2")
    lines.write_text(f"{good}\n{good}\n")
    with pytest.raises(ConfigError, match="comes twice"):
        files.load(lines)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    inner: list[Any] = [request(0.0, [1])]
    for _ in range(20):
        inner = [request(0.0, [1]), subagent(40.0, inner)]
    with pytest.raises(ConfigError, match="deep"):
        imported(tmp_path / "t.json", document(inner))
    path = tmp_path / "deep.json"
    path.write_text('{"requests":' * 100_000)
    with pytest.raises(ConfigError):
        files.load(path)


def everything(path: Path) -> None:
    """Whatever the file holds: it is read whole, or there is one EvctlError."""
    try:
        for conversation in files.open_trace(path)[1]:
            assert conversation.branches
    except EvctlError as error:
        assert str(path) in error.what


SMALL = json.dumps(
    document(
        [
            request(0.0, [1, 2, 3]),
            subagent(35.0, [request(0.0, [9]), request(1.0, [9, 10])]),
            {**request(40.0, []), "hash_ids": None, "keep": 3, "add": [[4, 2]], "in": 320},
        ]
    )
).encode()

quick = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quick
@given(st.randoms(use_true_random=False), st.sampled_from(["t.json", "t.jsonl", "t.json.gz"]))
def test_mutated_and_cut_files_give_nothing_but_our_errors(
    tmp_path: Path, rng: random.Random, name: str
) -> None:
    data = bytearray(gzip.compress(SMALL) if name.endswith(".gz") else SMALL)
    for _ in range(rng.randint(0, 4)):
        place = rng.randrange(len(data))
        choice = rng.randrange(4)
        if choice == 0:
            data[place] = rng.randrange(256)
        elif choice == 1:
            del data[place : place + rng.randint(1, 20)]
        elif choice == 2:
            data[place:place] = rng.choice([b"9" * 30, b"{", b"]", b"null", b"-", b"1e999", b'"'])
        else:
            del data[place:]
        if not data:
            break
    path = tmp_path / name
    path.write_bytes(bytes(data))
    everything(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@quick
@given(st.data())
def test_any_value_in_any_place_gives_nothing_but_our_errors(
    tmp_path: Path, data: st.DataObject
) -> None:
    content = json.loads(SMALL)
    place: Any = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(json_values)
        break
    path = tmp_path / "t.json"
    path.write_text(json.dumps(content))
    everything(path)


# ---------------------------------------------------------------------------- the public set


def test_the_public_set_reads(shared_dir: Path) -> None:
    path = shared_dir / "traces" / "claude_code_weka.jsonl.gz"
    _, conversations = files.open_trace(path)
    first = list(itertools.islice(conversations, 40))
    assert len({c.id for c in first}) == 40
    assert sum(c.requests for c in first) > 2000
