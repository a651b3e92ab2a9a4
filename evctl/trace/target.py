"""What a replay sends requests to, and what it hears back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from evctl.core.errors import EvctlError


class BranchHeaders(msgspec.Struct, frozen=True):
    """The branch signals of one request (design, section 8)."""

    branch: str
    session: str
    parent: str = ""
    op: str = "continue"
    version: int = 0
    final: bool = False
    kind: str = "main"

    def headers(self) -> dict[str, str]:
        """As HTTP headers; what says nothing is left out."""
        found = {
            "X-Branch-Id": self.branch,
            "X-Branch-Session": self.session,
            "X-Branch-Op": self.op,
            "X-Branch-Version": str(self.version),
            "X-Branch-Kind": self.kind,
        }
        if self.parent:
            found["X-Branch-Parent"] = self.parent
        if self.final:
            found["X-Branch-Final"] = "true"
        return found


class CompletionRequest(msgspec.Struct, frozen=True):
    """One greedy completion of token ids.

    forced: ids to emit instead of the sampled ones, None to let the model choose. logprobs:
    whether the answer shall carry the log-probability of each emitted token.
    """

    id: str
    prompt: list[int]
    max_tokens: int
    forced: list[int] | None = None
    branch: BranchHeaders | None = None
    logprobs: bool = False


class Usage(msgspec.Struct, frozen=True):
    """What the server counted. cached_tokens: of the prompt, found as KV; None if not said."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None


class Chunk(msgspec.Struct, frozen=True):
    """A part of an answer, when it arrives. tokens: how many it brings, at least len(token_ids).

    token_ids is empty where the server sends text alone. finish: a FinishReason on the last part
    of the output; usage may come after it. server_id: the server's own name for the request.
    """

    tokens: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    text: str = ""
    finish: str | None = None
    server_id: str = ""
    usage: Usage | None = None


class BusyError(EvctlError):
    """The target turns requests away for now (429). retry_after_s: when to come back."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(
            what="the target does not take this request now",
            why=why,
            next_step=f"it is sent again in {retry_after_s:.1f} s",
            code="EV-1610",
        )
        self.retry_after_s = retry_after_s


class ForGoodError(EvctlError):
    """The target refuses every request of this kind (401, 403, 404): sending more is no use."""


def request_failed(request_id: str, why: str) -> EvctlError:
    """The error of one request that did not end well."""
    return EvctlError(
        what=f"request {request_id} failed",
        why=why,
        next_step="look into the logs of the target",
        code="EV-1611",
    )


class Target(Protocol):
    """Runs completions: an HTTP server, or a simulated cluster."""

    def complete(self, request: CompletionRequest) -> AsyncIterator[Chunk]:
        """Run one request; closing the iterator early cancels it.

        Raises BusyError before the first chunk when turned away, ForGoodError when every other
        request would be refused too, and EvctlError for every other failure, an answer that
        breaks off included.
        """
        ...

    async def end_branch(self, branch: str) -> bool:
        """Say that a branch sends nothing more: its last request was not sent, or not answered.
        Returns whether the target heard it; a server without branches did not."""
        ...
