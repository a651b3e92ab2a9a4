"""Greedy output and KV bytes are the same on every path (the product's central promise)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.engine.driver import Driver
from tests.engine.paths import Paths, assert_same

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

MIXED_LENGTHS = [1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 200, 255, 256, 257, 300, 511, 700, 1024]


def random_prompts(lengths: list[int], vocab: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(vocab) for _ in range(length)] for length in lengths]


def check_all_paths(driver: Driver, prompts: list[list[int]]) -> None:
    driver.settle()
    paths = Paths(driver, prompts)
    results = [
        paths.one_node(),
        paths.disaggregated(),
        paths.shared_prefix(),
        paths.decoded_prefix(),
        paths.role_changes(),
    ]
    assert_same(results)
    distinct = {tuple(tokens) for tokens in results[0].tokens}
    assert len(distinct) > len(prompts) // 2, "the model says the same whatever it is asked"
    for name in driver.nodes:
        assert driver.quiet(name).problems == ()


@pytest.mark.parametrize("backend", ["shm", pytest.param("mooncake", marks=pytest.mark.netns)])
@pytest.mark.parametrize("model", ["random-6l384", "random-4l256-latent"])
def test_random_models(tmp_path: Path, prepared_model, model: str, backend: str) -> None:
    lengths = MIXED_LENGTHS if backend == "shm" else MIXED_LENGTHS[::3]
    prompts = random_prompts(lengths, 256, seed=len(model))
    block_tokens = 16 if model == "random-6l384" else 4
    with Driver(
        tmp_path,
        prepared_model(model),
        transfer=backend,
        block_tokens=block_tokens,
        l1_blocks=40_000 // block_tokens,
    ) as driver:
        check_all_paths(driver, prompts)


@pytest.mark.model
def test_smollm2(tmp_path: Path, prepared_model) -> None:
    """Real text over real weights: 8 prompts of up to 400 tokens."""
    from tokenizers import Tokenizer

    model = prepared_model("smollm2-135m")
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    texts = [
        "The capital of France is",
        "def fibonacci(n):\n",
        "Once upon a time there was a small",
        "Q: What is 17 + 25?\nA:",
        *(Path(__file__).parent / "prompts.txt").read_text().split("\n\n"),
    ]
    prompts = [tokenizer.encode(text).ids[:400] for text in texts if text.strip()]
    assert len(prompts) >= 8
    with Driver(tmp_path, model, l1_blocks=1024) as driver:
        check_all_paths(driver, prompts)


@pytest.mark.parametrize("fault", ["flip-received", "swap-received"])
def test_the_suite_notices_damaged_pages(tmp_path: Path, prepared_model, fault: str) -> None:
    """What wrong code would pass it? None that changes a byte of KV after it was verified."""
    prompts = random_prompts([64, 200, 90], 256, seed=3)
    entries = {"b": ["-m", "tests.engine.faulty_engine", "--fault", fault]}
    with Driver(
        tmp_path, prepared_model("random-4l256"), entries=entries, l1_blocks=512
    ) as driver:
        driver.settle()
        paths = Paths(driver, prompts)
        with pytest.raises(AssertionError, match=r"(tokens|KV) differ"):
            assert_same([paths.one_node(), paths.disaggregated()])
        problems = driver.inspect("b").problems
        assert any("does not match its checksum" in problem for problem in problems)
