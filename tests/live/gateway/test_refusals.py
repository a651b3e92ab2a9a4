"""Requests that must not be served, sent to a cluster that serves: each gets the right 4xx in
OpenAI's form, computes nothing, and leaves nothing behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.live.gateway.cluster import KEYS, OTHER_KEY, Cluster, assert_error

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CONTEXT_TOKENS = 4_096
VOCABULARY = 320


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def raw_chat(extra: str, model: str = "random-4l256") -> bytes:
    return f'{{"model":"{model}","messages":[{{"role":"user","content":"hi"}}],{extra}}}'.encode()


def raw_text(extra: str, model: str = "random-4l256") -> bytes:
    return f'{{"model":"{model}","prompt":[1,2],"max_tokens":1,{extra}}}'.encode()


RAW: dict[str, tuple[str, bytes, str, str | None]] = {
    # path, body, code, param
    "empty": (TEXT, b"", "invalid_json", None),
    "cut off": (TEXT, b'{"model": "random-4l256", "prompt": [1', "invalid_json", None),
    "more after the end": (TEXT, raw_text('"n":1') + b"{}", "invalid_json", None),
    "no object": (CHAT, b"[]", "invalid_type", None),
    "UTF-8 cut in a character": (TEXT, b'{"model": "\xe2\x82"}', "invalid_utf8", None),
    "not UTF-8 in an unknown field": (TEXT, raw_text('"x":"?"').replace(b"?", b"\xff"),
                                      "invalid_utf8", None),
    "UTF-16": (TEXT, raw_text('"n":1').decode().encode("utf-16"), "invalid_utf8", None),
    "half of a surrogate pair": (TEXT, raw_text(r'"stop":"\ud800"'), "invalid_json", None),
    "NaN": (TEXT, raw_text('"temperature":NaN'), "invalid_json", None),
    "Infinity": (TEXT, raw_text('"temperature":Infinity'), "invalid_json", None),
    "-Infinity": (CHAT, raw_chat('"top_p":-Infinity'), "invalid_json", None),
    "infinite when read": (TEXT, raw_text('"temperature":1e999'), "invalid_type", "temperature"),
    "NaN as a token": (TEXT, b'{"model":"random-4l256","prompt":[NaN]}', "invalid_json", None),
    "deep in an unknown field": (CHAT, raw_chat(f'"x":{nested(100_000)}'), "invalid_json", None),
    "deep brackets": (TEXT, b"[" * 1_000_000, "invalid_type", None),
    "deep tools": (CHAT, raw_chat(f'"tools":[{nested(900)}]'), "nested_too_deep", "tools"),
    "deep tool calls": (
        CHAT,
        b'{"model":"random-4l256","messages":[{"role":"assistant","tool_calls":[%s]}]}'
        % nested(500).encode(),
        "nested_too_deep",
        "messages[0].tool_calls",
    ),
}  # fmt: skip


def test_bodies_that_are_no_requests(untouched: Cluster, subtests: pytest.Subtests) -> None:
    for name, (path, content, code, param) in RAW.items():
        with subtests.test(name):
            assert_error(untouched.http.post(path, content=content), 400, code, param)
            untouched.answers_as_before()


FIELDS: list[tuple[str, dict[str, Any], str, str]] = [
    # path, what is changed in a good request, code, param
    (TEXT, {"max_tokens": -1}, "invalid_value", "max_tokens"),
    (CHAT, {"max_tokens": -1}, "invalid_value", "max_tokens"),
    (CHAT, {"max_completion_tokens": -(2**63)}, "invalid_value", "max_completion_tokens"),
    (TEXT, {"max_tokens": 2**63}, "context_length_exceeded", "max_tokens"),
    (TEXT, {"max_tokens": 10**400}, "context_length_exceeded", "max_tokens"),
    (TEXT, {"max_tokens": 1.5}, "invalid_type", "max_tokens"),
    (TEXT, {"temperature": -0.01}, "invalid_value", "temperature"),
    (TEXT, {"temperature": 100.1}, "invalid_value", "temperature"),
    (CHAT, {"temperature": "0"}, "invalid_type", "temperature"),
    (TEXT, {"top_p": 0}, "invalid_value", "top_p"),
    (TEXT, {"top_p": 1.01}, "invalid_value", "top_p"),
    (TEXT, {"seed": 2**63}, "invalid_value", "seed"),
    (TEXT, {"logprobs": 21}, "invalid_value", "logprobs"),
    (TEXT, {"logprobs": -1}, "invalid_value", "logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
    (TEXT, {"logit_bias": {"5": 1e9}}, "unsupported_value", "logit_bias"),
    (TEXT, {"n": 1_000_000}, "unsupported_value", "n"),
    (TEXT, {"stop": ["x"] * 17}, "invalid_value", "stop"),
    (TEXT, {"stop": ["x" * 257]}, "invalid_value", "stop"),
    (TEXT, {"stop": [""]}, "invalid_value", "stop"),
    (TEXT, {"prompt": ""}, "invalid_value", "prompt"),
    (TEXT, {"prompt": []}, "invalid_value", "prompt"),
    (TEXT, {"prompt": [VOCABULARY]}, "invalid_value", "prompt"),
    (TEXT, {"prompt": [2**64]}, "invalid_value", "prompt"),
    (TEXT, {"prompt": [5, -1]}, "invalid_value", "prompt"),
    (TEXT, {"prompt": [5, 1.5]}, "invalid_type", "prompt[1]"),
    (TEXT, {"prompt": [5, 1.0]}, "invalid_type", "prompt[1]"),
    (TEXT, {"prompt": [True]}, "invalid_type", "prompt[0]"),
    (TEXT, {"prompt": [[True]]}, "invalid_type", "prompt[0][0]"),
    (TEXT, {"prompt": ["a", "b"]}, "unsupported_value", "prompt"),
    (TEXT, {"prompt": [5] * CONTEXT_TOKENS}, "context_length_exceeded", "prompt"),
    (TEXT, {"prompt": "a" * CONTEXT_TOKENS}, "context_length_exceeded", "prompt"),
    (CHAT, {"messages": [{"role": "user", "content": "a" * CONTEXT_TOKENS}]},
     "context_length_exceeded", "messages"),
    (CHAT, {"messages": []}, "invalid_value", "messages"),
    (CHAT, {"messages": [{"role": "user", "content": "hi"}] * 100_000}, "too_many_messages",
     "messages"),
    (CHAT, {"messages": [{"role": "king", "content": "hi"}]}, "invalid_value", "messages[0].role"),
    (TEXT, {"branch": {"id": "b" * 10_240}}, "invalid_value", "branch.id"),
    (TEXT, {"branch": {"id": "b\n"}}, "invalid_value", "branch.id"),
]  # fmt: skip


def test_fields_out_of_range(untouched: Cluster, subtests: pytest.Subtests) -> None:
    good = {TEXT: untouched.body(), CHAT: untouched.chat()}
    for path, fields, code, param in FIELDS:
        with subtests.test(f"{path} {str(fields)[:60]}"):
            response = untouched.http.post(path, json=good[path] | fields)
            assert_error(response, 400, code, param)
            untouched.answers_as_before()


def test_models_sizes_and_types(untouched: Cluster, subtests: pytest.Subtests) -> None:
    post = untouched.http.post
    ten_megabytes = json.dumps(untouched.chat("a" * 10_000_000)).encode()
    json_text = json.dumps(untouched.body()).encode()
    long_id = {"X-Branch-Id": "b" * 10_240}
    for path, good in ((TEXT, untouched.body()), (CHAT, untouched.chat())):
        with subtests.test("another model", path=path):
            response = post(path, json=good | {"model": "gpt-9"})
            assert_error(response, 404, "model_not_found", "model")
        with subtests.test("10 MB", path=path):
            assert_error(post(path, content=ten_megabytes), 413, "request_too_large", None)
        with subtests.test("10 MB in chunks", path=path):
            chunks = (ten_megabytes[i : i + 65_536] for i in range(0, 10_000_000, 65_536))
            assert_error(post(path, content=chunks), 413, "request_too_large", None)
        with subtests.test("10 kB of branch id", path=path):
            response = post(path, json=good, headers=long_id)
            assert_error(response, 400, "invalid_value", "x-branch-id")
        with subtests.test("forced tokens", path=path):
            response = post(path, json=good | {"evctl_forced_token_ids": [1]})
            assert_error(response, 403, "replay_not_allowed", "evctl_forced_token_ids")
        untouched.answers_as_before()
    for declared in ("text/plain", "application/x-www-form-urlencoded", "image/png"):
        with subtests.test(declared):
            headers = {"Content-Type": declared}
            response = post(TEXT, content=json_text, headers=headers)
            assert_error(response, 415, "unsupported_media_type", "content-type")
            untouched.answers_as_before()


BAD_KEYS: list[dict[str, str]] = [
    {"Authorization": ""},
    {"Authorization": "Bearer sk-wrong-12345678"},
    {"Authorization": f"Bearer {OTHER_KEY}x"},
    {"Authorization": f"Basic {OTHER_KEY}"},
    {"Authorization": f"Bearer {KEYS[OTHER_KEY]}"},
    {"Authorization": "", "X-Api-Key": OTHER_KEY},
]


def test_without_a_key_nothing_is_served(untouched: Cluster, subtests: pytest.Subtests) -> None:
    for headers in BAD_KEYS:
        with subtests.test(str(headers)):
            for response in (
                untouched.http.post(TEXT, json=untouched.body(), headers=headers),
                untouched.http.post(CHAT, content=b"a" * 9_000_000, headers=headers),
                untouched.http.get("/v1/models", headers=headers),
                untouched.http.post("/v1/branches/b/end", headers=headers),
            ):
                assert_error(response, 401, "invalid_api_key", None)
            untouched.answers_as_before()
    assert b" 401 " in untouched.send(b"GET /v1/models HTTP/1.0\r\n\r\n"), "no such header at all"


def test_tenants_get_the_same_answer_and_share_no_cache(cluster: Cluster) -> None:
    prompt = [(11 * i + 5) % 256 for i in range(100)]
    first, again = cluster.ask(prompt), cluster.ask(prompt)
    other = cluster.ask(prompt, key=OTHER_KEY)
    answers = [answer["choices"][0]["token_ids"] for answer in (first, again, other)]
    assert answers[0] == answers[1] == answers[2]
    cached = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (first, again, other)]
    assert cached[0] == 0
    assert cached[1] >= 80
    assert cached[2] == 0, "what somebody else asked must not show, not even by its speed"


def test_unknown_fields_change_nothing(cluster: Cluster) -> None:
    plain = cluster.ask()["choices"]
    odd = cluster.ask(frobnicate={"a": [1, None]}, user="u", metadata={"k": "v"})["choices"]
    assert odd == plain
