"""Text to token ids and back, and chat messages to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from evctl.core.errors import EvctlError, IntegrityError, UsageError
from evengine.models.registry import END_OF_TEXT_ID, IM_END_ID, IM_START_ID, RANDOM_VOCAB_SIZE

TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"

CONTROL_TOKEN = 3
USER_DEFINED_TOKEN = 4

CHATML_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer a GGUF file describes: byte-level BPE with the "smollm" splitting.

    A byte that the vocabulary lacks vanishes from the text; SmolLM2 lacks six control characters
    and lead bytes that no assigned character has.
    Raises IntegrityError (EV-2108) when the vocabulary or the merges make no sense, or when
    another kind of tokenizer is asked for.
    """
    kind = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != ("gpt2", "smollm"):
        _refuse(f"only model gpt2 with pre smollm is supported, not {kind[0]!r}, {kind[1]!r}")
    tokens = metadata.get("tokenizer.ggml.tokens")
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        _refuse("tokens or merges are missing")
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        _refuse("a token appears twice")
    tokenizer = _byte_level_bpe(vocabulary, [_merge(line) for line in merges])
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, _byte_level()])
    _add_special(tokenizer, tokens, _token_types(metadata, len(tokens)))
    return tokenizer


def byte_tokenizer() -> Tokenizer:
    """The tokenizer of random models: token id = byte value, then special tokens."""
    special = {
        END_OF_TEXT_ID: "<|endoftext|>",
        IM_START_ID: "<|im_start|>",
        IM_END_ID: "<|im_end|>",
    }
    tokens = byte_characters()
    for token_id in range(len(tokens), RANDOM_VOCAB_SIZE):
        tokens.append(special.get(token_id, f"<|reserved_{token_id}|>"))
    tokenizer = _byte_level_bpe({token: token_id for token_id, token in enumerate(tokens)}, [])
    tokenizer.pre_tokenizer = _byte_level()
    _add_special(tokenizer, tokens, [1] * 256 + [CONTROL_TOKEN] * (RANDOM_VOCAB_SIZE - 256))
    return tokenizer


def byte_characters() -> list[str]:
    """The printable character that stands for each byte in byte-level vocabularies (GPT-2)."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return [chr(byte if byte in printable else 256 + hidden.index(byte)) for byte in range(256)]


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a prepared model. Raises IntegrityError (EV-2108)."""
    try:
        return Tokenizer.from_file(str(directory / TOKENIZER_FILE))
    except Exception as error:  # the library raises bare Exception
        _refuse(f"{directory / TOKENIZER_FILE}: {error}", error)


def _byte_level_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    except Exception as error:  # the library raises bare Exception
        _refuse(str(error), error)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _byte_level() -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _merge(line: str) -> tuple[str, str]:
    left, _, right = line.partition(" ")
    if not left or not right or " " in right:
        _refuse(f"merge {line[:40]!r} is not two tokens")
    return left, right


def _token_types(metadata: Mapping[str, Any], n_tokens: int) -> list[int]:
    types = metadata.get("tokenizer.ggml.token_type")
    if (
        types is None
        or isinstance(types, (str, list))
        or getattr(types, "shape", 0) != (n_tokens,)
    ):
        _refuse("token types are missing or not one a token")
    return [int(kind) for kind in types]


def _add_special(tokenizer: Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Make control and user-defined tokens match as a whole; they keep their ids."""
    for token, kind in zip(tokens, types, strict=True):
        added = [AddedToken(token, normalized=False, special=kind == CONTROL_TOKEN)]
        if kind == CONTROL_TOKEN:
            tokenizer.add_special_tokens(added)
        elif kind == USER_DEFINED_TOKEN:
            tokenizer.add_tokens(added)


def _refuse(why: str, cause: Exception | None = None) -> NoReturn:
    raise IntegrityError(
        what="the tokenizer cannot be built",
        why=why,
        next_step="fetch the model again: python -m evengine.models fetch NAME",
        code="EV-2108",
    ) from cause


class _Strict(Undefined):
    """May be tested ("if tools") and never printed, so a missing field is not silent."""

    __str__ = Undefined._fail_with_undefined_error


class ChatTemplate:
    """A model's chat template, rendered in a sandbox that cannot reach or change objects.

    The source is untrusted: it came with the weights. Raises EvctlError (EV-2109).
    """

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=_Strict,
            extensions=["jinja2.ext.loopcontrols"],
        )
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
        except (TemplateError, RecursionError) as error:
            raise _template_error(error) from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt of a conversation; variables are extra names the template may read.

        Raises EvctlError (EV-2109) when the template refuses or cannot take the messages.
        """
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                **variables,
            )
        except Exception as error:  # a template may fail in any way its expressions can
            raise _template_error(error) from error


def load_chat_template(directory: Path) -> ChatTemplate:
    """The chat template of a prepared model. Raises EvctlError (EV-2109)."""
    try:
        source = (directory / TEMPLATE_FILE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _template_error(error) from error
    return ChatTemplate(source)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _template_error(error: Exception) -> EvctlError:
    return UsageError(
        what="the chat template cannot be rendered",
        why=str(error) or type(error).__name__,
        next_step="check that every message has a role and a text that the template takes",
        code="EV-2109",
    )
