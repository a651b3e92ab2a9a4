"""How fast a node computes prompts: a running estimate until the cost model is fitted."""

from __future__ import annotations

import msgspec

from evctl.core.events import IterationSample

DECAY = 0.95
"""Weight that an iteration keeps at each later one: about the last 20 count."""
LEAST_TOKENS = 32.0
"""Below this much (decayed) evidence the estimate leans on the prior."""


class PrefillSpeed(msgspec.Struct):
    """Decayed sums over prefill-only iterations. Their ratio weighs an iteration by its tokens,
    so that the fixed cost of small ones does not dominate."""

    busy_s: float = 0.0
    tokens: float = 0.0

    def observe(self, sample: IterationSample) -> None:
        """Learn from an iteration, unless it also decoded: its time would not be prefill's."""
        if sample.decode_requests or sample.prefill_tokens < 1 or sample.busy_s <= 0.0:
            return
        self.busy_s = self.busy_s * DECAY + sample.busy_s
        self.tokens = self.tokens * DECAY + sample.prefill_tokens

    def token_s(self, prior_token_s: float) -> float:
        """Seconds for one uncached token. The prior counts as LEAST_TOKENS tokens."""
        return (self.busy_s + prior_token_s * LEAST_TOKENS) / (self.tokens + LEAST_TOKENS)


def pooled_token_s(speeds: list[PrefillSpeed], prior_token_s: float) -> float:
    """What a node without evidence is taken for: the mean of those that have some."""
    pooled = PrefillSpeed(sum(s.busy_s for s in speeds), sum(s.tokens for s in speeds))
    return pooled.token_s(prior_token_s)


class DecodePace(msgspec.Struct):
    """Decayed sums over decode-only iterations: what one takes on this node now."""

    busy_s: float = 0.0
    iterations: float = 0.0

    def observe(self, sample: IterationSample) -> None:
        """Learn from an iteration that only decoded."""
        if sample.prefill_tokens or sample.decode_requests < 1 or sample.busy_s <= 0.0:
            return
        self.busy_s = self.busy_s * DECAY + sample.busy_s
        self.iterations = self.iterations * DECAY + 1.0

    @property
    def iteration_s(self) -> float:
        """Seconds; 0 before the first."""
        return self.busy_s / self.iterations if self.iterations else 0.0
