"""How long a node waits for KV from its peers: a running estimate of latency and time a block."""

from __future__ import annotations

import msgspec

DECAY = 0.95
"""Weight that a fetch keeps at each later one: about the last 20 count."""
PRIOR_BLOCKS = 64.0
"""The prior counts as two fetches: one of no block, one of so many."""


class FetchSpeed(msgspec.Struct):
    """Decayed sums over fetches of one destination, or of all, for a least-squares line of
    seconds over blocks. What a fetch had to queue behind counts as its own blocks: that is why it
    took so long, and how the next one's time is predicted."""

    weight: float = 0.0
    blocks: float = 0.0
    seconds: float = 0.0
    blocks_squared: float = 0.0
    products: float = 0.0
    line: tuple[float, float, float] | None = None
    """What `fitted` found, until the next fetch."""

    def observe(self, blocks: int, fetch_s: float) -> None:
        """Learn from a fetch; one of no block, or that took no time, says nothing."""
        if blocks < 1 or not 0.0 < fetch_s < float("inf"):
            return
        self.weight = self.weight * DECAY + 1.0
        self.blocks = self.blocks * DECAY + blocks
        self.seconds = self.seconds * DECAY + fetch_s
        self.blocks_squared = self.blocks_squared * DECAY + blocks * blocks
        self.products = self.products * DECAY + blocks * fetch_s
        self.line = None

    def fetch_s(self, blocks: int, prior: FetchPrior) -> float:
        """Seconds for so many blocks, those that it must queue behind included; 0 for none."""
        if blocks < 1:
            return 0.0
        mean_s, block_s, mean_blocks = self.line or self.fitted(prior)
        return mean_s + block_s * (blocks - mean_blocks)

    def fitted(self, prior: FetchPrior) -> tuple[float, float, float]:
        """Mean seconds, seconds a block, mean blocks; the prior is always the same."""
        far_s = prior.latency_s + PRIOR_BLOCKS * prior.block_s
        weight = self.weight + 2.0
        mean_blocks = (self.blocks + PRIOR_BLOCKS) / weight
        mean_s = (self.seconds + prior.latency_s + far_s) / weight
        spread = (self.blocks_squared + PRIOR_BLOCKS**2) / weight - mean_blocks**2
        shared = (self.products + PRIOR_BLOCKS * far_s) / weight - mean_blocks * mean_s
        # Neither a block nor the way to it takes less than no time.
        block_s = min(max(0.0, shared / spread), mean_s / mean_blocks)
        self.line = mean_s, block_s, mean_blocks
        return self.line


class FetchPrior(msgspec.Struct, frozen=True):
    """What is assumed before any fetch was seen: seconds to the first block, and for each."""

    latency_s: float = 0.01
    block_s: float = 5e-4
