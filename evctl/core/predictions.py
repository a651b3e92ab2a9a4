"""How far predictions were off: part of a cluster's status."""

from __future__ import annotations

from typing import Final

import msgspec

PREDICTED: Final = ("ttft", "wait", "service", "fetch", "throughput")


class ErrorStatus(msgspec.Struct, frozen=True):
    """Of the last `count` predictions of one thing. Relative errors are |predicted - actual| over
    the actual value (of a wait, over the time to the first token that it is a part of: most waits
    are next to nothing): their median and 90th percentile. bias: the sum of the predicted over
    the sum of the actual values, minus 1: above 0, too much is expected."""

    count: int
    median: float
    p90: float
    bias: float


class PredictionStatus(msgspec.Struct, frozen=True):
    """Seconds of requests from their last dispatch: to the first token (ttft), to the start of
    prefill (wait), from there to the first token (service), of KV from peers (fetch); requests a
    second of a split over a window of the planner's (throughput). None before there was one."""

    ttft: ErrorStatus | None = None
    wait: ErrorStatus | None = None
    service: ErrorStatus | None = None
    fetch: ErrorStatus | None = None
    throughput: ErrorStatus | None = None
