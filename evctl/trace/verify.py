"""Whether the KV behind a request was right.

The emitted tokens of a replay are forced, so they prove nothing. For a checked request a *probe*
is sent after it: its prompt and its output as a prompt, a few tokens greedy and not forced, with
log-probabilities. Prefill reuses the KV that the cluster made or moved for the request, decoded
tokens included; wrong KV moves the log-probabilities even where the choice of tokens happens to
survive. The same probe on an engine without a cache says what is right. Where arithmetic is exact
(our own runner), both must agree to the last bit.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from evctl.trace.target import CompletionRequest, Target, request_failed

PROBE_TOKENS = 8


class Answer(msgspec.Struct, frozen=True):
    """A finished output. token_ids is empty where the server sends text alone."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    tokens: int


class Verifier(Protocol):
    """Says what a request's output must be."""

    async def rerun(self, request: CompletionRequest) -> Answer:
        """Run the request with no KV but its own. Raises EvctlError if it cannot."""
        ...


class TargetVerifier:
    """Reruns on another target: an engine that caches nothing."""

    def __init__(self, target: Target) -> None:
        self._target = target

    async def rerun(self, request: CompletionRequest) -> Answer:
        return await collect(self._target, request)


async def collect(target: Target, request: CompletionRequest) -> Answer:
    """A whole answer. Raises EvctlError, also when it is shorter than max_tokens."""
    ids: list[int] = []
    logprobs: list[float] = []
    text: list[str] = []
    tokens = 0
    async for chunk in target.complete(request):
        ids.extend(chunk.token_ids)
        logprobs.extend(chunk.logprobs)
        text.append(chunk.text)
        tokens += chunk.tokens
        if chunk.usage is not None:
            tokens = chunk.usage.output_tokens
    if tokens != request.max_tokens:
        raise request_failed(request.id, f"{tokens} of {request.max_tokens} tokens came")
    return Answer(tuple(ids), tuple(logprobs), "".join(text), tokens)


class Mismatch(msgspec.Struct, frozen=True):
    """One probe whose two answers differ, told by the id of the request that it checks."""

    request_id: str
    wrong_tokens: int
    wrong_logprobs: int
    first: int


class Verdict(msgspec.Struct, frozen=True):
    """All probes of a replay. unchecked: probes that got no answer on one of the sides.

    exact: whether log-probabilities count. compared: token ids, or text where no ids came.
    """

    checked: int
    unchecked: int
    compared_tokens: int
    compared_logprobs: int
    mismatches: tuple[Mismatch, ...]
    exact: bool

    @property
    def wrong_tokens(self) -> int:
        return sum(m.wrong_tokens for m in self.mismatches)

    @property
    def wrong_logprobs(self) -> int:
        return sum(m.wrong_logprobs for m in self.mismatches)

    @property
    def ok(self) -> bool:
        """Something was compared, nothing was left out, and nothing differs."""
        wrong = self.wrong_tokens + (self.wrong_logprobs if self.exact else 0)
        return self.checked > 0 and not self.unchecked and not wrong


def compare(request_id: str, got: Answer, right: Answer) -> Mismatch | None:
    """None when both answers are the same to the last bit."""
    if got.token_ids and right.token_ids:
        wrong, first = _differences(got.token_ids, right.token_ids)
    elif got.text != right.text:
        # No position of a token is known in text: count one.
        wrong, first = 1, 0
    else:
        wrong, first = 0, -1
    wrong_logprobs, first_logprob = _differences(got.logprobs, right.logprobs)
    if not wrong and not wrong_logprobs:
        return None
    firsts = [place for place in (first, first_logprob) if place >= 0]
    return Mismatch(request_id, wrong, wrong_logprobs, min(firsts))


def _differences(left: tuple[float, ...], right: tuple[float, ...]) -> tuple[int, int]:
    """How many places differ, missing ones included, and the first of them (-1: none)."""
    places = [i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b]
    count = len(places) + abs(len(left) - len(right))
    if not count:
        return 0, -1
    return count, places[0] if places else min(len(left), len(right))
