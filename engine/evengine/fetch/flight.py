"""One block on its way, who waits for it, and a batch of blocks that one peer is asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from evctl.core.blocks import BlockKey
from evctl.policy.eviction import RefClass
from evctl.wire.messages import PeerInfo
from evengine.ports import Slot


class Waiter(Protocol):
    """Somebody who waits for blocks. request_id: "" for nobody's."""

    request_id: str
    at_most: RefClass
    """Class of blocks that may be evicted for its sake."""

    def arrived(self, flight: Flight, node: str) -> None: ...

    def lost(self, flight: Flight, cause: str) -> None: ...


class FlightState(Enum):
    QUEUED = "queued"
    UNDER_WAY = "under way"
    OVER = "over"


class Flight:
    """One block on its way. nodes: whom to ask, the next in front. silent_s: since when none of
    them answers. failed: whether a read of it has failed."""

    __slots__ = ("depth", "failed", "key", "nodes", "parent", "silent_s", "state", "waiters")

    def __init__(self, key: BlockKey, parent: BlockKey, depth: int, nodes: Sequence[str]) -> None:
        self.key = key
        self.parent = parent
        self.depth = depth
        self.nodes = deque(nodes)
        self.state = FlightState.QUEUED
        self.silent_s: float | None = None
        self.failed = False
        self.waiters: dict[Waiter, None] = {}


class Batch:
    """Blocks that one peer is asked for in one go. slots: ours, once it has said where its are;
    generations: of its slots."""

    def __init__(self, attempt: int, peer: PeerInfo, flights: list[Flight]) -> None:
        self.attempt = attempt
        self.peer = peer
        self.flights = flights
        self.slots: list[Slot] = []
        self.generations: list[int] = []
        self.answer_by_s = 0.0
        self.bytes = 0
