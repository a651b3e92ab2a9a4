"""A request's life on one node."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from evctl.core.blocks import BlockKey, extend_keys
from evctl.core.sampling import FinishReason, TokenLogprob
from evctl.wire.messages import StartRequest
from evengine.ports import Slot

if TYPE_CHECKING:
    from evengine.fetch.intake import Intake


class Stage(Enum):
    """Where a request stands. Every stage can be cancelled."""

    WAITING = "waiting"
    PREFILL = "prefill"
    HANDING_OVER = "handing_over"
    DECODE = "decode"
    DONE = "done"


class StopText:
    """Finds stop strings in the text of a growing output.

    decode turns token ids into text; only a bounded tail is decoded again for each token.
    """

    def __init__(self, stops: tuple[str, ...], decode: Callable[[list[int]], str]) -> None:
        self._stops = stops
        self._decode = decode
        self._tail_tokens = 4 + max((len(stop.encode()) for stop in stops), default=0)

    def hit(self, output: list[int]) -> bool:
        """Whether a stop string appears in the last tokens. A stop longer than one token is
        found at its last one; an earlier hit has ended the output already."""
        if not self._stops:
            return False
        text = self._decode(output[-self._tail_tokens :])
        return any(stop in text for stop in self._stops)


class Sequence:
    """Tokens, KV slots and progress of one request.

    tokens: prompt, then output. slots cover blocks of positions 0 .. ; `computed` leading
    tokens have KV, `published` leading blocks are cached under `keys`. received_s: when it came
    here; arrived_s: when it came to the control plane, on this clock.
    """

    def __init__(
        self, start: StartRequest, kv_secret: bytes, block_tokens: int, received_s: float
    ) -> None:
        self.start = start
        self.tokens: list[int] = list(start.prompt)
        self.output: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.keys: list[BlockKey] = split_keys(start.block_keys)
        self.slots: list[Slot] = []
        self.computed = 0
        self.published = 0
        self.cached_tokens = 0
        self.sent = 0
        self.stage = Stage.WAITING
        self.arrived_s = received_s - start.waited_s
        self.deadline_s = received_s + start.deadline_s
        self.stop_text: StopText | None = None
        self.decode_node = start.decode_node
        self.begun = False
        """Whether its first chunk has run (again, after a preemption)."""
        self.intake: Intake | None = None
        """KV that is on its way into its slots; it does not run before that is over."""
        self.expected_tokens: int | None = None
        """Tokens that are neither cached nor to be fetched, once somebody looked."""
        self.looked_up = False
        self.slots_in_use = 0
        """Blocks that are being copied out of its slots or into them."""
        self.settles = False
        """It has ended, and its branch is told once its copies are done."""
        self.leaving: list[Slot] = []
        """Slots that it gave back while they were in use."""
        self.owner = ""
        """Life and attempt of the node that handed the request over, if one did."""
        self._kv_secret = kv_secret
        self._block_tokens = block_tokens

    @property
    def request_id(self) -> str:
        return self.start.request_id

    @property
    def prompt_tokens(self) -> int:
        return len(self.start.prompt)

    @property
    def uncomputed_tokens(self) -> int:
        return len(self.tokens) - self.computed

    def blocks_needed(self, tokens: int) -> int:
        """Slots still to be taken so that positions 0 .. tokens - 1 are covered."""
        return max(0, -(-tokens // self._block_tokens) - len(self.slots))

    def usable_keys(self) -> list[BlockKey]:
        """Keys that a cache hit may serve: at least one token is left to compute."""
        return self.keys[: (len(self.tokens) - 1) // self._block_tokens]

    def append(self, token: int, logprob: TokenLogprob | None) -> None:
        self.tokens.append(token)
        self.output.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)

    def extend_keys(self) -> None:
        """Key every full block of what is computed."""
        if len(self.keys) < self.computed // self._block_tokens:
            self.keys = extend_keys(
                self._kv_secret,
                self.keys,
                self.start.root_key,
                self.tokens[: self.computed],
                self._block_tokens,
            )

    def finish_reason(self, eos_ids: frozenset[int], context_tokens: int) -> str | None:
        """Why the output ends with its last token, None if it goes on."""
        sampling = self.start.sampling
        last = self.output[-1]
        forced = len(self.output) <= len(sampling.forced)
        if not forced and (
            last in sampling.stop_token_ids or (last in eos_ids and not sampling.ignore_eos)
        ):
            return FinishReason.STOP
        if not forced and self.stop_text is not None and self.stop_text.hit(self.output):
            return FinishReason.STOP
        if len(self.output) >= sampling.max_tokens or len(self.tokens) >= context_tokens:
            return FinishReason.LENGTH
        return None

    def forget_kv(self) -> None:
        """The slots are gone: prompt and output are to be computed again (preemption)."""
        self.slots = []
        self.computed = self.published = 0
        self.expected_tokens = None
        self.begun = False


def split_keys(packed: bytes) -> list[BlockKey]:
    """16-byte keys from their concatenation. Raises ValueError on a ragged length."""
    if len(packed) % 16:
        raise ValueError(f"block keys must be multiples of 16 bytes, not {len(packed)}")
    return [packed[i : i + 16] for i in range(0, len(packed), 16)]


def seeded(start: StartRequest, seed: int) -> StartRequest:
    """`start` with a sampling seed; its own if it has one."""
    if start.sampling.seed is not None:
        return start
    return msgspec.structs.replace(
        start, sampling=msgspec.structs.replace(start.sampling, seed=seed)
    )
