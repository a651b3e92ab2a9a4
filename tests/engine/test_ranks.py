"""Nodes of several ranks: the same bits, and no process that outlives another."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evctl.core.errors import EvctlError
from evctl.core.kv import FetchPiece
from evctl.core.sampling import SamplingParams
from evengine.ports import Batch, Draw, PrefillChunk
from evengine.ranks.processes import RankProcesses
from tests.engine.driver import Driver, Result
from tests.engine.paths import PathResult, Paths, assert_same
from tests.engine.ranked import Ranked, all_gone, four_heads_model, ranks_of, sockets_of
from tests.engine.test_equality import random_prompts

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

LENGTHS = [1, 16, 17, 130, 257, 520]
SOON_S = 5.0


def model_of(kind: str, prepared_model) -> Path:
    return four_heads_model() if kind == "gqa" else prepared_model("random-4l256-latent")


# ------------------------------------------------------------------ the same bits


@pytest.mark.parametrize("kind", ["gqa", "latent"])
def test_one_two_and_four_ranks_give_the_same_bits(
    tmp_path: Path, prepared_model, kind: str
) -> None:
    """Tokens, log-probabilities and canonical checksums, on one node and split over two whose L1
    differ in size."""
    model, prompts = model_of(kind, prepared_model), random_prompts(LENGTHS, 256, seed=9)
    paths: list[PathResult] = []
    told: list[list[Result]] = []
    for ranks in (1, 2, 4):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        driver = Driver(folder, model, ranks=ranks, l1_blocks=600)
        configure(driver, "b", l1_blocks=637)
        with driver:
            numerics = {node.hello.numerics for node in driver.nodes.values() if node.hello}
            assert len(numerics) == 1
            driver.settle()
            both = Paths(driver, prompts)
            paths += [both.one_node(), both.disaggregated()]
            asked = [driver.submit(p, decode="b", tenant="lp", logprobs=3) for p in prompts]
            told.append(driver.wait(asked))
            assert [driver.quiet(name).problems for name in "ab"] == [(), ()]
    assert_same(paths)
    for results in told[1:]:
        for one, other in zip(told[0], results, strict=True):
            assert other.tokens == one.tokens
            assert other.logprobs == one.logprobs


def configure(driver: Driver, name: str, **changes: object) -> None:
    """Give one node, before it starts, another configuration than the others'."""
    path = driver.nodes[name].config_path
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("kind", ["gqa", "latent"])
def test_blocks_come_back_from_l2_whatever_the_ranks(
    tmp_path: Path, prepared_model, kind: str
) -> None:
    model, asked = model_of(kind, prepared_model), random_prompts([300] * 5, 256, seed=2)
    with Driver(tmp_path, model, names=("a",), ranks=2, l1_blocks=30, l2_blocks=200) as driver:
        first = driver.run(asked, max_tokens=10)
        driver.quiet("a")
        again = driver.wait([driver.submit(p, max_tokens=10) for p in asked])
        assert [r.tokens for r in again] == first
        assert all(r.cached_tokens == 299 // 16 * 16 for r in again)
        assert driver.quiet("a").problems == ()


@pytest.mark.parametrize("kind", ["gqa", "latent"])
def test_what_a_peers_ranks_computed_is_fetched_from_its_pool(
    tmp_path: Path, prepared_model, kind: str
) -> None:
    model, asked = model_of(kind, prepared_model), random_prompts([300] * 2, 256, seed=6)
    with Driver(tmp_path, model, ranks=2, l1_blocks=100, l2_blocks=200) as driver:
        driver.settle()
        expected = driver.run(asked, prefill="a", max_tokens=10)
        driver.quiet("a")
        pieces = [FetchPiece(0, 300 // 16, ("a",))]
        ids = [driver.submit(p, prefill="b", fetch=pieces, max_tokens=10) for p in asked]
        results = driver.wait(ids)
        assert [r.tokens for r in results] == expected
        assert [r.cached_tokens for r in results] == [299 // 16 * 16] * 2
        for name in "ab":
            assert driver.quiet(name).problems == ()


def test_nodes_of_different_ranks_do_not_push_to_each_other(
    tmp_path: Path, prepared_model
) -> None:
    driver = Driver(tmp_path, prepared_model("random-4l256"), ranks=2)
    configure(driver, "b", ranks=1)
    with driver:
        request = driver.submit([1, 2, 3], prefill="a", decode="b", max_tokens=4)
        assert driver.wait([request])[0].finish == "length"
        assert not driver.handed_over(request)
        assert "its KV lies in 1 ranks, ours in 2" in driver.nodes["a"].log()


# ------------------------------------------------------------------ life and death


@pytest.mark.parametrize("busy", [False, True])
def test_an_engine_ends_at_once_when_a_rank_is_killed(
    tmp_path: Path, prepared_model, busy: bool
) -> None:
    model = prepared_model("random-4l256-latent")
    with Driver(tmp_path, model, names=("a",), ranks=3) as driver:
        node = driver.nodes["a"]
        if busy:
            driver.submit([5] * 100, max_tokens=2000)
            driver.until(lambda: bool(driver.results["r1"].tokens), 20.0, "a first token")
        ranks = ranks_of(node.pid)
        assert len(ranks) == 2
        ranks[1].kill()
        killed_s = time.monotonic()
        assert node.process is not None
        assert node.process.wait(SOON_S) == 1
        assert time.monotonic() - killed_s < SOON_S
        assert "error[EV-2012]: engine a ends: it has lost rank 2 of 3" in node.log()
        assert "rank 2 was killed by SIGKILL" in node.log()
        assert all_gone(ranks, 0.0)


def test_ranks_end_with_their_lead_and_keep_nothing_of_it(tmp_path: Path, prepared_model) -> None:
    model = prepared_model("random-4l256-latent")
    with Driver(tmp_path, model, names=("a",), ranks=4) as driver:
        node = driver.nodes["a"]
        ranks = ranks_of(node.pid)
        assert len(ranks) == 3
        assert [sockets_of(rank) for rank in ranks] == [1, 1, 1]
        before_s = [cpu_s(rank) for rank in ranks]
        driver.pump(2.0)
        assert sum(map(cpu_s, ranks)) - sum(before_s) <= 0.02, "an idle rank does not wait"
        os.kill(ranks[0].pid, signal.SIGSTOP)  # even one that cannot look
        assert node.process is not None
        node.process.kill()
        node.process.wait(SOON_S)
        assert all_gone(ranks, SOON_S)
        driver.restart("a")
        ranks = ranks_of(node.pid)
        for rank in ranks:
            os.kill(rank.pid, signal.SIGTERM)  # as when a whole group is told to end
        assert driver.run([[1, 2, 3]], max_tokens=4)
        node.process.terminate()
        assert node.process.wait(10) == 0
        assert all_gone(ranks, 0.0)


def cpu_s(process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def test_ranks_that_do_not_divide_the_kv_heads_are_refused(tmp_path: Path, prepared_model) -> None:
    driver = Driver(tmp_path, prepared_model("random-4l256"), names=("a",), ranks=3)
    node = driver.nodes["a"]
    node.spawn()
    assert node.process is not None
    try:
        assert node.process.wait(60) == 3
        assert "EV-2011" in node.log()
        assert "its 2 KV heads do not divide over 3" in node.log()
    finally:
        driver.stop()


# ------------------------------------------------------------------ the executor by itself


@pytest.fixture
def pair(prepared_model) -> Iterator[Ranked]:
    ranked = Ranked(prepared_model("random-4l256"), 2, wait_s=1.0)
    yield ranked
    ranked.close()


def a_batch(tokens: int = 40) -> Batch:
    chunk = PrefillChunk("r", list(range(tokens)), 0, [5, 2, 9], sample=True)
    params = SamplingParams(max_tokens=1, logprobs=3)
    return Batch(chunks=[chunk], rows=[], draws=[Draw(params, 0)])


def test_the_ports_executor_is_the_same_for_any_number_of_ranks(
    pair: Ranked, prepared_model
) -> None:
    one = Ranked(prepared_model("random-4l256"), 1, wait_s=1.0)
    assert pair.check.numerics == one.check.numerics
    assert pair.check.exact
    assert pair.executor.layout == one.executor.layout
    assert pair.executor.run(a_batch()) == one.executor.run(a_batch())
    for slot, tokens in ((5, 16), (2, 16), (9, 8)):
        assert pair.pages.canonical(slot, tokens) == one.pages.canonical(slot, tokens)
    one.close()


def test_a_stuck_rank_fails_the_batch_in_bounded_time(pair: Ranked) -> None:
    failed: list[str] = []
    pair.processes.watch(lambda: failed.append("told"))
    pair.executor.run(a_batch())
    (pid,) = pair.processes.pids
    os.kill(pid, signal.SIGSTOP)
    started_s = time.monotonic()
    with pytest.raises(EvctlError) as raised:
        pair.executor.run(a_batch())
    assert time.monotonic() - started_s < 3.0
    assert raised.value.code == "EV-2012"
    assert "rank 1 did not answer within 1 s" in raised.value.why
    with pytest.raises(EvctlError):
        pair.executor.run(a_batch())
    pair.close()
    assert not Path(f"/proc/{pid}").exists()


def test_what_went_wrong_first_is_what_is_told(pair: Ranked) -> None:
    (pid,) = pair.processes.pids
    os.kill(pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EvctlError) as raised:
            pair.executor.run(a_batch())
        assert "rank 1 was killed by SIGKILL" in raised.value.why


def test_a_rank_that_cannot_start_says_so(tmp_path: Path, prepared_model) -> None:
    processes = RankProcesses("test", 2)
    (pid,) = processes.pids
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EvctlError) as raised:
        processes.answers()
    assert raised.value.code == "EV-2012"
    processes.close()
