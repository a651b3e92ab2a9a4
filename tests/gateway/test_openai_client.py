"""The official client of OpenAI, against our gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest

from evctl.control.frontdoor import InferenceRequest, OverloadedError
from evctl.core.sampling import FinishReason
from evctl.wire.messages import Tokens
from tests.gateway.front_door import FakeFrontDoor, says, tokens

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
async def official(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as client:
        yield client


async def test_chat(official: openai.AsyncOpenAI, front_door: FakeFrontDoor) -> None:
    front_door.script = says("Paris.", cached_tokens=32)
    answer = await official.chat.completions.create(
        model="bytes", messages=MESSAGES, logprobs=True, top_logprobs=3, max_completion_tokens=50
    )
    assert answer.choices[0].message.content == "Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens_details.cached_tokens == 32
    scores = answer.choices[0].logprobs.content
    assert [score.token for score in scores] == list("Paris.")
    assert len(scores[0].top_logprobs) == 3
    assert answer.id == front_door.requests[0].request_id


async def test_streamed_chat(official: openai.AsyncOpenAI, front_door: FakeFrontDoor) -> None:
    front_door.script = says("Paris, 漢字.")
    stream = await official.chat.completions.create(
        model="bytes",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={"X-Branch-Id": "b1"},
        extra_body={"branch": {"session": "s1"}},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "Paris, 漢字."
    assert chunks[-1].usage.completion_tokens == len("Paris, 漢字.".encode()) + 1
    assert chunks[-2].choices[0].finish_reason == "stop"
    branch = front_door.requests[0].branch
    assert (branch.branch, branch.session) == ("b1", "s1")


async def test_completion_with_logprobs(
    official: openai.AsyncOpenAI, front_door: FakeFrontDoor
) -> None:
    front_door.script = says("abc", eos=False, finish=FinishReason.LENGTH)
    answer = await official.completions.create(
        model="bytes", prompt=[1, 2, 3], max_tokens=3, logprobs=2
    )
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("abc", "length")
    assert choice.logprobs.tokens == ["a", "b", "c"]
    assert choice.logprobs.text_offset == [0, 1, 2]
    assert choice.logprobs.top_logprobs[0] == {"a": -0.5, "b": -1.5}
    stream = await official.completions.create(
        model="bytes", prompt="x", stream=True, logprobs=1, stop="c"
    )
    parts = [chunk.choices[0] async for chunk in stream]
    assert "".join(part.text for part in parts) == "ab"
    assert [token for part in parts for token in part.logprobs.tokens] == ["a", "b"]


async def test_models(official: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in await official.models.list()] == ["bytes"]
    assert (await official.models.retrieve("bytes")).id == "bytes"
    with pytest.raises(openai.NotFoundError):
        await official.models.retrieve("other")


async def test_errors(official: openai.AsyncOpenAI, front_door: FakeFrontDoor) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await official.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as negative:
        await official.chat.completions.create(model="bytes", messages=MESSAGES, max_tokens=-1)
    assert negative.value.param == "max_tokens"

    async def overloaded(request: InferenceRequest) -> AsyncIterator[Tokens]:
        raise OverloadedError("full", 3)
        yield

    front_door.script = overloaded
    with pytest.raises(openai.RateLimitError) as busy:
        await official.chat.completions.create(model="bytes", messages=MESSAGES)
    assert busy.value.response.headers["retry-after"] == "3"


async def test_an_error_in_a_stream_is_raised(
    official: openai.AsyncOpenAI, front_door: FakeFrontDoor
) -> None:
    async def fails(request: InferenceRequest) -> AsyncIterator[Tokens]:
        yield tokens(request, 0, [97])
        yield Tokens(request.request_id, 1, (), finish=FinishReason.ERROR, error="node n2 is gone")

    front_door.script = fails
    stream = await official.chat.completions.create(model="bytes", messages=MESSAGES, stream=True)
    assert (await anext(stream)).choices[0].delta.content == "a"
    with pytest.raises(openai.APIError, match="node n2 is gone"):
        async for _ in stream:
            pass
