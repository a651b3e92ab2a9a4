"""One eviction order on one timeline: how much reuse is lost."""

from __future__ import annotations

import math

import msgspec

from evctl.bench.eviction.timeline import NEVER, Event, Timeline
from evctl.policy.eviction import Belady, EvictionOrder, Key, RefClass, make_order

BELADY = "belady"


class Loss(msgspec.Struct, frozen=True):
    """Blocks of the measured prompts that had been computed before, and how many of those were
    not in the pool; evicted: blocks of the whole run."""

    reusable_blocks: int
    lost_blocks: int
    evicted_blocks: int

    @property
    def share(self) -> float:
        """Lost of reusable."""
        return self.lost_blocks / self.reusable_blocks if self.reusable_blocks else 0.0


def simulate(timeline: Timeline, policy: str, pool_share: float) -> Loss:
    """pool_share: size of the pool as a share of the mean live working set."""
    pool_blocks = int(pool_share * timeline.live_blocks)
    if policy == BELADY:
        future = _Future(timeline)
        return _Run(timeline, Belady(future.next_use), pool_blocks, future).run()
    return _Run(timeline, make_order(policy, pool_blocks), pool_blocks, None).run()


class _Future:
    """Tells Belady's rule what the timeline holds."""

    def __init__(self, timeline: Timeline) -> None:
        self._next_use = timeline.next_use
        self._upcoming = [NEVER] * len(timeline.blocks)

    def turn(self, event: Event) -> None:
        for place, stretch in enumerate(event.path, event.slot):
            self._upcoming[stretch] = self._next_use[place]

    def next_use(self, key: Key) -> float:
        assert isinstance(key, int)
        found = self._upcoming[key]
        return math.inf if found == NEVER else found


class _Run:
    """The pool takes a prompt's missing blocks in, then gives up what is too much.

    Blocks of the prompt itself may go: that they were not worth keeping is for the order to say.
    """

    def __init__(
        self, timeline: Timeline, order: EvictionOrder, pool_blocks: int, future: _Future | None
    ) -> None:
        self._timeline = timeline
        self._order = order
        self._pool_blocks = pool_blocks
        self._future = future
        self._held = bytearray(len(timeline.blocks))
        self._reusable = self._lost = self._evicted = 0

    def run(self) -> Loss:
        order = self._order
        for epoch, event in enumerate(self._timeline.events, 1):
            if event.kind == 0:
                self._request(event)
            else:
                order.settle(event.branch, event.time_s, event.ending)
                if event.last:
                    order.end(event.branch, event.time_s)
            if event.dropped:
                order.classify(epoch, event.dropped, RefClass.UNREFERENCED)
            if event.taken:
                order.classify(epoch, event.taken, RefClass.LIVE)
            if order.total_blocks > self._pool_blocks:
                self._shrink(event.time_s)
        return Loss(self._reusable, self._lost, self._evicted)

    def _request(self, event: Event) -> None:
        held, blocks, path = self._held, self._timeline.blocks, event.path
        missing = [place for place, stretch in enumerate(path) if not held[stretch]]
        if event.time_s >= self._timeline.load.measure_from_s:
            hit = min(missing[0], event.seen) if missing else event.seen
            self._reusable += sum(blocks[stretch] for stretch in path[: event.seen])
            self._lost += sum(blocks[stretch] for stretch in path[hit : event.seen])
        if self._future is not None:
            self._future.turn(event)
        # Deepest first: for orders that go by arrival alone this is the kindest way.
        for place in reversed(missing):
            stretch = path[place]
            depth = self._timeline.depths[stretch]
            self._order.insert(stretch, depth, blocks[stretch])
            held[stretch] = 1
        self._order.access(event.branch, path, event.time_s)

    def _shrink(self, now_s: float) -> None:
        blocks = self._timeline.blocks
        for key in self._order.victims(self._order.total_blocks - self._pool_blocks, now_s):
            assert isinstance(key, int)
            self._held[key] = 0
            self._evicted += blocks[key]
