"""What a gateway sees of the control plane: one way in, tokens out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from evctl.core.branches import BranchSignal
from evctl.core.errors import EvctlError
from evctl.core.kv_status import BranchPage, BranchRow
from evctl.core.sampling import SamplingParams
from evctl.wire.messages import Tokens


class InferenceRequest(msgspec.Struct, frozen=True):
    """A request that passed the gateway's checks, tokenised and hashed.

    request_id: unique in the cluster, made by the gateway. block_keys: 16 bytes for each full
    block of the prompt, concatenated, children of root_key.
    """

    request_id: str
    tenant: str
    prompt: tuple[int, ...]
    root_key: bytes
    block_keys: bytes
    sampling: SamplingParams
    branch: BranchSignal | None = None


class ModelCard(msgspec.Struct, frozen=True):
    """What a gateway must know about the model that the cluster serves.

    directory holds tokenizer.json and chat_template.jinja. numerics: of the engines, part of
    every block key; all engines of a cluster have the same.
    """

    name: str
    directory: str
    weights_hash: str
    numerics: str
    block_tokens: int
    context_tokens: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    created_s: int = 0


class OverloadedError(EvctlError):
    """Too much is queued: answered 429. retry_after_s goes into the Retry-After header."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(
            what="the cluster does not take this request now",
            why=why,
            next_step=f"send it again in {retry_after_s:.0f} s",
            code="EV-1301",
        )
        self.retry_after_s = retry_after_s


class FrontDoor(Protocol):
    """Implemented by the control plane's writer; with more gateway processes, by a proxy."""

    kv_secret: bytes
    allow_replay: bool

    def model(self) -> ModelCard | None:
        """None until the first engine has joined."""
        ...

    def ready(self) -> str:
        """Why requests cannot be served now; "" when they can."""
        ...

    def submit(self, request: InferenceRequest) -> AsyncIterator[Tokens]:
        """Run a request. The iterator yields tokens in order, without gaps or repeats; the last
        message has `finish` set (a FinishReason; with "error" the text is in `error`).

        Raises OverloadedError at the first step if the request is turned away. Closing the
        iterator early (aclose, or cancelling the task that reads it) cancels the request on
        every node.
        """
        ...

    def branch_signal(self, tenant: str, signal: BranchSignal, what: str) -> str:
        """A signal without inference: what is end, rewrite or fork. Idempotent. Returns why it
        changed nothing, "" when it was taken."""
        ...

    async def branches(self, tenant: str, *, after: str, limit: int) -> BranchPage:
        """The tenant's branches that have not ended, by id, those after `after`, at most `limit`
        of them; nobody else's. Raises OverloadedError when too many ask."""
        ...

    def branch(self, tenant: str, branch: str) -> BranchRow | None:
        """One of them; None when it is not known, or has ended."""
        ...
