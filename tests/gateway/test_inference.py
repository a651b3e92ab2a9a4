"""Chat and text completions over HTTP, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from evctl.core.blocks import KvNamespace, block_keys, root_key
from tests.gateway.conftest import chat, completion, served
from tests.gateway.front_door import CONTEXT_TOKENS, FakeFrontDoor, says

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


async def post(client: httpx.AsyncClient, path: str, body: object) -> dict[str, Any]:
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream; "[DONE]" stays text."""
    events: list[Any] = []
    async with client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line:
                assert line.startswith("data: ")
                data = line.removeprefix("data: ")
                events.append(data if data == "[DONE]" else json.loads(data))
    return events


def chunks(events: list[Any]) -> list[Any]:
    return [event["choices"][0] for event in events[:-1] if event["choices"]]


async def test_a_chat_reply(client: httpx.AsyncClient, front_door: FakeFrontDoor) -> None:
    front_door.script = says("Paris.", cached_tokens=16)
    response = await client.post(CHAT, json=chat())
    answer = response.json()
    assert answer["object"] == "chat.completion"
    assert answer["id"] == response.headers["x-request-id"] == front_door.requests[0].request_id
    assert answer["model"] == "bytes"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Paris.", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)
    n = len("user\nWhat is the capital of France?\nassistant\n") + 3
    assert answer["usage"] == {
        "prompt_tokens": n,
        "completion_tokens": 7,
        "total_tokens": n + 7,
        "prompt_tokens_details": {"cached_tokens": 16},
    }


async def test_what_reaches_the_front_door(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    ids = list(range(40))
    body = completion([ids], seed=7, top_p=0.5, max_tokens=9, stop="x", ignore_eos=True)
    await post(client, TEXT, body)
    (request,) = front_door.requests
    root = root_key(bytes(32), KvNamespace("default", "w", numerics="exact/1"))
    assert request.prompt == tuple(ids)
    assert request.root_key == root
    assert request.block_keys == b"".join(block_keys(bytes(32), root, ids, 16))
    assert len(request.block_keys) == 32
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (9, 1.0, 0.5)
    assert (sampling.seed, sampling.stop, sampling.ignore_eos) == (7, ("x",), True)
    assert sampling.logprobs is None
    assert request.branch is None


@pytest.mark.parametrize("prompt", ["abc", ["abc"], [97, 98, 99], [[97, 98, 99]]])
async def test_forms_of_a_prompt(
    client: httpx.AsyncClient, front_door: FakeFrontDoor, prompt: object
) -> None:
    answer = await post(client, TEXT, completion(prompt))
    assert front_door.requests[0].prompt == (97, 98, 99)
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"] == "Paris."


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, 1_024),
        ({"max_tokens": 5}, 5),
        ({"max_tokens": CONTEXT_TOKENS}, CONTEXT_TOKENS - 500),
        ({"prompt": [1] * (CONTEXT_TOKENS - 100)}, 100),
        ({"prompt": [1] * (CONTEXT_TOKENS - 1)}, 1),
    ],
)
async def test_the_output_is_limited_to_what_fits(
    client: httpx.AsyncClient, front_door: FakeFrontDoor, fields: dict[str, Any], max_tokens: int
) -> None:
    await post(client, TEXT, completion([1] * 500) | fields)
    assert front_door.requests[0].sampling.max_tokens == max_tokens


async def test_chat_takes_the_newer_name_of_the_limit(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    answer = await post(client, CHAT, chat(max_tokens=1, max_completion_tokens=3))
    assert answer["choices"][0]["message"]["content"] == "Par"
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_message_forms(client: httpx.AsyncClient, front_door: FakeFrontDoor) -> None:
    messages = [
        {"role": "developer", "content": "be brief", "unknown": 1},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [], "refusal": None},
        {"role": "tool", "content": "done", "tool_call_id": "1"},
    ]
    await post(client, CHAT, {"model": "bytes", "messages": messages, "unknown_field": {"a": 1}})
    prompt = bytes(token for token in front_door.requests[0].prompt if token < 256)
    assert prompt == b"system\nbe brief\nuser\na\nb\nassistant\n\ntool\ndone\nassistant\n"


