"""Whatever comes in, the answer is the right 4xx in OpenAI's form, and the gateway lives."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from evctl.gateway import schema
from evctl.gateway.schema import ChatBody, CompletionBody
from tests.gateway.conftest import chat, completion, served
from tests.gateway.front_door import CONTEXT_TOKENS, FakeFrontDoor

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def assert_error(response: httpx.Response, status: int, **fields: object) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert {name: error[name] for name in fields} == fields
    return error


MALFORMED = [
    (b"", "JSON"),
    (b"{", "JSON"),
    (b'{"model": "bytes", "messages": [}', "JSON"),
    (b"null", "object"),
    (b"[]", "object"),
    (b"[" * 100_000, "object"),
    (b'{"a":' * 50_000, "JSON"),
    (b'{"model": "bytes", "prompt": "\xff\xfe"}', "UTF-8"),
    (b'{"model": "bytes", "prompt": "a", "unknown": "\xc3("}', "UTF-8"),
    (b'{"model": "bytes", "prompt": "\\ud800"}', "JSON"),
    (b'{"model": "bytes", "prompt": "a", "temperature": NaN}', "JSON"),
]


async def test_malformed_bodies(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for path, (raw, message) in itertools.product((CHAT, TEXT), MALFORMED):
        with subtests.test(path=path, raw=raw[:60]):
            response = await client.post(path, content=raw)
            error = assert_error(response, 400, type="invalid_request_error")
            assert message in error["message"]


def nested(levels: int) -> list[Any]:
    """A list of one object that has that many levels."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return [value]


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": CONTEXT_TOKENS + 1}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 1e300}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"seed": 2**63}, "seed"),
    ({"n": 2}, "n"),
    ({"n": 0}, "n"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": "x" * 10_000}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"frequency_penalty": 0.5}, "frequency_penalty"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
    ({"response_format": "text"}, "response_format"),
    ({"store": True}, "store"),
    ({"top_k": 40}, "top_k"),
    ({"repetition_penalty": 1.1}, "repetition_penalty"),
    ({"stop_token_ids": [1]}, "stop_token_ids"),
    ({"guided_json": {}}, "guided_json"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"model": 5}, "model"),
    ({"branch": {"id": "b" * 10_000}}, "branch.id"),
    ({"branch": {"id": ""}}, "branch.id"),
    ({"branch": {"id": "b", "op": "explode"}}, "branch.op"),
    ({"branch": {"id": "b", "kind": "king"}}, "branch.kind"),
    ({"branch": {"id": "b", "version": -1}}, "branch.version"),
    ({"branch": {"id": "b", "expect_resume": -1}}, "branch.expect_resume"),
    ({"branch": {"id": "b", "final": "yes"}}, "branch.final"),
    ({"branch": {"id": "b", "op": "fork"}}, "x-branch-parent"),
    ({"branch": {"id": "b", "parent": "b"}}, "branch.parent"),
    ({"branch": {"session": "s"}}, "x-branch-id"),
    ({"evctl_forced_token_ids": ["a"]}, "evctl_forced_token_ids[0]"),
]
COMPLETION_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": True}, "echo"),
    ({"suffix": "s"}, "suffix"),
    ({"best_of": 3}, "best_of"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": [[1], [2]]}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [320]}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": None}, "prompt"),
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
HARMLESS: list[dict[str, Any]] = [
    {
        "response_format": {"type": "text"},
        "store": False,
        "top_k": -1,
        "min_p": 0,
        "min_tokens": 0,
    },
    {"repetition_penalty": 1.0, "stop_token_ids": [], "modalities": ["text"], "functions": []},
    {"tools": [], "tool_choice": "auto"},
    {"tools": TOOLS, "tool_choice": "none", "parallel_tool_calls": False},
    {"user": "u", "safety_identifier": "s", "metadata": {"a": "b"}, "service_tier": "auto"},
    {"prediction": {"type": "content", "content": "x"}, "prompt_cache_key": "k"},
    {"stream_options": {"include_obfuscation": True}},
]
CHAT_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"tools": TOOLS}, "tools"),
    ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"messages": [{"role": "assistant", "tool_calls": TOOLS}]}, "messages[0].tool_calls"),
    (
        {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]},
        "messages[0].function_call",
    ),
    ({"tools": nested(65)}, "tools"),
    ({"tools": nested(900)}, "tools"),
    (
        {"messages": [{"role": "assistant", "tool_calls": nested(500)}]},
        "messages[0].tool_calls",
    ),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content",
    ),
]


