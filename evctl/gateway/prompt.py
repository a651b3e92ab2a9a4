"""From a body to an InferenceRequest. Everything here is slow for long prompts and runs in a
thread: parsing, rendering, tokenising, hashing."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.datastructures import Headers

from evctl.control.frontdoor import InferenceRequest, ModelCard
from evctl.core.blocks import KvNamespace, block_keys, root_key
from evctl.core.errors import EvctlError
from evctl.core.sampling import SamplingParams
from evctl.gateway.apierror import ApiError, bad_request, from_evctl
from evctl.gateway.branches import branch_signal
from evctl.gateway.limits import GatewayLimits
from evctl.gateway.schema import (
    ChatBody,
    ChatMessage,
    CommonBody,
    CompletionBody,
    check_supported,
    decode_body,
    stop_strings,
    wanted_logprobs,
    wanted_max_tokens,
)
from evctl.gateway.text import TextModel, TextModels

DEFAULT_TEMPERATURE = 1.0
ROLES = ("system", "user", "assistant", "tool", "function")


class Arrival(msgspec.Struct, frozen=True):
    """A request as it came: whose it is, its id, its headers and its raw body."""

    request_id: str
    tenant: str
    headers: Headers
    raw: bytes


class Prepared(msgspec.Struct, frozen=True):
    """A request that passed every check, and how its client wants the answer."""

    request: InferenceRequest
    model: str
    text: TextModel
    stops: tuple[str, ...]
    eos_ids: tuple[int, ...]
    stream: bool
    include_usage: bool
    token_ids: bool

    @property
    def wants_logprobs(self) -> bool:
        return self.request.sampling.logprobs is not None


class PromptReader:
    """Checks and tokenises requests for the model of a card. Methods run in threads."""

    def __init__(self, kv_secret: bytes, allow_replay: bool, limits: GatewayLimits) -> None:
        self._kv_secret = kv_secret
        self._allow_replay = allow_replay
        self._limits = limits
        self._texts = TextModels()

    def read(
        self, arrival: Arrival, body_type: type[ChatBody | CompletionBody], card: ModelCard
    ) -> Prepared:
        """Raises ApiError, with the first thing found wrong."""
        body = decode_body(arrival.raw, body_type)
        if body.model != card.name:
            raise unknown_model(body.model)
        check_supported(body)
        branch = branch_signal(arrival.headers, body.branch)
        self._check_replay(body, card)
        stops = stop_strings(body, self._limits.max_stop_chars)
        try:
            text = self._texts.of(card)
            prompt = self._prompt(body, text, card)
        except EvctlError as error:
            raise from_evctl(error) from error
        sampling = self._sampling(body, stops, len(prompt), card)
        namespace = KvNamespace(arrival.tenant, card.weights_hash, numerics=card.numerics)
        root = root_key(self._kv_secret, namespace)
        keys = block_keys(self._kv_secret, root, prompt, card.block_tokens)
        request = InferenceRequest(
            request_id=arrival.request_id,
            tenant=arrival.tenant,
            prompt=tuple(prompt),
            root_key=root,
            block_keys=b"".join(keys),
            sampling=sampling,
            branch=branch,
        )
        options = body.stream_options
        return Prepared(
            request=request,
            model=card.name,
            text=text,
            stops=stops,
            eos_ids=card.eos_ids,
            stream=bool(body.stream),
            include_usage=bool(options and options.include_usage),
            token_ids=bool(body.return_token_ids),
        )

    def _check_replay(self, body: CommonBody, card: ModelCard) -> None:
        name = "evctl_forced_token_ids"
        forced = body.evctl_forced_token_ids
        if forced is None:
            return
        if not self._allow_replay:
            raise ApiError(
                403,
                "this cluster takes no forced output: replay is not allowed in its configuration",
                param=name,
                code="replay_not_allowed",
            )
        _check_token_ids(forced, card, name)

    def _prompt(
        self, body: ChatBody | CompletionBody, text: TextModel, card: ModelCard
    ) -> list[int]:
        if isinstance(body, ChatBody):
            param, prompt = "messages", self._chat_prompt(body, text, card)
        else:
            param, prompt = "prompt", _completion_prompt(body, text, card)
        if not prompt:
            raise bad_request(f"{param}: the prompt is empty", param)
        if len(prompt) >= card.context_tokens:
            raise _too_long(f"{len(prompt)}", card, param)
        return prompt

    def _chat_prompt(self, body: ChatBody, text: TextModel, card: ModelCard) -> list[int]:
        if not body.messages:
            raise bad_request("messages: send at least one", "messages")
        if len(body.messages) > self._limits.max_messages:
            raise bad_request(
                f"messages: {len(body.messages)} are more than the {self._limits.max_messages} "
                "that are taken",
                "messages",
                "too_many_messages",
            )
        _check_nesting(body.tools, "tools", self._limits.max_nesting)
        for i, message in enumerate(body.messages):
            where = f"messages[{i}].tool_calls"
            _check_nesting(message.tool_calls, where, self._limits.max_nesting)
        messages = [_template_message(i, message) for i, message in enumerate(body.messages)]
        least = sum(text.fewest_tokens(message["content"]) for message in messages)
        if least >= card.context_tokens:
            raise _too_long(f"at least {least}", card, "messages")
        for i, message in enumerate(body.messages):
            _check_calls(i, message, text)
        tools = body.tools if body.tool_choice != "none" else None
        if tools and not text.reads("tools"):
            raise _not_rendered("tools", "tools")
        return text.encode_chat(messages, tools or None)

    def _sampling(
        self, body: CommonBody, stops: tuple[str, ...], prompt_tokens: int, card: ModelCard
    ) -> SamplingParams:
        """Raises ApiError 400 for a value out of range.

        A limit above what the context has left is lowered to that, as other servers do; one
        above the whole context is refused.
        """
        name, asked = wanted_max_tokens(body)
        if asked is not None and asked > card.context_tokens:
            raise bad_request(
                f"{name}: {asked} is more than this model's context of {card.context_tokens} "
                "tokens",
                name,
                "context_length_exceeded",
            )
        wanted = self._limits.default_max_tokens if asked is None else asked
        try:
            return SamplingParams(
                max_tokens=min(wanted, card.context_tokens - prompt_tokens),
                temperature=_or(body.temperature, DEFAULT_TEMPERATURE),
                top_p=_or(body.top_p, 1.0),
                seed=body.seed,
                stop=stops,
                ignore_eos=bool(body.ignore_eos),
                logprobs=wanted_logprobs(body),
                forced=tuple(body.evctl_forced_token_ids or ()),
            )
        except ValueError as error:  # begins with the name of the field
            raise bad_request(str(error), str(error).partition(" ")[0]) from error


def unknown_model(name: str) -> ApiError:
    """404 in OpenAI's words."""
    shown = name if len(name) <= 80 else name[:80] + "…"
    return ApiError(
        404, f"The model {shown!r} does not exist here", param="model", code="model_not_found"
    )


