"""Which prompt is computed first: the first to come, or the one with the least left to compute.

Shortest first, an order is by rank: seconds of work left, plus `ageing` times the second of
arrival at the control plane, which a request keeps that another node gave back. So a prompt is
overtaken only by those that come within work / ageing seconds after it. The router predicts waits
by the same rule (evctl/policy/order.py).
"""

from __future__ import annotations

from collections.abc import Collection

from evctl.core.events import IterationSample
from evengine.blockstore import BlockStore
from evengine.request import Sequence, Stage

DECAY = 0.95
"""Weight that an iteration keeps at each later one."""


class PrefillOrder:
    """ageing: seconds of work that weigh as much as a second of waiting."""

    def __init__(self, store: BlockStore, *, shortest_first: bool, ageing: float) -> None:
        self._store = store
        self._ageing = ageing
        self._shortest_first = shortest_first
        self._busy_s = 0.0
        self._tokens = 0.0

    def observe(self, sample: IterationSample) -> None:
        """Learn what a token takes, from iterations that only prefill."""
        if sample.prefill_tokens and not sample.decode_requests:
            self._busy_s = self._busy_s * DECAY + sample.busy_s
            self._tokens = self._tokens * DECAY + sample.prefill_tokens

    @property
    def token_s(self) -> float:
        """Seconds for a prompt token; 0 before the first iteration."""
        return self._busy_s / self._tokens if self._tokens else 0.0

    def arranged(self, prefilling: Collection[Sequence]) -> list[Sequence]:
        """Those that are admitted, in the order to compute them. Called at chunk boundaries."""
        if not self._shortest_first:
            return list(prefilling)
        return sorted(prefilling, key=self._rank)

    def first(self, waiting: Collection[Sequence]) -> Sequence | None:
        """Who is admitted next. One that had begun to answer and lost its KV goes first."""
        first = next(iter(waiting), None)
        if first is None or first.output or not self._shortest_first:
            return first
        return min(waiting, key=self._rank)

    def ahead_tokens(self, seq: Sequence, prefilling: Collection[Sequence]) -> int:
        """To compute before a request that is not admitted: of those that are, that can run and
        come first."""
        tokens = sum(s.uncomputed_tokens for s in prefilling if s.intake is None)
        if self._shortest_first and tokens:
            rank = self._rank(seq)
            before = [s for s in prefilling if s.intake is None and self._rank(s) < rank]
            tokens = sum(s.uncomputed_tokens for s in before)
        return tokens

    def _rank(self, seq: Sequence) -> tuple[bool, float, float]:
        left = seq.uncomputed_tokens
        if seq.stage is Stage.WAITING or seq.intake is not None:
            left = min(left, self._expected(seq))
        return not seq.output, left * self.token_s + self._ageing * seq.arrived_s, seq.arrived_s

    def _expected(self, seq: Sequence) -> int:
        """Tokens to compute once what is cached or to be fetched is in; looked up once, for what
        others evict or store meanwhile changes little."""
        if seq.expected_tokens is None:
            held = self._store.leading(seq.usable_keys(), seq.start.fetch)
            tokens = held * self._store.layout.block_tokens
            seq.expected_tokens = len(seq.tokens) - tokens
        return seq.expected_tokens
