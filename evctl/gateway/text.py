"""The tokenizer and chat template of the model that the cluster serves."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tokenizers import Tokenizer, decoders

from evctl.control.frontdoor import ModelCard
from evctl.core.errors import IntegrityError
from evctl.gateway.detokenise import token_bytes
from evctl.gateway.template import ChatTemplate
from evctl.gateway.untrusted import SpecialTokens, unused_character

TOKENIZER_FILE = "tokenizer.json"
TEMPLATE_FILE = "chat_template.jinja"


class TextModel:
    """Text to token ids and back. Methods may be called from any thread; encoding is slow and
    belongs in a thread.

    Only byte-level tokenizers are taken: their tokens are bytes, so that output can be decoded
    token by token without loss. Raises EvctlError (EV-1502).
    """

    def __init__(self, directory: Path, eos_ids: Sequence[int]) -> None:
        self._tokenizer = _load(directory / TOKENIZER_FILE)
        # Another instance, because the switch is a property of the whole tokenizer.
        self._plain = _load(directory / TOKENIZER_FILE)
        self._plain.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder()
        special = {token.content: token_id for token_id, token in added.items() if token.special}
        try:
            self._special = SpecialTokens(special)
        except ValueError as error:
            _refuse(directory, str(error))
        self._special_ids = frozenset(special.values())
        self._bytes = self._byte_table(directory)
        self._longest_bytes = max(map(len, self._bytes.values()), default=1)
        self._template = ChatTemplate(_read(directory / TEMPLATE_FILE))
        eos = self._tokenizer.id_to_token(eos_ids[0]) if eos_ids else None
        self._variables = {} if eos is None else {"eos_token": eos}

    def encode_text(self, text: str) -> list[int]:
        """A raw prompt, in which special tokens may be spelt out."""
        return _encode(self._tokenizer, text)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> list[int]:
        """A conversation. Only the template writes special tokens, whatever the messages say.

        Raises EvctlError (EV-1501) if the template does not take the messages.
        """
        return self._encode_rendered(*self._render(list(messages), tools))

    def reads(self, name: str) -> bool:
        """Whether the chat template takes notice of `tools`, or of a field of messages."""
        return self._template.reads(name)

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that `text` has at least, found without tokenising it."""
        return len(text) // self._longest_bytes

    def bytes_of(self, token_id: int) -> bytes:
        """What a token adds to the output: nothing for special and unknown ones."""
        return b"" if token_id in self._special_ids else self._bytes.get(token_id, b"")

    def name_of(self, token_id: int) -> tuple[str, bytes]:
        """A token as log-probabilities show it; bytes that are no text as bytes:\\xe2\\x82."""
        if token_id in self._special_ids:
            name = self._tokenizer.id_to_token(token_id) or ""
            return name, name.encode()
        raw = self._bytes.get(token_id, b"")
        try:
            return raw.decode("utf-8"), raw
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw

    def _render(self, messages: list[Any], tools: Any) -> tuple[str, str]:
        """The rendered chat and the character that marks strings of the client."""
        marker = unused_character([messages, tools])
        marked = [
            {**self._special.marked(message, marker), "role": message["role"]}
            for message in messages
        ]
        variables = {**self._variables, "tools": self._special.marked(tools, marker)}
        return self._template.render(marked, **variables), marker

    def _encode_rendered(self, text: str, marker: str) -> list[int]:
        ids: list[int] = []
        for piece in self._special.split(text):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                plain = piece.replace(marker, "")
                ids.extend(_encode(self._plain, plain, add_special_tokens=False))
        return ids

    def _byte_table(self, directory: Path) -> dict[int, bytes]:
        if not isinstance(self._tokenizer.decoder, decoders.ByteLevel):
            _refuse(directory, "only tokenizers with a byte-level decoder are supported")
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        return {token_id: token_bytes(token) for token, token_id in vocabulary.items()}


class TextModels:
    """The text model of the card in use, loaded once. Called from pool threads only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: tuple[ModelCard, TextModel] | None = None

    def of(self, card: ModelCard) -> TextModel:
        """Raises EvctlError (EV-1501, EV-1502)."""
        with self._lock:
            if self._loaded is None or self._loaded[0] != card:
                self._loaded = card, TextModel(Path(card.directory), card.eos_ids)
            return self._loaded[1]


def _encode(tokenizer: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
    """Batches of one, because larger ones go to threads that all callers share, where a long
    prompt would hold up short ones; and batches, because they leave out offsets: half the time.
    """
    batch = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return list(batch[0].ids)


def _load(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        _refuse(path, str(error), error)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        _refuse(path, str(error), error)


def _refuse(path: Path, why: str, cause: Exception | None = None) -> NoReturn:
    raise IntegrityError(
        what="the model's text files cannot be used",
        why=f"{path.name}: {why}",
        next_step="fetch the model again, or serve another one",
        code="EV-1502",
    ) from cause