@pytest.mark.parametrize("step", [1, 2, 5])
async def test_a_streamed_chat(
    client: httpx.AsyncClient, front_door: FakeFrontDoor, step: int
) -> None:
    front_door.script = says("Köln & 漢字 👩", step=step)
    events = await stream(client, CHAT, chat(stream_options={"include_usage": True}))
    assert events[-1] == "[DONE]"
    usage = events[-2]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == len("Köln & 漢字 👩".encode()) + 1
    assert all(event["usage"] is None for event in events[:-2])
    choices = chunks(events)
    assert choices[0]["delta"]["role"] == "assistant"
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    assert text == "Köln & 漢字 👩"
    assert not any("\ufffd" in choice["delta"].get("content", "") for choice in choices)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [
        "stop"
    ]
    assert len({event["id"] for event in events[:-1]}) == 1


async def test_a_streamed_completion_without_usage(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    events = await stream(client, TEXT, completion())
    assert all("usage" not in event for event in events[:-1])
    assert "".join(choice["text"] for choice in chunks(events)) == "Paris."


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("step", [1, 3, 20])
async def test_a_stop_string_ends_the_reply_and_the_request(
    client: httpx.AsyncClient, front_door: FakeFrontDoor, step: int, streamed: bool
) -> None:
    front_door.script = says("one STOP two STO", step=step)
    body = completion(stop=["STOP", "never"], logprobs=1)
    if streamed:
        choices = chunks(await stream(client, TEXT, body))
    else:
        choices = (await post(client, TEXT, body))["choices"]
    assert "".join(choice["text"] for choice in choices) == "one "
    assert choices[-1]["finish_reason"] == "stop"
    names = [name for choice in choices for name in choice["logprobs"]["tokens"]]
    assert names == list("one ")
    assert not front_door.running


async def test_text_held_for_a_stop_string_comes_out_at_the_end(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    front_door.script = says("one STO")
    body = completion(stop="STOP", logprobs=0)
    choices = chunks(await stream(client, TEXT, body))
    assert "".join(choice["text"] for choice in choices) == "one STO"
    offsets = [offset for choice in choices for offset in choice["logprobs"]["text_offset"]]
    assert offsets == list(range(7))


async def test_chat_logprobs(client: httpx.AsyncClient, front_door: FakeFrontDoor) -> None:
    front_door.script = says("é")
    body = chat(logprobs=True, top_logprobs=2)
    whole = (await post(client, CHAT, body))["choices"][0]["logprobs"]
    assert whole["refusal"] is None
    assert [entry["token"] for entry in whole["content"]] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert [entry["bytes"] for entry in whole["content"]] == [[0xC3], [0xA9]]
    first = whole["content"][0]
    assert first["logprob"] == -0.5
    assert [top["logprob"] for top in first["top_logprobs"]] == [-0.5, -1.5]
    streamed = chunks(await stream(client, CHAT, body))
    assert [e for c in streamed for e in c["logprobs"]["content"]] == whole["content"]


async def test_completion_logprobs(client: httpx.AsyncClient, front_door: FakeFrontDoor) -> None:
    front_door.script = says("héy")
    answer = await post(client, TEXT, completion(logprobs=2))
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["h", "bytes:\\xc3", "bytes:\\xa9", "y"]
    assert logprobs["text_offset"] == [0, 1, 1, 2]
    assert logprobs["token_logprobs"] == [-0.5] * 4
    assert logprobs["top_logprobs"][0] == {"h": -0.5, "i": -1.5}


async def test_token_ids_on_request(client: httpx.AsyncClient, front_door: FakeFrontDoor) -> None:
    front_door.script = says(b"\xff\xc3")
    body = completion([5, 6], return_token_ids=True)
    answer = (await post(client, TEXT, body))["choices"][0]
    assert answer["prompt_token_ids"] == [5, 6]
    assert answer["token_ids"] == [0xFF, 0xC3, 258]
    assert answer["text"] == "\ufffd"
    streamed = chunks(await stream(client, TEXT, body))
    assert [token for c in streamed for token in c["token_ids"]] == [0xFF, 0xC3, 258]
    assert streamed[0]["prompt_token_ids"] == [5, 6]
    assert not any("prompt_token_ids" in c for c in streamed[1:])


async def test_forced_output_where_replay_is_allowed(front_door: FakeFrontDoor) -> None:
    front_door.allow_replay = True
    async with served(front_door) as url, httpx.AsyncClient(base_url=url) as client:
        body = completion([1], evctl_forced_token_ids=[104, 105], max_tokens=2)
        answer = await post(client, TEXT, body)
    assert answer["choices"][0]["text"] == "hi"
    assert front_door.requests[0].sampling.forced == (104, 105)
