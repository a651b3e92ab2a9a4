"""Our own form: what is valid, what is not and where, and that files come back as written."""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evctl.core.errors import ConfigError, NotFoundError
from evctl.trace import files
from evctl.trace.schema import (
    Branch,
    Conversation,
    TraceRequest,
    common_prefix,
    encode_blocks,
    expand,
    problems,
)
from tests.trace.traces import BLOCK, HEADER, branches, family, growing


@settings(deadline=None)
@given(branches())
def test_what_is_encoded_expands_to_the_same_blocks(branch: Branch) -> None:
    previous: list[int] = []
    for request, blocks in zip(branch.requests, expand(branch), strict=True):
        assert request.blocks == len(blocks)
        assert request.keep == common_prefix(previous, blocks)
        assert encode_blocks(previous, blocks) == (request.keep, request.add)
        previous = blocks
    assert problems(Conversation("c", (branch,)), BLOCK) == []


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12))
def test_common_prefix(left: list[int], right: list[int]) -> None:
    length = common_prefix(left, right)
    assert left[:length] == right[:length]
    assert length == min(len(left), len(right)) or left[length] != right[length]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_file_comes_back_as_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    assert files.write(path, HEADER, [family("a"), family("b")]) == 2
    first = path.read_bytes()
    loaded = files.load(path)
    assert loaded.header == HEADER
    assert loaded.conversations == (family("a"), family("b"))
    assert files.validate(path) == []
    files.write(path, HEADER, loaded.conversations)
    assert path.read_bytes() == first
    assert [p.name for p in tmp_path.iterdir()] == [name]


def ask(in_tokens: int, keep: int = 0, *add: tuple[int, int]) -> TraceRequest:
    return TraceRequest(in_tokens, 1, keep=keep, add=add)


WRONG = {
    "keeps more than there is": (Branch("main", (ask(640, 3),)),),
    "do not fit": (Branch("main", (ask(100, 0, (0, 2)),)),),
    "longest common prefix": (Branch("main", (ask(640, 0, (0, 9)), ask(640, 3, (3, 2)))),),
    "from global to local": (Branch("main", (ask(640, 0, (-2, 4)),)),),
    "has no requests": (Branch("main", ()),),
    "has no branch": (),
    "no earlier branch": (growing("main", 2), growing("a", 1, kind="subagent", parent="b")),
    "only the root": (growing("main", 2), growing("a", 1, parent="main")),
    "used twice": (growing("main", 2), growing("main", 1, kind="fork", parent="main")),
    "first branch is the root": (growing("main", 2, kind="subagent"),),
    "starts after request 7": (
        growing("main", 2),
        growing("a", 1, kind="subagent", parent="main", after=7),
    ),
    "is no request of the parent": (
        growing("main", 2),
        growing("a", 1, kind="subagent", parent="main", after=1, join=1),
    ),
}


@pytest.mark.parametrize("why", WRONG)
def test_contradictions_are_told_with_their_line(tmp_path: Path, why: str) -> None:
    text = why.replace("keeps more than there is", "keeps 3 of 0 blocks")
    bad = Conversation("bad", WRONG[why])
    assert any(text in problem for problem in problems(bad, BLOCK))
    path = tmp_path / "t.jsonl"
    files.write(path, HEADER, [family("good"), bad, family("good")])
    found = files.validate(path)
    assert any(f"{path}:3: " in line and text in line for line in found)
    assert found[-1] == f"{path}:4: conversation 'good' comes twice"
    with pytest.raises(ConfigError) as caught:
        files.load(path)
    assert f"{path}:3" in caught.value.what


GOOD_HEADER = msgspec.json.encode(HEADER)


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"", ":1"),
        (b"\n\n", ":1"),
        (b"nonsense\n", ":1"),
        (b"\xff\xfe\n", ":1"),
        (GOOD_HEADER.replace(b"evctl.trace", b"other"), ":1"),
        (GOOD_HEADER.replace(b'"version":1', b'"version":2'), ":1"),
        (GOOD_HEADER + b"\n\n{", ":3"),
        (GOOD_HEADER + b'\n{"id":"a","branches":[{}]}', ":2"),
        (GOOD_HEADER + b'\n{"id":"a","branches":[],"x":1}', ":2"),
        (GOOD_HEADER + b"\n" + b"[" * 100_000, ":2"),
    ],
)
def test_malformed_files_name_their_line(tmp_path: Path, content: bytes, where: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        files.load(path)
    assert caught.value.what.endswith(f"{path}{where}")
    assert files.validate(path)


def test_damaged_compression_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    files.write(path, HEADER, [family(str(i)) for i in range(50)])
    whole = path.read_bytes()
    for broken in (whole[:-20], whole[:40], b"not gzip", whole[:100] + b"\0" * 50 + whole[150:]):
        path.write_bytes(broken)
        with pytest.raises(ConfigError):
            files.load(path)
    with pytest.raises(NotFoundError):
        files.load(tmp_path / "missing.jsonl")
    with pytest.raises(NotFoundError):
        files.locate(tmp_path / "missing.jsonl")


def test_a_line_that_unpacks_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb") as file:
        file.write(GOOD_HEADER + b"\n")
        for _ in range(80):
            file.write(b" " * 2**20)
    with pytest.raises(ConfigError, match="bytes long"):
        files.load(path)
