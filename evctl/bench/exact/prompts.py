"""Prompts of mixed length, long enough to be split between sources."""

from __future__ import annotations

import random

LENGTHS = (
    34,
    47,
    48,
    49,
    63,
    64,
    65,
    80,
    95,
    97,
    127,
    128,
    129,
    160,
    200,
    255,
    256,
    257,
    300,
    513,
)
"""Tokens: around multiples of a block, of an attention tile and of a prefill chunk. The shortest
has two blocks that can be reused, so that every prompt can take every path."""
SEED = 20261204


def random_prompts(count: int, vocab_size: int, seed: int = SEED) -> list[list[int]]:
    """`count` prompts, all lengths in turn, in an order that mixes them."""
    rng = random.Random(seed)
    lengths = [LENGTHS[at % len(LENGTHS)] for at in range(count)]
    rng.shuffle(lengths)
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]
