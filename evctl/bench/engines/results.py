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
        self.gaps = 0
        self.repeats = 0
        self.shared_id = False
        """Two requests run under this id, so their outputs may differ."""

    def add(self, message: Tokens) -> None:
        fresh = len(self.tokens) - message.start
        if fresh < 0:
            self.gaps += 1
            return
        if fresh and message.token_ids:
            self.repeats += 1
            same = self.tokens[message.start :] == list(message.token_ids[:fresh])
            assert same or self.shared_id, "a repeated token is another token"
        self.tokens.extend(message.token_ids[fresh:])
        self.logprobs.extend(message.logprobs[fresh:])
        self.cached_tokens = message.cached_tokens
        self.error = message.error or self.error
        self.finish = message.finish or self.finish