def _template_message(index: int, message: ChatMessage) -> dict[str, Any]:
    """The message as templates know it: text content, "developer" under its older name."""
    role = "system" if message.role == "developer" else message.role
    where = f"messages[{index}]"
    if role not in ROLES:
        raise bad_request(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
    shown: dict[str, Any] = {"role": role, "content": _content(message, where)}
    for field in ("name", "tool_calls", "tool_call_id", "function_call"):
        value = getattr(message, field)
        if value is not None:
            shown[field] = value
    return shown


def _check_nesting(values: list[dict[str, Any]] | None, param: str, most: int) -> None:
    """Marking and rendering descend into these by recursion."""
    level: list[Any] = list(values or ())
    for _ in range(most + 1):
        containers = [value for value in level if isinstance(value, dict | list)]
        if not containers:
            return
        level = [
            inner
            for value in containers
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
    raise bad_request(f"{param}: nested deeper than {most} levels", param, "nested_too_deep")


def _content(message: ChatMessage, where: str) -> str:
    if message.content is None:
        if message.role != "assistant":
            raise bad_request(f"{where}.content is missing", f"{where}.content")
        return ""
    if isinstance(message.content, str):
        return message.content
    for part in message.content:
        if part.type != "text" or part.text is None:
            raise bad_request(f"{where}.content: only text parts are taken", f"{where}.content")
    return "\n".join(part.text or "" for part in message.content)


def _check_calls(index: int, message: ChatMessage, text: TextModel) -> None:
    """A call that the template leaves out would be missing in what the model reads."""
    for name in ("tool_calls", "function_call"):
        if getattr(message, name) and not text.reads(name):
            raise _not_rendered(f"messages[{index}].{name}", name)


def _not_rendered(param: str, name: str) -> ApiError:
    return bad_request(
        f"{param}: the chat template of this model does not render {name}, so the model would not "
        "see them; leave them out, or serve a model whose template does",
        param,
        "unsupported_value",
    )


def _completion_prompt(body: CompletionBody, text: TextModel, card: ModelCard) -> list[int]:
    prompt: Any = body.prompt
    if isinstance(prompt, list) and prompt and not all(type(item) is int for item in prompt):
        if len(prompt) > 1:
            raise bad_request(
                f"prompt: {len(prompt)} prompts in one request are not supported; send one text "
                "or one list of token ids",
                "prompt",
                "unsupported_value",
            )
        prompt = prompt[0]
    if isinstance(prompt, str):
        if text.fewest_tokens(prompt) >= card.context_tokens:
            raise _too_long(f"at least {text.fewest_tokens(prompt)}", card, "prompt")
        return text.encode_text(prompt)
    _check_token_ids(prompt, card, "prompt")
    return list(prompt)


def _check_token_ids(ids: list[int], card: ModelCard, param: str) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < card.vocab_size):
        raise bad_request(f"{param}: token ids must be in 0..{card.vocab_size - 1}", param)


def _too_long(tokens: str, card: ModelCard, param: str) -> ApiError:
    return bad_request(
        f"This model's maximum context length is {card.context_tokens} tokens, at least one of "
        f"them for the output. Your prompt has {tokens} tokens. Please shorten it.",
        param,
        "context_length_exceeded",
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
