"""Answers as OpenAI's clients read them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import msgspec

from evctl.core.sampling import TokenLogprob
from evctl.gateway.output import Output, Piece, ScoredToken
from evctl.gateway.prompt import Prepared
from evctl.gateway.schema import ChatBody, CompletionBody
from evctl.gateway.text import TextModel

LEAST_LOGPROB = -9999.0
"""What OpenAI reports for a token that cannot occur; JSON has no minus infinity."""


class Shape(ABC):
    """One endpoint's answers, whole and in chunks."""

    body_type: ClassVar[type[ChatBody | CompletionBody]]
    id_prefix: ClassVar[str]
    object_name: ClassVar[str]
    chunk_name: ClassVar[str]

    @abstractmethod
    def delta(self, piece: Piece) -> dict[str, Any]:
        """The part of a chunk's choice that holds text."""

    @abstractmethod
    def content(self, text: str) -> dict[str, Any]:
        """The part of a whole answer's choice that holds text."""

    @abstractmethod
    def logprobs(self, scores: Sequence[ScoredToken], text: TextModel) -> dict[str, Any]:
        """Log-probabilities of some tokens."""

    def chunk(self, prepared: Prepared, created_s: int, piece: Piece) -> dict[str, Any]:
        """One chunk of a stream."""
        choice = self.delta(piece)
        answer = self._answer(prepared, created_s, self.chunk_name, choice, piece)
        if prepared.include_usage:
            answer["usage"] = None
        if piece.is_first and prepared.token_ids:
            choice["prompt_token_ids"] = prepared.request.prompt
        return answer

    def usage_chunk(self, prepared: Prepared, created_s: int, output: Output) -> dict[str, Any]:
        """The last chunk, for clients that asked for it."""
        head = self._head(prepared, created_s, self.chunk_name)
        return {**head, "choices": [], "usage": usage(prepared, output)}

    def whole(
        self, prepared: Prepared, created_s: int, pieces: Sequence[Piece], output: Output
    ) -> dict[str, Any]:
        """The answer to a request without streaming."""
        total = Piece(
            "".join(piece.text for piece in pieces),
            tuple(token for piece in pieces for token in piece.token_ids),
            tuple(score for piece in pieces for score in piece.scores),
            pieces[-1].finish,
        )
        choice = self.content(total.text)
        answer = self._answer(prepared, created_s, self.object_name, choice, total)
        answer["usage"] = usage(prepared, output)
        if prepared.token_ids:
            choice["prompt_token_ids"] = prepared.request.prompt
        return answer

    def _answer(
        self,
        prepared: Prepared,
        created_s: int,
        object_name: str,
        choice: dict[str, Any],
        piece: Piece,
    ) -> dict[str, Any]:
        choice["index"] = 0
        choice["finish_reason"] = piece.finish
        choice["logprobs"] = (
            self.logprobs(piece.scores, prepared.text) if prepared.wants_logprobs else None
        )
        if prepared.token_ids:
            choice["token_ids"] = piece.token_ids
        return {**self._head(prepared, created_s, object_name), "choices": [choice]}

    def _head(self, prepared: Prepared, created_s: int, object_name: str) -> dict[str, Any]:
        return {
            "id": prepared.request.request_id,
            "object": object_name,
            "created": created_s,
            "model": prepared.model,
        }


class ChatShape(Shape):
    """/v1/chat/completions."""

    body_type = ChatBody
    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def delta(self, piece: Piece) -> dict[str, Any]:
        if piece.is_first:
            return {"delta": {"role": "assistant", "content": piece.text}}
        return {"delta": {"content": piece.text} if piece.text else {}}

    def content(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def logprobs(self, scores: Sequence[ScoredToken], text: TextModel) -> dict[str, Any]:
        content = []
        for scored in scores:
            score = scored.score
            entry = _named(text, score.token_id, score.logprob)
            entry["top_logprobs"] = [_named(text, *alternative) for alternative in score.top]
            content.append(entry)
        return {"content": content, "refusal": None}


class CompletionShape(Shape):
    """/v1/completions."""

    body_type = CompletionBody
    id_prefix = "cmpl-"
    object_name = "text_completion"
    chunk_name = "text_completion"

    def delta(self, piece: Piece) -> dict[str, Any]:
        return {"text": piece.text}

    def content(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def logprobs(self, scores: Sequence[ScoredToken], text: TextModel) -> dict[str, Any]:
        return {
            "tokens": [text.name_of(s.score.token_id)[0] for s in scores],
            "token_logprobs": [_finite(s.score.logprob) for s in scores],
            "top_logprobs": [_likeliest(s.score, text) for s in scores],
            "text_offset": [s.text_offset for s in scores],
        }


def usage(prepared: Prepared, output: Output) -> dict[str, Any]:
    """Tokens of a request; cached ones are part of its prompt."""
    prompt_tokens = len(prepared.request.prompt)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output.output_tokens,
        "total_tokens": prompt_tokens + output.output_tokens,
        "prompt_tokens_details": {"cached_tokens": output.cached_tokens},
    }


_LINE_ENDS = tuple(
    (character.encode(), f"\\u{ord(character):04x}".encode())
    for character in ("\x85", "\u2028", "\u2029")
)
"""What Unicode calls the end of a line, and its escape. To server-sent events they are none, but
many a client cuts its input into lines with something like str.splitlines."""


def event(payload: object) -> bytes:
    """One server-sent event."""
    data = msgspec.json.encode(payload)
    if not data.isascii():
        for raw, escaped in _LINE_ENDS:
            data = data.replace(raw, escaped)
    return b"data: " + data + b"\n\n"


DONE_EVENT = b"data: [DONE]\n\n"


def _named(text: TextModel, token_id: int, logprob: float) -> dict[str, Any]:
    name, raw = text.name_of(token_id)
    return {"token": name, "logprob": _finite(logprob), "bytes": list(raw)}


def _likeliest(score: TokenLogprob, text: TextModel) -> dict[str, float]:
    """The alternatives and the token itself, by name."""
    scores: Iterable[tuple[int, float]] = (*score.top, (score.token_id, score.logprob))
    return {text.name_of(token_id)[0]: _finite(logprob) for token_id, logprob in scores}


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
