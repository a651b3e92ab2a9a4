"""Bodies of requests: known fields must have their type, and none changes the answer in silence.

What becomes of OpenAI's fields, and of what other servers added, that say how to answer:

| field | |
|---|---|
| model, messages, prompt, max_tokens, max_completion_tokens, temperature, top_p, seed, stop, \
stream, stream_options.include_usage, logprobs, top_logprobs | honoured |
| tools | rendered where the model's chat template reads them, and the model's calls come back as \
the text of the reply; else refused. With tool_choice "none" left out |
| tool_calls and function_call in messages | likewise: refused where the template reads none |
| tool_choice | "auto" and "none"; what forces a call is refused |
| n, best_of | 1 |
| echo, suffix, presence_penalty, frequency_penalty, logit_bias, top_k, min_p, min_tokens, \
repetition_penalty, stop_token_ids | the value that changes nothing; any other is refused |
| response_format | {"type": "text"}; a reply in JSON cannot be promised, so that is refused |
| guided_json, guided_regex, guided_choice, guided_grammar, structured_outputs | refused |
| functions, function_call, web_search_options, audio, reasoning_effort, verbosity | refused |
| modalities | ["text"] |
| store | false: nothing is kept |
| user, safety_identifier, metadata, service_tier, prediction, prompt_cache_key, \
prompt_cache_retention, parallel_tool_calls, stream_options.include_obfuscation, and in messages \
name, tool_call_id, refusal | taken and without effect: no answer would be another |

Fields that nobody knows are tolerated.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from evctl.core.sampling import MAX_LOGPROBS, MAX_STOP_STRINGS
from evctl.gateway.apierror import ApiError, bad_request

BodyType = TypeVar("BodyType")


class BranchBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The X-Branch-* headers under `branch` in the body, by the same names."""

    id: str | None = None
    session: str | None = None
    parent: str | None = None
    op: str | None = None
    version: int | None = None
    final: bool | None = None
    expect_resume: float | None = None
    kind: str | None = None


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class ContentPart(msgspec.Struct, frozen=True):
    type: str = "text"
    text: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    function_call: dict[str, Any] | None = None


class CommonBody(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and text completions share, our extensions at the end."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: Any = None
    store: Any = None
    top_k: Any = None
    min_p: Any = None
    min_tokens: Any = None
    repetition_penalty: Any = None
    stop_token_ids: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    evctl_forced_token_ids: list[int] | None = None
    branch: BranchBody | None = None


class ChatBody(CommonBody, frozen=True, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    reasoning_effort: Any = None
    verbosity: Any = None


class CompletionBody(CommonBody, frozen=True, kw_only=True):
    prompt: str | list[int | str | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


def decode_body(raw: bytes, body_type: type[BodyType]) -> BodyType:
    """Parse a JSON body. Raises ApiError 400 that names the field when its type is wrong."""
    try:
        text = raw.decode("utf-8")  # msgspec does not look into strings of unknown fields
        return msgspec.json.decode(text, type=body_type)
    except UnicodeDecodeError as error:
        raise bad_request(
            f"the body is not valid UTF-8 at byte {error.start}", code="invalid_utf8"
        ) from error
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from error


def _wrong_type(text: str) -> ApiError:
    """OpenAI's `param` from msgspec's "... - at `$.messages[0].role`"."""
    what, _, path = text.partition(" - at `")
    param = re.sub(r"^\$\.?", "", path.rstrip("`")) or None
    missing = re.fullmatch(r"Object missing required field `(\w+)`", what)
    if missing:
        param = f"{param}.{missing[1]}" if param else missing[1]
    where = f"{param}: " if param else ""
    return bad_request(where + what, param, "missing_field" if missing else "invalid_type")


_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    "n": lambda value: value == 1,
    "best_of": lambda value: value == 1,
    "echo": lambda value: value is False,
    "suffix": lambda value: value == "",
    "presence_penalty": lambda value: value == 0.0,
    "frequency_penalty": lambda value: value == 0.0,
    "logit_bias": lambda value: not value,
    "response_format": lambda value: isinstance(value, dict) and value.get("type") == "text",
    "store": lambda value: value is False,
    "top_k": lambda value: value in (-1, 0),
    "min_p": lambda value: value == 0.0,
    "min_tokens": lambda value: value == 0,
    "repetition_penalty": lambda value: value == 1.0,
    "stop_token_ids": lambda value: value == [],
    "tool_choice": lambda value: value in ("auto", "none"),
    "functions": lambda value: value == [],
    "modalities": lambda value: value == ["text"],
    **dict.fromkeys(
        (
            "guided_json", "guided_regex", "guided_choice", "guided_grammar",
            "structured_outputs", "function_call", "audio", "web_search_options",
            "reasoning_effort", "verbosity",
        ),
        lambda value: False,
    ),
}  # fmt: skip
"""Fields that change the output and that no engine implements: any other value is refused."""


def check_supported(body: CommonBody) -> None:
    """Raise ApiError 400 rather than answer as if a field had not been sent."""
    for name, harmless in _UNSUPPORTED.items():
        value = getattr(body, name, None)
        if value is not None and not harmless(value):
            shown = "one choice a request" if name in ("n", "best_of") else "not supported"
            raise bad_request(f"{name}: {shown}; leave it out", name, "unsupported_value")


def stop_strings(body: CommonBody, max_chars: int) -> tuple[str, ...]:
    """`stop` as strings. Raises ApiError 400."""
    stop = body.stop
    stops = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(stops) > MAX_STOP_STRINGS or any(not 1 <= len(s) <= max_chars for s in stops):
        raise bad_request(
            f"stop takes up to {MAX_STOP_STRINGS} strings of 1 to {max_chars} characters", "stop"
        )
    return stops


def wanted_logprobs(body: CommonBody) -> int | None:
    """How many alternatives a token is reported with, None for no log-probabilities."""
    if isinstance(body, CompletionBody):
        return _checked_logprobs("logprobs", body.logprobs)
    if not isinstance(body, ChatBody):
        return None
    if body.top_logprobs and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
    return _checked_logprobs("top_logprobs", body.top_logprobs or 0) if body.logprobs else None


def _checked_logprobs(name: str, value: int | None) -> int | None:
    if value is not None and not 0 <= value <= MAX_LOGPROBS:
        raise bad_request(f"{name} must be in 0..{MAX_LOGPROBS}, not {value}", name)
    return value


def wanted_max_tokens(body: CommonBody) -> tuple[str, int | None]:
    """Name and value of the field that limits the output. Raises ApiError 400 below 1."""
    name, value = "max_tokens", body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        name, value = "max_completion_tokens", body.max_completion_tokens
    if value is not None and value < 1:
        raise bad_request(f"{name} must be at least 1, not {value}", name)
    return name, value
