"""The output of one request: tokens in, text with its log-probabilities out."""

from __future__ import annotations

import msgspec

from evctl.core.sampling import FinishReason, TokenLogprob
from evctl.gateway.apierror import ApiError, generation_failed
from evctl.gateway.detokenise import StopScanner, Utf8Stream
from evctl.gateway.prompt import Prepared
from evctl.wire.messages import Tokens


class ScoredToken(msgspec.Struct, frozen=True):
    """A token with its log-probability; text_offset: characters of the reply before it."""

    score: TokenLogprob
    text_offset: int


class Piece(msgspec.Struct, frozen=True):
    """What became known of the reply: text to append, tokens, and how it ended, if it did.

    is_first: nothing of the reply came before.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    scores: tuple[ScoredToken, ...] = ()
    finish: str | None = None
    is_first: bool = False


class Output:
    """Follows one request. After a piece with `finish` nothing may be added.

    Scores come out with the text that they belong to, so that those of a stop string, like its
    text, never do; neither does that of an end-of-sequence token.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._text = prepared.text
        self._sampling = prepared.request.sampling
        self._eos_ids = frozenset(prepared.eos_ids)
        self._characters = Utf8Stream()
        self._stop = StopScanner(prepared.stops)
        self._decoded_chars = 0
        self._shown_chars = 0
        self._held: list[ScoredToken] = []
        self._begun = False
        self.output_tokens = 0
        self.cached_tokens = 0

    def add(self, message: Tokens) -> Piece:
        """The next piece. Raises ApiError when the request failed, or tokens went missing."""
        if message.token_ids and message.start != self.output_tokens:
            raise generation_failed(
                f"token {message.start} of the output arrived in place of {self.output_tokens}"
            )
        self.cached_tokens = max(self.cached_tokens, message.cached_tokens)
        decoded = self._decode(message)
        text = self._stop.push(decoded)
        finish = FinishReason.STOP if self._stop.stopped else message.finish
        if finish in (FinishReason.ERROR, FinishReason.CANCELLED):
            raise _failure(message)
        if finish is not None:
            text += self._stop.finish()
        self._shown_chars += len(text)
        is_first, self._begun = not self._begun, True
        return Piece(text, message.token_ids, self._scores(finish), finish, is_first)

    def _decode(self, message: Tokens) -> str:
        parts = []
        for index, token_id in enumerate(message.token_ids):
            is_end = self._ends(token_id, message.start + index)
            if message.logprobs and not is_end:
                self._held.append(ScoredToken(message.logprobs[index], self._decoded_chars))
            part = self._characters.push(self._text.bytes_of(token_id))
            self._decoded_chars += len(part)
            parts.append(part)
        self.output_tokens += len(message.token_ids)
        return "".join(parts)

    def _ends(self, token_id: int, position: int) -> bool:
        """Whether a token ends the reply without being part of it; forced ones never do."""
        sampling = self._sampling
        is_forced = position < len(sampling.forced)
        return token_id in self._eos_ids and not sampling.ignore_eos and not is_forced

    def _scores(self, finish: str | None) -> tuple[ScoredToken, ...]:
        """Scores of tokens whose text is out. Without text held back, that is all of them."""
        if not self._held:
            return ()
        complete = self._shown_chars == self._decoded_chars
        shown = [s for s in self._held if complete or s.text_offset < self._shown_chars]
        self._held = [] if finish else self._held[len(shown) :]
        return tuple(shown)


def _failure(message: Tokens) -> ApiError:
    if message.finish == FinishReason.CANCELLED:
        return generation_failed("the request was cancelled in the cluster")
    return generation_failed(message.error or "the cluster could not finish the request")
