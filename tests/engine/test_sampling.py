"""Sampling, stop conditions and logprobs, through a running engine."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from tokenizers import Tokenizer

from evctl.core.sampling import SamplingParams
from tests.engine.driver import Driver

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

PROMPT = [72, 101, 108, 108, 111, 32, 119, 111, 114, 108, 100]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, prepared_model) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("sampling")
    with Driver(folder, prepared_model("random-4l256"), l1_blocks=400) as running:
        running.settle()
        yield running


def test_a_seed_fixes_the_output_wherever_it_runs(driver: Driver) -> None:
    options = {"temperature": 1.0, "max_tokens": 40}
    here = driver.run([PROMPT], seed=7, prefill="a", **options)
    assert here == driver.run([PROMPT], seed=7, prefill="a", decode="b", **options)
    assert here == driver.run([PROMPT], seed=7, prefill="b", tenant="o", **options)
    assert here != driver.run([PROMPT], seed=8, **options)
    assert driver.run([PROMPT], **options) != driver.run([PROMPT], **options)


def test_draws_follow_the_models_distribution(driver: Driver) -> None:
    """600 first tokens at temperature 0.8 against the softmax of the reported logprobs."""
    asked = driver.submit(PROMPT, max_tokens=1, logprobs=20)
    top = dict(driver.wait([asked])[0].logprobs[0].top)
    weights = {token: math.exp(value / 0.8) for token, value in top.items()}
    share = {token: weight / sum(weights.values()) for token, weight in weights.items()}
    drawn = driver.run([PROMPT] * 600, max_tokens=1, temperature=0.8)
    counts = Counter(tokens[0] for tokens in drawn)
    likeliest = max(share, key=lambda token: share[token])
    # the 20 reported tokens hold nearly all of the mass of this model
    assert abs(counts[likeliest] / 600 - share[likeliest]) < 0.1
    assert len(counts) > 3


def test_top_p_cuts_the_tail(driver: Driver) -> None:
    asked = driver.submit(PROMPT, max_tokens=1, logprobs=20)
    ranked = driver.wait([asked])[0].logprobs[0].top
    mass, allowed = 0.0, set()
    for token, value in ranked:
        allowed.add(token)
        mass += math.exp(value)
        if mass >= 0.6:
            break
    drawn = driver.run([PROMPT] * 200, max_tokens=1, temperature=1.0, top_p=0.6)
    assert {tokens[0] for tokens in drawn} <= allowed
    greedy = driver.run([PROMPT], max_tokens=1)[0][0]
    tiny = driver.run([PROMPT] * 20, max_tokens=1, temperature=1.0, top_p=1e-6)
    assert {tokens[0] for tokens in tiny} == {greedy}


def test_logprobs_are_those_of_the_emitted_tokens(driver: Driver) -> None:
    asked = driver.submit(PROMPT, prefill="a", decode="b", max_tokens=10, logprobs=5)
    result = driver.wait([asked])[0]
    assert [entry.token_id for entry in result.logprobs] == result.tokens
    for entry in result.logprobs:
        assert len(entry.top) == 5
        assert entry.logprob == entry.top[0][1], "greedy takes the likeliest"
        assert entry.logprob <= 0.0
        values = [value for _, value in entry.top]
        assert values == sorted(values, reverse=True)
    none = driver.wait([driver.submit(PROMPT, max_tokens=3)])[0]
    assert none.logprobs == []


def test_stop_strings_end_the_output_at_their_last_token(driver: Driver, prepared_model) -> None:
    tokenizer = Tokenizer.from_file(str(prepared_model("random-4l256") / "tokenizer.json"))
    free = driver.run([PROMPT], max_tokens=40)[0]
    for cut in range(6, 30):
        text = tokenizer.decode(free[cut - 2 : cut], skip_special_tokens=False)
        before = tokenizer.decode(free[: cut - 1], skip_special_tokens=False)
        if len(text) > 1 and "\ufffd" not in text and text not in before:
            break
    else:
        raise AssertionError("this output has no usable stop string")
    for decode in "ab":
        asked = driver.submit(PROMPT, prefill="a", decode=decode, max_tokens=40, stop=(text,))
        result = driver.wait([asked])[0]
        assert result.finish == "stop"
        assert result.tokens == free[:cut]


def test_stop_tokens_and_end_of_text(driver: Driver) -> None:
    free = driver.run([PROMPT], max_tokens=20)[0]
    result = driver.wait([driver.submit(PROMPT, max_tokens=20, stop_token_ids=(free[7],))])[0]
    assert result.finish == "stop"
    assert result.tokens == free[: free.index(free[7]) + 1]
    end = driver.wait([driver.submit(PROMPT, max_tokens=5, forced=(1, 256, 3), ignore_eos=False)])[
        0
    ]
    assert end.finish == "length", "a forced end token does not end a replay"


def test_max_tokens_and_forced_output(driver: Driver) -> None:
    result = driver.wait([driver.submit(PROMPT, max_tokens=1)])[0]
    assert (len(result.tokens), result.finish) == (1, "length")
    forced = tuple(random.Random(2).randrange(256) for _ in range(30))
    for decode in "ab":
        asked = driver.submit(PROMPT, decode=decode, max_tokens=30, forced=forced)
        assert tuple(driver.wait([asked])[0].tokens) == forced


@pytest.mark.parametrize(
    ("prompt", "options", "why"),
    [
        ([], {}, "empty"),
        ([1] * 16_384, {"max_tokens": 1}, "context"),
        ([1, 320], {}, "token id"),
        ([1], {"max_tokens": 1, "forced": (320,)}, "forced"),
        ([1], {"max_tokens": 10_000}, "blocks"),
    ],
)
def test_what_cannot_run_is_refused_and_leaves_nothing(
    driver: Driver, prompt: list[int], options: dict, why: str
) -> None:
    asked = driver.submit(prompt, **options)
    result = driver.wait([asked], 10.0)[0]
    assert result.finish == "refused"
    assert why in result.error
    assert driver.quiet("a").load.l1_used_blocks == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": 0},
        {"temperature": -1.0},
        {"top_p": 0.0},
        {"logprobs": 21},
        {"stop": ("",)},
        {"seed": 2**63},
    ],
)
def test_sampling_out_of_range_is_an_error(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        SamplingParams(**{"max_tokens": 4, **bad})
