"""What an engine says of its work, held against what can be.

An engine that measures wrongly must cost no more than its own measurements: a number that is none
would stay in every sum that it is added to, and no prediction could be compared with another.
"""

from __future__ import annotations

from typing import Final

from evctl.core.events import IterationSample

MOST_S: Final = 3600.0
"""That one iteration takes."""
MOST_TOKENS: Final = 2**32
MOST_PAIRS: Final = 2.0**64


def can_be(sample: IterationSample) -> bool:
    """Whether an iteration can have been like that. NaN is within no bounds."""
    return (
        0.0 <= sample.busy_s <= MOST_S
        and 0.0 <= sample.attention_pairs <= MOST_PAIRS
        and 0 <= sample.prefill_tokens <= MOST_TOKENS
        and 0 <= sample.restored_tokens <= MOST_TOKENS
        and 0 <= sample.decode_requests <= MOST_TOKENS
    )


def within(tokens: int, most: int) -> int:
    """A number of tokens that were told, as far as it can be."""
    return min(max(0, tokens), most)
