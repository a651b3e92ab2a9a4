"""Iterations that take as long as hardware that is not here: to study many nodes on few cores.

The inner executor computes as ever (a small model, so that it takes next to nothing), and then the
iteration lasts until its time is over. All else is real: processes, sockets, KV and its moves.
What it is paced by is richer than what evctl fits: small chunks are inefficient, decode slows
with the context, and every iteration has noise of its own. So nothing that learns is shown its own
form.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import msgspec

from evctl.core.kv import KvLayout
from evctl.core.workload import attention_pairs
from evengine.ports import Batch, Executor, Sampled


class Pace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of an iteration: fixed, for each new token of a prompt, each query-key pair, each
    request that decodes, and each thousand tokens of their contexts. half_tokens: a chunk of so
    many tokens takes twice as long a token as a large one. noise: standard deviation of the
    logarithm of an iteration's time."""

    prefill_s: float = 0.0
    token_s: float = 0.0
    pair_s: float = 0.0
    decode_s: float = 0.0
    request_s: float = 0.0
    context_s: float = 0.0
    half_tokens: float = 0.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        if min(msgspec.structs.astuple(self)) < 0:
            raise ValueError("no part of a pace is below 0")

    def iteration_s(self, batch: Batch) -> float:
        """Without noise. A mixed iteration pays both phases' work and the larger fixed cost."""
        tokens = sum(len(chunk.tokens) for chunk in batch.chunks)
        pairs = sum(attention_pairs(len(chunk.tokens), chunk.start) for chunk in batch.chunks)
        context_tokens = sum(row.position + 1 for row in batch.rows)
        fixed_s = max(
            self.prefill_s if batch.chunks else 0.0, self.decode_s if batch.rows else 0.0
        )
        return (
            fixed_s
            + self.token_s * (tokens + (self.half_tokens if batch.chunks else 0.0))
            + self.pair_s * pairs
            + self.request_s * len(batch.rows)
            + self.context_s * context_tokens / 1000
        )


class PacedExecutor:
    """An Executor around another one. Its iterations say how long they took (`Sampled.busy_s`),
    for the thread's CPU time does not."""

    def __init__(
        self,
        inner: Executor,
        pace: Pace,
        seed: int,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.layout: KvLayout = inner.layout
        self.context_tokens = inner.context_tokens
        self.vocab_size = inner.vocab_size
        self._inner = inner
        self._pace = pace
        self._draw = random.Random(seed)
        self._now_s = now_s
        self._sleep = sleep

    def run(self, batch: Batch) -> Sampled:
        started_s = self._now_s()
        sampled = self._inner.run(batch)
        # The mean of the noise is 1, so that a pace means what it says.
        noise = self._draw.lognormvariate(-(self._pace.noise**2) / 2, self._pace.noise)
        wanted_s = self._pace.iteration_s(batch) * noise
        left_s = wanted_s - (self._now_s() - started_s)
        if left_s > 0:
            self._sleep(left_s)
        return msgspec.structs.replace(sampled, busy_s=self._now_s() - started_s)
