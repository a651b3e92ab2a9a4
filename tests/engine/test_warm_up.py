"""In warm-up an engine runs prefill and decode in turns, and neither starves."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from evctl.core.events import IterationSample
from tests.engine.driver import Driver

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

LONG = 1_500


def load(driver: Driver, rng: random.Random) -> tuple[list[IterationSample], list[list[int]]]:
    """Decodes that go on while long prompts come: iterations, and everybody's tokens."""
    prompts = [[rng.randrange(256) for _ in range(40 + i)] for i in range(4)]
    begun = len(driver.facts)
    decoding = [driver.submit(prompt, max_tokens=60) for prompt in prompts]
    driver.until(
        lambda: all(len(driver.results[r].tokens) > 4 for r in decoding), 60.0, "decodes to run"
    )
    prefilling = [
        driver.submit([rng.randrange(256) for _ in range(LONG)], max_tokens=4) for _ in range(2)
    ]
    tokens = [result.tokens for result in driver.whole([*decoding, *prefilling])]
    driver.quiet("a")
    return [f for _, f in driver.facts[begun:] if isinstance(f, IterationSample)], tokens


def kinds(samples: list[IterationSample]) -> str:
    """P, D or M (both) for each iteration."""
    return "".join(
        "M" if s.prefill_tokens and s.decode_requests else "P" if s.prefill_tokens else "D"
        for s in samples
    )


def test_phases_take_turns_in_warm_up_only(tmp_path: Path, prepared_model) -> None:
    options: dict[str, Any] = {
        "l1_blocks": 400,
        "prefix_cache": False,
        "limits": {"chunk_tokens": 128},
    }
    with Driver(tmp_path, prepared_model("random-4l256"), ("a",), **options) as driver:
        together, expected = load(driver, random.Random(1))
        assert "M" in kinds(together)
        driver.warm_up("a", on=True)
        apart, found = load(driver, random.Random(1))
        seen = kinds(apart)
        assert "M" not in seen
        # from where the long prompts come, while both have work: neither runs twice in a row
        first, last = seen.index("P", seen.index("DDD")), seen.rindex("P")
        runs = [len(list(group)) for _, group in itertools.groupby(seen[first : last + 1])]
        assert max(runs) == 1
        assert last - first >= 2 * (LONG // 128) - 2
        assert found == expected  # the same tokens, of course
        driver.warm_up("a", on=False)
        assert "M" in kinds(load(driver, random.Random(2))[0])


def test_decodes_report_the_context_they_attend_to(tmp_path: Path, prepared_model) -> None:
    """Position p attends to p + 1 tokens: 30 of the prompt and the first token make 31."""
    with Driver(tmp_path, prepared_model("random-4l256"), ("a",), block_tokens=16) as driver:
        driver.run([list(range(30))], max_tokens=4)
        driver.quiet("a")
        samples = [f for _, f in driver.facts if isinstance(f, IterationSample)]
        assert [s.attention_pairs for s in samples] == [30 * 31 / 2, 31.0, 32.0, 33.0]
        assert [s.decode_requests for s in samples] == [0, 1, 1, 1]
        assert all(s.busy_s > 0.0 for s in samples)


def test_an_engine_says_what_its_times_depend_on(tmp_path: Path, prepared_model) -> None:
    with Driver(tmp_path, prepared_model("random-4l256"), ("a",), block_tokens=16) as driver:
        hello = driver.nodes["a"].known()
        assert "1 threads" in hello.hardware
        assert "evengine" in hello.engine
        assert "torch" in hello.engine


def test_busy_time_of_ranks_is_what_one_of_them_works(tmp_path: Path, prepared_model) -> None:
    """Two ranks of one node share attention and repeat the rest: the first one's CPU time is
    neither the sum of both nor its time of waiting for the other."""
    prompts = [[random.Random(seed).randrange(256) for _ in range(512)] for seed in range(4)]
    busy_s = {}
    for ranks in (1, 2):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        options: dict[str, Any] = {"block_tokens": 16, "ranks": ranks, "prefix_cache": False}
        with Driver(folder, prepared_model("random-4l256"), ("a",), **options) as driver:
            driver.run(prompts[:1], max_tokens=1)
            begun = len(driver.facts)
            for prompt in prompts:
                driver.run([prompt], max_tokens=1)
            driver.quiet("a")
            samples = [f for _, f in driver.facts[begun:] if isinstance(f, IterationSample)]
            busy_s[ranks] = sum(s.busy_s for s in samples)
    assert 0.4 * busy_s[1] < busy_s[2] < 1.5 * busy_s[1]
