"""What of a node's times depends on the mix of requests, and is measured all the while."""

from __future__ import annotations

import msgspec

from evctl.core.events import IterationSample

DECAY = 0.98
"""Weight that an iteration, or a request, keeps at each later one: about the last 50 count."""


class Mix(msgspec.Struct):
    """Decayed sums. Of prefill iterations that left work behind: how many, and their tokens. Of
    cached tokens: those that were restored from host memory, and all."""

    iterations: float = 0.0
    tokens: float = 0.0
    restored: float = 0.0
    cached: float = 0.0

    def began(self, cached_tokens: int) -> None:
        """A request's prefill began with so many tokens of its prompt cached."""
        self.restored *= DECAY
        self.cached = self.cached * DECAY + cached_tokens

    def observe(self, sample: IterationSample, *, more_waits: bool) -> None:
        """An iteration ended. more_waits: prompt tokens are left to compute, so that this one was
        as full as the node makes them: only those tell what an iteration holds when it is busy."""
        self.restored += sample.restored_tokens
        if more_waits and sample.prefill_tokens:
            self.iterations = self.iterations * DECAY + 1.0
            self.tokens = self.tokens * DECAY + sample.prefill_tokens

    @property
    def tokens_per_iteration(self) -> float:
        """m of section 4; 0 while no busy iteration was seen."""
        return self.tokens / self.iterations if self.iterations else 0.0

    @property
    def restored_share(self) -> float:
        """Of cached tokens, 0 to 1."""
        return min(1.0, self.restored / self.cached) if self.cached else 0.0
