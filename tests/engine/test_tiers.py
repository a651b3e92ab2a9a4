"""Small tiers: eviction, restore from L2, preemption, and a node too full to receive."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.engine.driver import Driver

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


def prompts(count: int, tokens: int, seed: int = 4) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(tokens)] for _ in range(count)]


def test_blocks_evicted_from_l1_come_back_from_l2(tmp_path: Path, prepared_model) -> None:
    with Driver(
        tmp_path, prepared_model("random-4l256"), names=("a",), l1_blocks=30, l2_blocks=200
    ) as driver:
        asked = prompts(6, 300)
        first = driver.run(asked, max_tokens=10)
        before = driver.quiet("a").counters
        again = [driver.submit(p, max_tokens=10) for p in asked]
        results = driver.wait(again)
        assert [r.tokens for r in results] == first
        after = driver.quiet("a")
        restored = after.counters["l2_blocks_restored"] - before.get("l2_blocks_restored", 0)
        assert restored >= 5 * (299 // 16) - 30
        assert all(r.cached_tokens == 299 // 16 * 16 for r in results)
        assert after.problems == ()


def test_who_is_far_back_in_the_queue_gets_no_l1_yet(tmp_path: Path, prepared_model) -> None:
    """There would be room for all of them. In the end all have run."""
    limits = {"admit_ahead_s": 0.0, "chunk_tokens": 64}
    with Driver(
        tmp_path, prepared_model("random-4l256"), names=("a",), l1_blocks=600, limits=limits
    ) as driver:
        driver.run(prompts(1, 200), max_tokens=1)  # from now on it knows what a token takes
        asked = prompts(6, 900, seed=9)
        ids = [driver.submit(p, tenant="far", max_tokens=2) for p in asked]
        queued = 0
        while not all(driver.results[i].finish for i in ids):
            load = driver.inspect("a").load
            assert load.running_prefill <= 2
            assert load.l1_used_blocks <= 2 * 57 + load.running_decode * 57
            queued = max(queued, load.waiting_prefill)
        assert queued >= 3
        assert {r.finish for r in driver.wait(ids)} == {"length"}
        assert driver.quiet("a").problems == ()


def test_decodes_that_outgrow_l1_are_preempted_and_come_out_the_same(
    tmp_path: Path, prepared_model
) -> None:
    """Six outputs of 200 tokens need 6 * 15 blocks; there are 40."""
    with Driver(tmp_path, prepared_model("random-4l256"), names=("a",), l1_blocks=40) as driver:
        asked = prompts(6, 40)
        alone = [driver.run([p], tenant="alone", max_tokens=200)[0] for p in asked]
        together = driver.run(asked, tenant="together", max_tokens=200)
        assert together == alone
        after = driver.quiet("a")
        assert after.counters["preempted"] > 0
        assert after.problems == ()


def test_a_decode_node_without_room_makes_the_others_wait_not_fail(
    tmp_path: Path, prepared_model
) -> None:
    with Driver(tmp_path, prepared_model("random-4l256"), l1_blocks=60, block_tokens=16) as driver:
        driver.settle()
        asked = prompts(12, 200)
        expected = [driver.run([p], prefill="b", tenant="one", max_tokens=60)[0] for p in asked]
        ids = [
            driver.submit(p, prefill="a", decode="b", tenant="two", max_tokens=60) for p in asked
        ]
        assert [r.tokens for r in driver.wait(ids)] == expected
        for name in "ab":
            assert driver.quiet(name).problems == ()


def test_both_nodes_full_of_requests_for_each_other_get_out(
    tmp_path: Path, prepared_model
) -> None:
    """Each waits for room that the other's waiting requests hold: asking ends in time."""
    limits = {"push": {"reserve_s": 1.0}}
    with Driver(tmp_path, prepared_model("random-4l256"), l1_blocks=40, limits=limits) as driver:
        driver.settle()
        asked = prompts(8, 250)
        ids = []
        for i, prompt in enumerate(asked):
            prefill, decode = ("a", "b") if i % 2 else ("b", "a")
            ids.append(driver.submit(prompt, prefill=prefill, decode=decode, max_tokens=30))
        results = driver.wait(ids, 100.0)
        assert {r.finish for r in results} == {"length"}
        for name in "ab":
            assert driver.quiet(name).problems == ()


def test_without_prefix_cache_every_prompt_is_computed(tmp_path: Path, prepared_model) -> None:
    """What replies are compared with must not share the fault it is to find."""
    with Driver(
        tmp_path, prepared_model("random-4l256"), l1_blocks=100, prefix_cache=False
    ) as driver:
        driver.settle()
        prompt = prompts(1, 100)[0]
        before = driver.quiet("a").counters["prefill_tokens"]
        for _ in range(3):
            asked = driver.submit(prompt, prefill="a", decode="b", max_tokens=4)
            assert driver.wait([asked])[0].cached_tokens == 0
        after = driver.quiet("a").counters
        assert after["prefill_tokens"] - before == 300
        assert driver.quiet("b").problems == ()


def test_forks_that_arrive_together_compute_their_prefix_once(
    tmp_path: Path, prepared_model
) -> None:
    with Driver(tmp_path, prepared_model("random-4l256"), names=("a",), l1_blocks=300) as driver:
        stem = prompts(1, 640)[0]
        forks = [stem + tail for tail in prompts(6, 20, seed=8)]
        alone = [driver.run([p], tenant=f"t{i}", max_tokens=4)[0] for i, p in enumerate(forks)]
        before = driver.quiet("a").counters["prefill_tokens"]
        ids = [driver.submit(p, tenant="together", max_tokens=4) for p in forks]
        results = driver.wait(ids)
        assert [r.tokens for r in results] == alone
        computed = driver.quiet("a").counters["prefill_tokens"] - before
        assert computed == 640 + 6 * 20
        assert sorted(r.cached_tokens for r in results) == [0] + [640] * 5
        assert driver.quiet("a").problems == ()
