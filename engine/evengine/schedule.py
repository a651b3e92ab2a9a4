"""What runs next: the checks of a new request, and the batch of one iteration."""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Seq

from evctl.core.blocks import BlockKey, block_keys
from evctl.core.errors import EvctlError
from evctl.wire.messages import HandOver, StartRequest
from evengine.blockstore import BlockStore
from evengine.ports import Batch, DecodeRow, Draw, Executor, PrefillChunk
from evengine.request import Sequence


class RequestRefusedError(EvctlError):
    """A request that this engine does not take; nothing has changed."""


def check_request(
    start: StartRequest,
    *,
    known: bool,
    waiting: int,
    max_waiting: int,
    executor: Executor,
    total_blocks: int,
    kv_secret: bytes,
) -> None:
    """Raise RequestRefusedError if a request can never run here, or not now."""
    layout = executor.layout
    prompt_tokens = len(start.prompt)
    most_tokens = min(prompt_tokens + start.sampling.max_tokens, executor.context_tokens)
    most_blocks = layout.blocks_for(most_tokens)
    if known:
        _refuse(start, "EV-2301", "a request with this id is running here", "use a fresh id")
    if not prompt_tokens:
        _refuse(start, "EV-2302", "the prompt is empty", "send at least one token")
    if prompt_tokens >= executor.context_tokens:
        _refuse(
            start,
            "EV-2303",
            f"the prompt has {prompt_tokens} tokens, the context holds {executor.context_tokens} "
            "with the output",
            "shorten the prompt",
        )
    if min(start.prompt) < 0 or max(start.prompt) >= executor.vocab_size:
        _refuse(
            start,
            "EV-2304",
            f"a token id is outside 0..{executor.vocab_size - 1}",
            "tokenise with this model's tokenizer",
        )
    if any(not 0 <= token < executor.vocab_size for token in start.sampling.forced):
        _refuse(start, "EV-2304", "a forced token id is outside the vocabulary", "check the trace")
    if len(start.block_keys) != 16 * (prompt_tokens // layout.block_tokens):
        _refuse(
            start,
            "EV-2305",
            f"{len(start.block_keys)} bytes of block keys do not match {prompt_tokens} tokens in "
            f"blocks of {layout.block_tokens}",
            "send 16 bytes for each full block",
        )
    if most_blocks > total_blocks:
        _refuse(
            start,
            "EV-2306",
            f"prompt and output take up to {most_blocks} blocks, this node has {total_blocks}",
            "lower max_tokens, or give the node more L1 blocks",
        )
    if start.block_keys != b"".join(
        block_keys(kv_secret, start.root_key, start.prompt, layout.block_tokens)
    ):
        # a wrong key would serve this prompt's KV to another prompt
        _refuse(
            start,
            "EV-2308",
            "the block keys are not those of the prompt",
            "hash the prompt with this cluster's KV secret and the request's root key",
        )
    if not start.deadline_s > 0:
        _refuse(start, "EV-2309", f"a deadline of {start.deadline_s} s", "send a positive one")
    if not 0 <= start.waited_s < math.inf:
        _refuse(
            start, "EV-2309", f"it waited {start.waited_s} s", "send the seconds since it came"
        )
    if waiting >= max_waiting:
        _refuse(start, "EV-2307", f"{waiting} requests are queued here", "try again later")


def handover_fault(message: HandOver, vocab_size: int) -> str:
    """What is wrong with what a hand-over carries beside its request, or ""."""
    sampling = message.request.sampling
    if len(message.generated) != 1 or not 0 <= message.generated[0] < vocab_size:
        return "a hand-over carries exactly one generated token of the vocabulary"
    if sampling.temperature > 0 and sampling.seed is None:
        return "a sampled request is handed over with its seed"
    if len(message.logprobs) != (0 if sampling.logprobs is None else 1):
        return "the logprobs are not those of the generated token"
    return ""


def _refuse(start: StartRequest, code: str, why: str, next_step: str) -> None:
    raise RequestRefusedError(
        what=f"request {start.request_id} is not accepted", why=why, next_step=next_step, code=code
    )


def choose_prefills(
    prefilling: Seq[Sequence],
    store: BlockStore,
    chunk_tokens: int,
    may_run: Callable[[Sequence], None],
) -> list[Sequence]:
    """Who computes in this iteration, first come first served. One whose next block another
    computes at this moment waits for it: forks that arrive together share their prefix. One
    whose KV is still to come is left out. may_run(seq) hears of each whose turn has come."""
    left = chunk_tokens
    computing: set[BlockKey] = set()
    chosen = []
    for seq in prefilling:
        if left <= 0:
            break
        may_run(seq)
        if seq.intake is not None:
            continue
        store.extend_prefix(seq)
        if set(seq.usable_keys()[seq.published : seq.published + 1]) & computing:
            continue
        count = min(left, seq.uncomputed_tokens)
        left -= count
        end = (seq.computed + count) // store.layout.block_tokens
        computing.update(seq.keys[seq.published : end])
        chosen.append(seq)
    return chosen


class PhaseTurns:
    """Whether prefill and decode share iterations. In warm-up they take turns where both have
    work, for an iteration of both kinds tells nothing of either's fixed cost; so neither waits
    for more than one iteration of the other."""

    def __init__(self) -> None:
        self._apart = False
        self._prefilled = False
        """Whether the last iteration was a prefill."""

    def switch(self, on: bool) -> None:
        """Take turns from now on, or share again."""
        self._apart = on

    def choose(
        self, prefilling: list[Sequence], decoding: list[Sequence]
    ) -> tuple[list[Sequence], list[Sequence]]:
        """Who runs now, of those who could."""
        if self._apart and prefilling and decoding:
            prefilling, decoding = ([], decoding) if self._prefilled else (prefilling, [])
        self._prefilled = bool(prefilling)
        return prefilling, decoding


def build_batch(
    prefilling: Seq[Sequence], decoding: Seq[Sequence], chunk_tokens: int
) -> Batch | None:
    """One iteration: all decodes, and up to `chunk_tokens` prompt tokens, first come first."""
    chunks: list[PrefillChunk] = []
    draws: list[Draw] = []
    left = chunk_tokens
    for seq in prefilling:
        count = min(left, seq.uncomputed_tokens)
        if not count:
            break
        left -= count
        end = seq.computed + count
        last = end == len(seq.tokens)
        chunks.append(
            PrefillChunk(
                request_id=seq.request_id,
                tokens=seq.tokens[seq.computed : end],
                start=seq.computed,
                slots=seq.slots,
                sample=last,
            )
        )
        if last:
            draws.append(_draw(seq))
    rows = [
        DecodeRow(
            request_id=seq.request_id,
            token=seq.tokens[seq.computed],
            position=seq.computed,
            slots=seq.slots,
        )
        for seq in decoding
    ]
    draws.extend(_draw(seq) for seq in decoding)
    return Batch(chunks=chunks, rows=rows, draws=draws) if chunks or rows else None


def _draw(seq: Sequence) -> Draw:
    return Draw(sampling=seq.start.sampling, index=len(seq.output))