async def test_bad_fields(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    cases = [(TEXT, completion(), case) for case in [*BAD_FIELDS, *COMPLETION_FIELDS]]
    cases += [(CHAT, chat(), case) for case in [*BAD_FIELDS, *CHAT_FIELDS]]
    for path, good, (fields, param) in cases:
        with subtests.test(path=path, fields=str(fields)[:80]):
            assert_error(await client.post(path, json=good | fields), 400, param=param)


async def test_fields_without_effect_change_no_prompt(
    client: httpx.AsyncClient, front_door: FakeFrontDoor, subtests: pytest.Subtests
) -> None:
    assert (await client.post(CHAT, json=chat())).status_code == 200
    for fields in HARMLESS:
        with subtests.test(fields=str(fields)):
            assert (await client.post(CHAT, json=chat() | fields)).status_code == 200
            assert front_door.requests[-1].prompt == front_door.requests[0].prompt


async def test_every_field_that_is_known_is_told(subtests: pytest.Subtests) -> None:
    """The table in the module says what becomes of each."""
    for kind in (ChatBody, CompletionBody):
        for field in kind.__struct_fields__:
            if field.startswith("evctl_") or field in ("ignore_eos", "return_token_ids", "branch"):
                continue  # ours, told in app.py
            with subtests.test(field=field):
                assert field in (schema.__doc__ or "")


async def test_several_prompts_are_said_to_be_too_many(client: httpx.AsyncClient) -> None:
    error = assert_error(await client.post(TEXT, json=completion(["a", "b", "c"])), 400)
    assert "3 prompts in one request" in error["message"]


@pytest.mark.parametrize("missing", ["model", "messages"])
async def test_missing_fields(client: httpx.AsyncClient, missing: str) -> None:
    body = chat()
    del body[missing]
    assert_error(await client.post(CHAT, json=body), 400, param=missing)


async def test_unknown_model(client: httpx.AsyncClient) -> None:
    for path, body in ((CHAT, chat()), (TEXT, completion())):
        response = await client.post(path, json=body | {"model": "gpt-9" * 1_000})
        error = assert_error(response, 404, param="model", code="model_not_found")
        assert len(error["message"]) < 200
    assert_error(await client.get("/v1/models/gpt-9"), 404, code="model_not_found")


@pytest.mark.parametrize(
    ("path", "body", "shown"),
    [
        (TEXT, completion([1] * CONTEXT_TOKENS), f"{CONTEXT_TOKENS} tokens"),
        (TEXT, completion("a" * 3_000), "3000 tokens"),
        (TEXT, completion("a" * 1_000_000), "at least"),
        (CHAT, chat("a" * 3_000), "tokens"),
        (CHAT, chat("a" * 1_000_000), "at least"),
    ],
)
async def test_prompts_over_the_context(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], shown: str
) -> None:
    error = assert_error(await client.post(path, json=body), 400, code="context_length_exceeded")
    assert shown in error["message"]
    assert str(CONTEXT_TOKENS) in error["message"]


async def test_ten_megabytes_are_refused_with_and_without_a_length(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    body = json.dumps(chat("a" * 10_000_000)).encode()

    async def in_chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1 << 16):
            yield body[start : start + (1 << 16)]

    for content in (body, in_chunks()):
        response = await client.post(CHAT, content=content)
        assert_error(response, 413, code="request_too_large")
    assert_error(await client.post("/v1/branches/b/end", content=body), 413)
    assert (await client.post(CHAT, json=chat())).status_code == 200


