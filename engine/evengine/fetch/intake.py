"""One request's way to the KV that L1 lacks, and a fetch for nobody yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from evctl.core.blocks import BlockKey
from evctl.core.events import FetchAheadEnded, FetchEnded
from evctl.core.kv import FetchSource
from evctl.policy.eviction import RefClass
from evengine.fetch.flight import Flight
from evengine.request import Sequence


class Intake:
    """Blocks [next, end) of a request's prompt are still to come; before that they are in L1.

    restoring: a copy from L2 into its slots is under way. exposed_since_s: since when it could
    have run but for its KV. moved_s: how long any of it was on its way, that is without the time
    in which all of it lay in L2 and the request had no slots; moving_since_s: None in that time.
    asked_s: when it last began to wait for blocks from peers. refused: blocks that did not come.
    """

    at_most = RefClass.LIVE

    def __init__(
        self, seq: Sequence, first: int, end: int, now_s: float, advance: Callable[[Intake], None]
    ) -> None:
        self.seq = seq
        self.request_id = seq.request_id
        self.l1_blocks = first
        self.next = first
        self.end = end
        self.started_s = self.asked_s = now_s
        self.moving_since_s: float | None = now_s
        self.moved_s = 0.0
        self.restoring = False
        self.waits_for: set[BlockKey] = set()
        self.refused: set[BlockKey] = set()
        self.own_blocks = 0
        self.peer_blocks: Counter[str] = Counter()
        self.from_peer: dict[BlockKey, str] = {}
        self.cause = ""
        self.exposed_s = 0.0
        self.exposed_since_s: float | None = None
        self._advance = advance

    def arrived(self, flight: Flight, node: str) -> None:
        self.waits_for.discard(flight.key)
        self.from_peer[flight.key] = node
        self._advance(self)

    def lost(self, flight: Flight, cause: str) -> None:
        self.waits_for.discard(flight.key)
        self.refused.add(flight.key)
        self.cause = self.cause or cause
        self._advance(self)

    def restored(self, key: BlockKey) -> None:
        """A block has come from L2 into L1."""
        node = self.from_peer.get(key)
        if node is None:
            self.own_blocks += 1
        else:
            self.peer_blocks[node] += 1

    def expose(self, now_s: float) -> None:
        """The request could run now, and waits for its KV alone."""
        if self.exposed_since_s is None:
            self.exposed_since_s = now_s

    def move(self, now_s: float) -> None:
        """Tell whether any of it is on its way: blocks from peers, or into slots."""
        moving = bool(self.waits_for or self.seq.slots)
        if self.moving_since_s is not None and not moving:
            self.moved_s += now_s - self.moving_since_s
            self.moving_since_s = None
        elif self.moving_since_s is None and moving:
            self.moving_since_s = now_s

    def ended(self, now_s: float, block_bytes: int) -> FetchEnded:
        """What is to be told of it once it is over."""
        if self.moving_since_s is not None:
            self.moved_s += now_s - self.moving_since_s
            self.moving_since_s = None
        if self.exposed_since_s is not None:
            self.exposed_s += now_s - self.exposed_since_s
            self.exposed_since_s = None
        missed = self.end - self.next
        return FetchEnded(
            request_id=self.request_id,
            l1_blocks=self.l1_blocks,
            own_blocks=self.own_blocks,
            peers=sources_of(self.peer_blocks, block_bytes),
            fetch_s=self.moved_s,
            queued_s=now_s - self.started_s - self.moved_s,
            exposed_s=self.exposed_s,
            missed_blocks=missed,
            cause=(self.cause or "gone") if missed else "",
        )


class Ahead:
    """A fetch for a branch that is about to wake: into free room of L2, or what nobody needs."""

    request_id = ""
    at_most = RefClass.UNREFERENCED

    def __init__(self, ticket: str, now_s: float) -> None:
        self.ticket = ticket
        self.started_s = now_s
        self.waits_for: set[BlockKey] = set()
        self.peer_blocks: Counter[str] = Counter()
        self.missed = 0
        self.cause = ""

    def arrived(self, flight: Flight, node: str) -> None:
        self.waits_for.discard(flight.key)
        self.peer_blocks[node] += 1

    def lost(self, flight: Flight, cause: str) -> None:
        self.waits_for.discard(flight.key)
        self.missed += 1
        self.cause = self.cause or cause

    def ended(self, now_s: float, block_bytes: int) -> FetchAheadEnded:
        return FetchAheadEnded(
            ticket=self.ticket,
            peers=sources_of(self.peer_blocks, block_bytes),
            fetch_s=now_s - self.started_s,
            missed_blocks=self.missed,
            cause=self.cause,
        )


def sources_of(blocks: Counter[str], block_bytes: int) -> tuple[FetchSource, ...]:
    """Blocks by node as facts tell them."""
    return tuple(
        FetchSource(node, number, number * block_bytes) for node, number in sorted(blocks.items())
    )
