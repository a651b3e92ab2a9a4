"""What an engine says of its work, held against what can be.

An engine that measures wrongly must cost no more than its own measurements: a number that is none
would stay in every sum that it is added to, and no prediction could be compared with another.
"""

from __future__ import annotations

from typing import Final

from evctl.core.events import FetchAheadEnded, FetchEnded, IterationSample

MOST_S: Final = 3600.0
"""That one iteration takes, or one fetch."""
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


def fetch_can_be(fact: FetchEnded | FetchAheadEnded) -> bool:
    """Whether KV can have come like that: the request has what it says, and its times count."""
    spans = [fact.fetch_s]
    blocks = [fact.missed_blocks, *(source.blocks for source in fact.peers)]
    if isinstance(fact, FetchEnded):
        spans += fact.exposed_s, fact.queued_s
        blocks += fact.l1_blocks, fact.own_blocks
    return all(0.0 <= span <= MOST_S for span in spans) and all(
        0 <= number <= MOST_TOKENS for number in blocks
    )


def within(tokens: int, most: int) -> int:
    """A number of tokens that were told, as far as it can be."""
    return min(max(0, tokens), most)
