"""Bounds of the loop and of what it uses."""

from __future__ import annotations

import msgspec

from evengine.blockstore import KeepLimits
from evengine.fetch.limits import FetchLimits
from evengine.inbound import ArrivalLimits
from evengine.push import PushLimits


class LoopLimits(msgspec.Struct, frozen=True):
    """chunk_tokens: prompt tokens in one iteration. max_running: decodes in one batch.
    max_waiting: requests that may queue here. admit_ahead_s: a request gets its blocks of L1
    once no more than so many seconds of work are before it: time to bring its KV in, and not so
    long that those far back in the queue push out what others use. shortest_first,
    prefill_ageing: see order.py. keep: L1 to L2; fetch: L2 and peers to L1."""

    chunk_tokens: int = 512
    max_running: int = 64
    max_waiting: int = 1024
    admit_ahead_s: float = 1.0
    shortest_first: bool = False
    prefill_ageing: float = 0.1
    push: PushLimits = PushLimits()
    arrival: ArrivalLimits = ArrivalLimits()
    keep: KeepLimits = KeepLimits()
    fetch: FetchLimits = FetchLimits()
