"""Facts that reach the reducer. They hold ids, keys and lengths, never text or tokens."""

from __future__ import annotations

import msgspec

from evctl.core.split import Phase


class Fact(msgspec.Struct, frozen=True, tag_field="t"):
    """Base of all facts; the class name is the tag."""


class PrefillStarted(Fact, frozen=True, tag=True):
    """Prefill of a request began: cached_tokens were found in L1, uncached_tokens must run."""

    request_id: str
    cached_tokens: int
    uncached_tokens: int


class FirstToken(Fact, frozen=True, tag=True):
    """The prompt is computed and one token sampled."""

    request_id: str
    prompt_tokens: int


class RequestDone(Fact, frozen=True, tag=True):
    """Output ended. reason: a FinishReason."""

    request_id: str
    reason: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    detail: str = ""


class KvStored(Fact, frozen=True, tag=True):
    """Blocks became readable: `keys` in order, children of `parent`, in tier 1 or 2.

    request_id lets the directory find the run by the request's cursor, also when `parent`
    lies in the middle of one.
    """

    request_id: str
    tier: int
    parent: bytes
    keys: tuple[bytes, ...]


class KvEvicted(Fact, frozen=True, tag=True):
    """Blocks are no longer readable in a tier; sent before their slots are reused."""

    tier: int
    keys: tuple[bytes, ...]


class TransferDone(Fact, frozen=True, tag=True):
    """A request's KV arrived at `destination` and was verified there."""

    request_id: str
    destination: str
    blocks: int
    bytes_sent: int
    held_blocks: int


class TransferFailed(Fact, frozen=True, tag=True):
    """A request's KV did not arrive whole at `destination`."""

    request_id: str
    destination: str
    reason: str


class IterationSample(Fact, frozen=True, tag=True):
    """One iteration of the loop: its busy time and the regressors of Eq. 1 and 2."""

    phase: Phase
    busy_s: float
    prefill_tokens: int
    attention_pairs: float
    restored_tokens: int
    decode_requests: int


EngineFact = (
    PrefillStarted
    | FirstToken
    | RequestDone
    | KvStored
    | KvEvicted
    | TransferDone
    | TransferFailed
    | IterationSample
)
