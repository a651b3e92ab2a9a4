"""What came back for one request."""

from __future__ import annotations

from evctl.core.sampling import TokenLogprob
from evctl.wire.messages import Tokens


class Result:
    """Output so far. gaps, repeats: messages that left tokens out, or told some again."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish: str | None = None
        self.error = ""
        self.cached_tokens = 0
        self.early: dict[int, Tokens] = {}
        """What came before the tokens that it follows: a decode node's may overtake the first one,
        which the prefill node sends. The control plane waits for those too."""
        self.repeats = 0
        self.shared_id = False
        """Two requests run under this id, so their outputs may differ."""

    @property
    def gaps(self) -> int:
        """Messages that nothing has come for to follow."""
        return len(self.early)

    def add(self, message: Tokens) -> None:
        known = self.early.get(message.start, message)
        self.early[message.start] = max(known, message, key=_reach)
        while (start := min(self.early, default=-1)) in range(len(self.tokens) + 1):
            self._append(self.early.pop(start))

    def _append(self, message: Tokens) -> None:
        fresh = len(self.tokens) - message.start
        if fresh and message.token_ids:
            self.repeats += 1
            same = self.tokens[message.start :] == list(message.token_ids[:fresh])
            assert same or self.shared_id, "a repeated token is another token"
        self.tokens.extend(message.token_ids[fresh:])
        self.logprobs.extend(message.logprobs[fresh:])
        self.cached_tokens = message.cached_tokens
        self.error = message.error or self.error
        self.finish = message.finish or self.finish


def _reach(message: Tokens) -> tuple[bool, int]:
    return message.finish is not None, len(message.token_ids)
