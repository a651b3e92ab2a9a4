"""The official client of OpenAI and a language model that knows something."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import openai
import pytest

from tests.live.gateway.cluster import Cluster
from tests.live.shell import Shell

pytestmark = [pytest.mark.system, pytest.mark.model, pytest.mark.timeout(240)]

MODEL = "smollm2-135m"
KEY = "sk-paris-12345678"
FILE = f"""\
name: paris
nodes: 2
split: 1P1D
model: {MODEL}
l1_tokens: 4096
gateway: {{port: 0}}
api_keys: {{{KEY}: acme}}
"""
SYSTEM = "You are a helpful assistant. Answer in one short sentence, and say nothing else."
MESSAGES = [
    {"role": "system", "content": SYSTEM},
    {"role": "user", "content": "What is the capital of France?"},
]


@pytest.fixture(scope="module")
def paris(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    shell = Shell(tmp_path_factory.mktemp("paris"), FILE, "paris")
    try:
        assert shell.json("up paris.yaml")["failed"] == {}
        with closing(Cluster(shell, MODEL)) as cluster:
            yield cluster
    finally:
        shell.end()


@pytest.fixture
def official(paris: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{paris.url}/v1", api_key=KEY, max_retries=0, timeout=60
    ) as client:
        yield client


def test_it_knows_the_capital_of_france(official: openai.OpenAI, paris: Cluster) -> None:
    """Asked twice and streamed once: the same words, the prompt's KV only computed once."""
    answers = [
        official.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0
        )
        for _ in range(2)
    ]
    texts = [answer.choices[0].message.content for answer in answers]
    assert "Paris" in texts[0]
    assert texts[0] == texts[1]
    assert answers[0].choices[0].message.role == "assistant"
    assert answers[0].choices[0].finish_reason in ("stop", "length")
    assert answers[0].id != answers[1].id
    usages = [answer.usage for answer in answers]
    prompt_tokens = usages[0].prompt_tokens
    assert usages[0].prompt_tokens_details.cached_tokens == 0
    whole_blocks = (prompt_tokens - 1) // 16 * 16
    assert usages[1].prompt_tokens_details.cached_tokens == whole_blocks > 0
    for usage in usages:
        assert 1 <= usage.completion_tokens <= 24
        assert usage.total_tokens == prompt_tokens + usage.completion_tokens

    with official.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_completion_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == texts[0]
    assert len([piece for piece in pieces if piece]) > 3, "piece by piece"
    finishes = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert finishes == [None] * (len(finishes) - 1) + [answers[0].choices[0].finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage == usages[1]
    paris.comes_to_rest()


def test_log_probabilities_say_what_was_chosen(official: openai.OpenAI) -> None:
    answer = official.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=4,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    scores = answer.choices[0].logprobs.content
    assert "".join(score.token for score in scores) == answer.choices[0].message.content
    for score in scores:
        alternatives = [alternative.logprob for alternative in score.top_logprobs]
        assert score.token == score.top_logprobs[0].token, "greedy takes the likeliest"
        assert alternatives == sorted(alternatives, reverse=True)
        assert len(alternatives) == 3


def test_models_are_listed(official: openai.OpenAI) -> None:
    assert [model.id for model in official.models.list()] == [MODEL]
    assert official.models.retrieve(MODEL).owned_by == "evctl"


def test_errors_are_the_clients_own_classes(official: openai.OpenAI, paris: Cluster) -> None:
    ask = official.chat.completions.create
    with pytest.raises(openai.NotFoundError) as missing:
        ask(model="gpt-9", messages=MESSAGES)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        official.models.retrieve("gpt-9")
    with pytest.raises(openai.BadRequestError) as negative:
        ask(model=MODEL, messages=MESSAGES, max_tokens=-1)
    assert (negative.value.code, negative.value.param) == ("invalid_value", "max_tokens")
    with pytest.raises(openai.BadRequestError) as long:
        ask(model=MODEL, messages=[{"role": "user", "content": "word " * 5_000}], stream=True)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.PermissionDeniedError) as forced:
        ask(model=MODEL, messages=MESSAGES, extra_body={"evctl_forced_token_ids": [1]})
    assert forced.value.code == "replay_not_allowed"
    for stream in (False, True):
        wrong = official.with_options(api_key="sk-wrong-12345678")
        with pytest.raises(openai.AuthenticationError) as refused:
            wrong.chat.completions.create(model=MODEL, messages=MESSAGES, stream=stream)
        assert refused.value.code == "invalid_api_key"
    paris.comes_to_rest()


def test_leaving_a_stream_frees_it(official: openai.OpenAI, paris: Cluster) -> None:
    stream = official.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=2_000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    assert next(iter(stream)).choices
    before = paris.ended()
    stream.close()
    paris.comes_to_rest()
    assert paris.ended() == {**before, "cancelled": before["cancelled"] + 1}
