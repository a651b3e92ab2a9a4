"""What one request asks of a node (paper section 4.2)."""

from __future__ import annotations

import msgspec


class Workload(msgspec.Struct, frozen=True):
    """The paper's four numbers of a request, in tokens."""

    uncached_tokens: float
    cached_tokens: float
    output_tokens: float
    accepted_per_iteration: float = 1.0

    @property
    def attention_pairs(self) -> float:
        """Query-key pairs of a causal prefill: t_uc * t_c + t_uc * (t_uc + 1) / 2 (Eq. 1)."""
        return attention_pairs(self.uncached_tokens, self.cached_tokens)


def attention_pairs(uncached_tokens: float, cached_tokens: float) -> float:
    """Pairs that `uncached_tokens` new tokens attend to after `cached_tokens` old ones."""
    return uncached_tokens * cached_tokens + uncached_tokens * (uncached_tokens + 1) / 2
