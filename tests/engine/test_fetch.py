"""KV that lies in a peer's host memory: fetched while the request queues, exact, and once."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from evctl.core.events import FetchEnded
from evctl.core.kv import FetchPiece
from tests.engine.driver import Driver

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

BLOCK = 16


def prompts(count: int, tokens: int, seed: int = 21) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(256) for _ in range(tokens)] for _ in range(count)]


def test_a_prompt_that_a_peer_has_computed_is_fetched_not_computed(
    tmp_path: Path, prepared_model
) -> None:
    with Driver(tmp_path, prepared_model("random-4l256"), l1_blocks=200, l2_blocks=400) as driver:
        driver.settle()
        asked = prompts(3, 400)
        expected = driver.run(asked, prefill="a", max_tokens=12)
        for name in "ab":
            driver.quiet(name)
        before = driver.inspect("b").counters.get("prefill_tokens", 0)
        pieces = [FetchPiece(0, 25, ("a",))]
        ids = [driver.submit(p, prefill="b", fetch=pieces, max_tokens=12) for p in asked]
        results = driver.wait(ids)
        assert [r.tokens for r in results] == expected
        assert [r.cached_tokens for r in results] == [24 * BLOCK] * 3
        for request_id in ids:
            (fact,) = driver.facts_of(request_id, FetchEnded)
            assert (fact.l1_blocks, fact.own_blocks, fact.missed_blocks) == (0, 0, 0)
            assert [(s.node, s.blocks) for s in fact.peers] == [("a", 24)]
        after = driver.quiet("b")
        assert after.counters["prefill_tokens"] - before == 3 * (400 - 24 * BLOCK)
        assert after.counters["fetch_peer_blocks"] == 3 * 24
        for name in "ab":
            assert driver.quiet(name).problems == ()
            assert driver.quiet(name).counters["l2_pins"] == 0


def test_what_decode_generated_is_fetched_from_its_node(tmp_path: Path, prepared_model) -> None:
    """Prompt from own L1, generated blocks from the decode node's L2: it wrote those alone."""
    with Driver(tmp_path, prepared_model("random-4l256"), l1_blocks=200, l2_blocks=400) as driver:
        driver.settle()
        prompt = prompts(1, 100)[0]
        first = driver.submit(prompt, prefill="a", decode="b", max_tokens=80)
        output = driver.wait([first])[0].tokens
        driver.quiet("b")
        assert (
            driver.inspect("b").counters["l2_blocks_written"] == (180 - 1) // BLOCK - 100 // BLOCK
        )
        longer = prompt + output + [7, 8, 9]
        plain = driver.run([longer], prefill="a", tenant="other", max_tokens=12)[0]
        piece = FetchPiece(100 // BLOCK, 179 // BLOCK, ("b",))
        second = driver.submit(longer, prefill="a", decode="b", fetch=[piece], max_tokens=12)
        result = driver.wait([second])[0]
        assert result.tokens == plain
        assert result.cached_tokens == 179 // BLOCK * BLOCK
        (fact,) = driver.facts_of(second, FetchEnded)
        assert [(s.node, s.blocks) for s in fact.peers] == [("b", 5)]
        for name in "ab":
            assert driver.quiet(name).problems == ()