async def test_a_declared_length_is_refused_before_anything_is_read(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{"
    )
    assert b" 413 " in await asyncio.wait_for(reader.readline(), 2)
    writer.close()


async def test_a_hundred_thousand_messages(client: httpx.AsyncClient) -> None:
    messages = [{"role": "user", "content": "hi"}] * 100_000
    response = await client.post(CHAT, json={"model": "bytes", "messages": messages})
    error = assert_error(response, 400, param="messages", code="too_many_messages")
    assert "100000" in error["message"]


BAD_HEADERS: list[tuple[dict[str, Any], str]] = [
    ({"X-Branch-Id": "b" * 10_000}, "x-branch-id"),
    ({"X-Branch-Id": b"\xff"}, "x-branch-id"),
    ({"X-Branch-Id": "b", "X-Branch-Version": "1e3"}, "x-branch-version"),
    ({"X-Branch-Id": "b", "X-Branch-Version": "9" * 5_000}, "x-branch-version"),
    ({"X-Branch-Id": "b", "X-Branch-Final": "maybe"}, "x-branch-final"),
    ({"X-Branch-Id": "b", "X-Branch-Expect-Resume": "nan"}, "x-branch-expect-resume"),
    ({"X-Branch-Id": "b", "X-Branch-Op": "x"}, "x-branch-op"),
    ({"X-Branch-Id": "b", "X-Branch-Parent": "p" * 300}, "x-branch-parent"),
    ({"X-Branch-Session": "s"}, "x-branch-id"),
]


async def test_bad_branch_headers(client: httpx.AsyncClient, subtests: pytest.Subtests) -> None:
    for headers, param in BAD_HEADERS:
        with subtests.test(headers=str(headers)[:80]):
            response = await client.post(CHAT, json=chat(), headers=headers)
            error = assert_error(response, 400, param=param)
            assert len(error["message"]) < 200


async def test_forced_output_is_refused_without_replay(
    client: httpx.AsyncClient, front_door: FakeFrontDoor
) -> None:
    body = completion(evctl_forced_token_ids=[1])
    assert_error(await client.post(TEXT, json=body), 403, param="evctl_forced_token_ids")
    assert not front_door.requests


async def test_forced_tokens_are_checked(front_door: FakeFrontDoor) -> None:
    front_door.allow_replay = True
    async with served(front_door) as url, httpx.AsyncClient(base_url=url) as client:
        response = await client.post(TEXT, json=completion(evctl_forced_token_ids=[320]))
        assert_error(response, 400, param="evctl_forced_token_ids")


WRONG_KEYS: list[dict[str, Any]] = [
    {},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer"},
    {"Authorization": "Basic right"},
    {"Authorization": b"Bearer \xff\xc3"},
]


async def test_wrong_keys(front_door: FakeFrontDoor) -> None:
    async with (
        served(front_door, {"right": "acme"}) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        for headers in WRONG_KEYS:
            for response in (
                await client.post(CHAT, json=chat(), headers=headers),
                await client.post(CHAT, content=b"x" * 5_000_000, headers=headers),
                await client.get("/v1/models", headers=headers),
                await client.get("/v1/models/bytes", headers=headers),
                await client.post("/v1/branches/b/end", headers=headers),
            ):
                assert_error(response, 401, code="invalid_api_key")
        assert (await client.get("/healthz")).status_code == 200
        right = {"Authorization": "Bearer right"}
        assert (await client.post(CHAT, json=chat(), headers=right)).status_code == 200
    assert [request.tenant for request in front_door.requests] == ["acme"]


async def test_unknown_routes_and_methods(client: httpx.AsyncClient) -> None:
    for path in ("/", "/v1/nothing", "/v1/models/", "/v1/branches", "/v1/branches/b/explode"):
        assert (await client.post(path)).status_code in (404, 405)
    assert_error(await client.get("/v1/nothing"), 404, code="unknown_url")
    assert_error(await client.get("/v1/branches/b/end"), 404, code="branch_not_found")
    assert_error(await client.post("/v1/branches/b/explode"), 404)
    assert_error(await client.get(CHAT), 405, code="method_not_allowed")
    assert_error(await client.post("/v1/models"), 405)


async def test_tools_may_be_nested_as_deep_as_schemas_are(client: httpx.AsyncClient) -> None:
    response = await client.post(CHAT, json=chat(tools=nested(64)))
    assert response.json()["error"]["code"] == "unsupported_value", "not for its depth"
