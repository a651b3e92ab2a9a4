"""`evctl bench exact`: that it says the same when all is the same, and notices when it is not."""

from __future__ import annotations

import json
import subprocess
import sys

import msgspec
import pytest

from evctl.bench.engines.node import EngineFailedError
from evctl.bench.exact import run
from evctl.bench.exact.compare import Pages, Played, differences
from evctl.bench.exact.paths import PATHS
from evctl.bench.exact.prompts import LENGTHS, random_prompts
from evctl.bench.exact.report import PoolBytes, pool_rows, report, rows
from evctl.bench.exact.stage import Answer, Source, said
from evctl.core.errors import UsageError
from tests.conftest import ROOT

MODEL = "random-4l256"


def played(
    tokens: list[int],
    checksums: list[int],
    *,
    torn: list[int] | None = None,
    wrong: str = "",
) -> Played:
    """One prompt."""
    answer = Answer(at=0, tokens=tokens, source=Source(l1=1), wrong=wrong)
    return Played([answer], [Pages(checksums, 2 * len(checksums), torn or [])])


def test_the_same_has_no_differences() -> None:
    assert differences(played([1, 2], [7, 8]), played([1, 2], [7, 8])) == []


@pytest.mark.parametrize(
    ("found", "tokens", "blocks"),
    [
        (played([1, 3], [7, 8]), 1, 0),
        (played([1], [7, 8]), 1, 0),
        (played([1, 2], [7, 9]), 0, 1),
        (played([1, 2], [7]), 0, 1),
        (played([1, 2], [7, 0]), 0, 1),
        (played([1, 2], [7, 8], torn=[0]), 0, 1),
    ],
    ids=["token", "fewer tokens", "block", "fewer blocks", "block not held", "copies differ"],
)
def test_each_difference_fails_its_row(found: Played, tokens: int, blocks: int) -> None:
    expected = played([1, 2], [7, 8])
    (one,) = differences(expected, found)
    assert (one.tokens, one.blocks) == (tokens, blocks)
    path = report(MODEL, 1, "own L2", expected, found, 1.0)
    assert [row.ok for row in rows(path)] == [False, True]
    assert path.faults


def test_a_block_that_the_first_path_lacks_is_a_difference_to_itself() -> None:
    lacking = played([1, 2], [7, 0])
    assert [one.blocks for one in differences(lacking, lacking)] == [1]


def test_a_path_that_was_not_taken_fails() -> None:
    same = played([1], [7], wrong="all computed; wanted 2 from own L2")
    path = report(MODEL, 1, "own L2", same, same, 1.0)
    assert [row.ok for row in rows(path)] == [True, False]


def test_l2_of_several_ranks_is_held_against_that_of_one() -> None:
    def pool(ranks: int, used_bytes: int) -> PoolBytes:
        return PoolBytes(model=MODEL, ranks=ranks, registered_bytes=100, used_bytes=used_bytes)

    assert [row.ok for row in pool_rows([pool(1, 50), pool(4, 50)])] == [True, True]
    assert [row.ok for row in pool_rows([pool(1, 50), pool(4, 200)])] == [True, False]
    assert pool_rows([pool(1, 50)]) == []


def test_engines_that_fail_fail_the_bench_unless_the_model_cannot_have_so_many_ranks() -> None:
    failed = run._failed(MODEL, 4, EngineFailedError("engine a ended", "exit code 1"))
    assert failed.ok is False
    refused = EngineFailedError("engine a ended", "2 KV heads", reason=run.INDIVISIBLE)
    assert run._failed(MODEL, 4, refused).ok is msgspec.UNSET


def test_prompts_are_of_all_lengths_and_long_enough_to_be_split() -> None:
    prompts = random_prompts(60, 320)
    assert sorted({len(prompt) for prompt in prompts}) == sorted(LENGTHS)
    assert min(LENGTHS) > 2 * run.LARGE.block_tokens
    assert random_prompts(60, 320) == prompts


def test_sources_are_said_in_words() -> None:
    assert said(Source()) == "all computed"
    assert said(Source(l1=1, peers=2, held=0)) == "1 from L1, 2 from peers, 0 held at decode"
    assert said(Source(held=-1)) == "not handed over"


def test_an_unknown_path_is_refused() -> None:
    with pytest.raises(UsageError, match="own L2"):
        run.measure(run.Plan(paths=("own l2",)))


@pytest.mark.system
@pytest.mark.timeout(300)
def test_every_path_is_taken_and_gives_the_same() -> None:
    found = run.measure(run.Plan(models=(MODEL,), prompts=4))
    assert found.ok, [row for row in found.rows if row.ok is False]
    assert [path.path for path in found.paths] == [path.name for path in PATHS]
    by_name = {path.path: path for path in found.paths}
    assert {path.prompts for path in found.paths} == {4}
    assert by_name["one node"].sources == by_name["after eviction"].sources == Source()
    assert by_name["own L2"].sources.own == by_name["a peer's L2"].sources.peers > 0
    assert found.pools[0].used_bytes > 0


@pytest.mark.system
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("fault", "path"), [("flip-received", "disaggregated"), ("flip-restored", "own L2")]
)
def test_a_byte_that_is_flipped_after_it_was_verified_ends_it_with_1(
    fault: str, path: str
) -> None:
    """What wrong code would pass it? None that changes a byte of KV on its way."""
    engine = f"-m tests.engine.faulty_engine --fault {fault}"
    options = ["--model", MODEL, "--prompts", "3", "--ranks", "1", "--path", path, "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "evctl.cli", "bench", "exact", *options, "--engine", engine],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 1, done.stderr
    rows_ = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    damaged = rows_[f"{MODEL}, R = 1, {path}: tokens and blocks that differ"]
    assert damaged["value"] > 0
    assert damaged["ok"] is False
    assert rows_[f"{MODEL}, R = 1, one node: tokens and blocks that differ"]["ok"] is True
