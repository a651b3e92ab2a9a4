"""What a replay is asked to do, and which agent plays what."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from fractions import Fraction

import msgspec

from evctl.core.errors import UsageError
from evctl.trace.content import DEFAULT_VOCAB
from evctl.trace.schema import Conversation, Trace


class RetryPolicy(msgspec.Struct, frozen=True):
    """What to do on 429: wait as the server asks, up to longest_s, at most `attempts` times."""

    attempts: int = 60
    longest_s: float = 30.0


class ReplayOptions(msgspec.Struct, frozen=True):
    """How to replay.

    start: share of a first conversation's main branch that an agent skips, drawn between the two.
    A pause is recorded * time_scale, at most gap_cap_s (None: no cap). max_requests: stop sending
    after so many; None: until every conversation was played once. verify_every: send a probe
    after every Nth request (0: none). request_timeout_s: then a request has failed. run: goes into
    the names of branches, for a target remembers those that ended: a replay with the names of an
    earlier one would be served and count nowhere.
    """

    agents: int
    scale: Fraction = Fraction(1, 16)
    seed: int = 0
    start: tuple[float, float] = (0.25, 0.75)
    gap_cap_s: float | None = 30.0
    time_scale: float = 1.0
    max_requests: int | None = None
    verify_every: int = 0
    exact: bool = True
    vocab: tuple[int, int] = DEFAULT_VOCAB
    retry: RetryPolicy = RetryPolicy()
    request_timeout_s: float = 900.0
    run: str = ""

    def __post_init__(self) -> None:
        checks = [
            (self.agents >= 1, "there must be at least one agent"),
            (self.max_requests is None or self.max_requests >= 1, "max_requests must be above 0"),
            (self.time_scale >= 0, "time_scale must not be negative"),
            (self.gap_cap_s is None or self.gap_cap_s >= 0, "gap_cap_s must not be negative"),
            (self.verify_every >= 0, "verify must not be negative"),
            (0 <= self.start[0] <= self.start[1] <= 1, "start lies between 0 and 1"),
        ]
        for holds, why in checks:
            if not holds:
                raise UsageError(
                    what="cannot replay so",
                    why=why,
                    next_step="see `evctl trace replay --help`",
                    code="EV-1606",
                )


class Assignment(msgspec.Struct, frozen=True):
    """One conversation of one agent. instance: tells replays of one conversation apart."""

    agent: int
    conversation: Conversation
    instance: int
    start: int


def assignments(trace: Trace, options: ReplayOptions, agent: int) -> Iterator[Assignment]:
    """What an agent plays, first to last; without end where max_requests sets the end.

    Agent a plays a, a + N, a + 2N, ... of a shuffled list of all conversations. The list is
    played once (or as often as gives every agent one), or again and again.
    """
    order = list(trace.conversations)
    random.Random(f"evctl-replay-{options.seed}").shuffle(order)
    share = random.Random(f"evctl-replay-{options.seed}-{agent}").uniform(*options.start)
    end = max(len(order), options.agents) if options.max_requests is None else None
    for place in itertools.count(agent, options.agents):
        if end is not None and place >= end:
            return
        conversation = order[place % len(order)]
        length = len(conversation.root.requests)
        start = min(int(share * length), length - 1) if place == agent else 0
        yield Assignment(agent, conversation, place // len(order), start)
