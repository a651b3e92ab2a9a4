"""Coefficients of the execution-time model of one node (paper section 4.2, Eq. 1 and 2)."""

from __future__ import annotations

import math

import msgspec

TERMS = ("c0", "c1", "c2", "c3", "d0", "d1", "d2", "d3")
"""Of Coefficients and its errors, in this order."""


def finite(error: float) -> float | None:
    """A standard error as JSON has it: null for an infinite one."""
    return error if math.isfinite(error) else None


class Coefficients(msgspec.Struct, frozen=True):
    """Seconds of an iteration.

    Prefill: c0_s + c1_s * uncached tokens + c2_s * query-key pairs + c3_s * restored tokens.
    Decode of B requests: d0_s + d1_s * phi(B) + d2_s * B, phi(B) = 1 - (1 - k/E)^(t_fwd * B) with
    k = experts_per_token, E = experts, t_fwd = forwarded_tokens; a dense model (experts 0) has no
    d1_s, for its phi is 1. Beside the paper's terms, d3_s for each token of context that the batch
    attends to (0 where that term is not fitted; decision 011); context_tokens: those of a request
    on average over the windows, for whoever does not know them better.

    errors: standard error of each of TERMS in its unit; infinite where the data cannot tell
    (then named in `unidentified`). windows: those fitted, prefill and decode. residual: median
    of |predicted - measured| / measured over the windows that were fitted.
    """

    c0_s: float
    c1_s: float
    c2_s: float
    c3_s: float
    d0_s: float
    d1_s: float
    d2_s: float
    experts: int = 0
    experts_per_token: int = 0
    forwarded_tokens: float = 1.0
    errors: tuple[float, ...] = ()
    unidentified: tuple[str, ...] = ()
    windows: tuple[int, int] = (0, 0)
    residual: float = 0.0
    d3_s: float = 0.0
    context_tokens: float = 0.0

    def phi(self, batch: float) -> float:
        """Share of the experts that a batch of so many requests touches; 1 for a dense model."""
        if not self.experts:
            return 1.0
        missed = 1.0 - self.experts_per_token / self.experts
        return float(1.0 - missed ** (self.forwarded_tokens * batch))

    def prefill_s(self, uncached_tokens: float, pairs: float, restored_tokens: float) -> float:
        """One prefill iteration (Eq. 1)."""
        return (
            self.c0_s
            + self.c1_s * uncached_tokens
            + self.c2_s * pairs
            + self.c3_s * restored_tokens
        )

    def decode_s(self, batch: float, context_tokens: float | None = None) -> float:
        """One decode iteration of `batch` requests (Eq. 2) that attend to `context_tokens` in
        all; None: to as many each as those that were fitted."""
        if context_tokens is None:
            context_tokens = batch * self.context_tokens
        paper_s = self.d0_s + self.d1_s * self.phi(batch) + self.d2_s * batch
        return paper_s + self.d3_s * context_tokens
