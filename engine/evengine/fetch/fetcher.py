"""Brings a waiting request's KV into L1: flights from peers, restores from L2, then it may run.

Work goes on between and during iterations; nothing here computes or blocks. What does not come in
time, or not whole, is computed: a fetch that fails costs time, never a request.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from evctl.core.blocks import KEY_BYTES, BlockKey
from evctl.wire.messages import FetchAhead
from evengine.blockstore import BlockStore
from evengine.fetch.flight import Flight
from evengine.fetch.flights import Flights
from evengine.fetch.intake import Ahead, Intake
from evengine.fetch.limits import FetchLimits
from evengine.fetch.plan import sources
from evengine.outlet import Counters, Outlet
from evengine.pool.copier import Checked, Copier, Restore
from evengine.pool.l2 import HeldBlock, HostPool
from evengine.ports import Clock, Outcome, Transfer
from evengine.request import Sequence as Request

MOST_AHEAD = 64


class Fetcher:
    """All intakes of this node. A request that hands in here is not runnable while
    `request.intake` is set."""

    def __init__(
        self,
        *,
        boot_id: str,
        store: BlockStore,
        pool: HostPool,
        copier: Copier,
        transfer: Transfer,
        outlet: Outlet,
        clock: Clock,
        counters: Counters,
        limits: FetchLimits,
    ) -> None:
        self._store = store
        self._pool = pool
        self._copier = copier
        self._outlet = outlet
        self._clock = clock
        self._counters = counters
        self._limits = limits
        self._intakes: dict[str, Intake] = {}
        self._aheads: dict[str, Ahead] = {}
        self.fetch_s = 0.0
        self.exposed_s = 0.0
        self.flights = Flights(
            boot_id=boot_id,
            pool=pool,
            copier=copier,
            transfer=transfer,
            outlet=outlet,
            clock=clock,
            counters=counters,
            stored=self._stored,
            limits=limits,
        )

    @property
    def busy(self) -> bool:
        """Whether a copy from a peer is under way, which no message announces."""
        return self.flights.busy

    @property
    def count(self) -> int:
        return len(self._intakes) + len(self._aheads)

    # ------------------------------------------------------------ a request's life

    def arrived(self, seq: Request) -> None:
        """A request queues: begin to fetch what of its prompt lies elsewhere."""
        self._store.touch(seq)
        if not self._limits.at_start:
            self._begin(seq, self._store.l1.peek(seq.usable_keys()))

    def admitted(self, seq: Request) -> None:
        """It has its slots, and what L1 had; what is in L2 may be copied into them."""
        intake = self._intakes.get(seq.request_id)
        if intake is None:
            if not self._limits.at_start:
                self._begin(seq, seq.published)
            return
        self._plan_again(intake)
        if intake.next >= intake.end:
            self._finish(intake)
        else:
            self._advance(intake)

    def could_run(self, seq: Request, now_s: float) -> None:
        """An iteration would take it in now."""
        if self._limits.at_start and seq.intake is None and not seq.looked_up:
            seq.looked_up = True
            self._begin(seq, seq.published)
        if seq.intake is not None:
            seq.intake.expose(now_s)

    def cancel(self, seq: Request) -> None:
        """It ends, or gives its slots back."""
        intake = self._intakes.get(seq.request_id)
        if intake is not None:
            intake.cause = "cancelled"
            self._finish(intake)

    def peer_lost(self, node: str, boot_id: str) -> None:
        self.flights.peer_lost(node, boot_id)

    # ------------------------------------------------------------ ahead of requests

    def fetch_ahead(self, message: FetchAhead) -> None:
        """Begin to fetch for a branch that has no request yet."""
        ahead = Ahead(message.ticket, self._clock.now_s())
        keys, size = message.keys, KEY_BYTES
        if len(self._aheads) >= MOST_AHEAD or message.ticket in self._aheads:
            ahead.cause = "no_room"
            self._outlet.fact(ahead.ended(ahead.started_s, self._pool.block_bytes))
            return
        self._aheads[message.ticket] = ahead
        where = sources(message.pieces, 0, len(keys) // size, self._pool.total_blocks)
        for depth, nodes in where.items():
            key = keys[depth * size : (depth + 1) * size]
            if self._pool.find(key) is None and key not in ahead.waits_for:
                parent = keys[(depth - 1) * size : depth * size] if depth else message.root_key
                ahead.waits_for.add(key)
                self.flights.want(ahead, key, parent, depth, nodes)

    # ------------------------------------------------------------ time

    def tick(self, now_s: float) -> None:
        self.flights.pump(now_s)
        for intake in list(self._intakes.values()):
            if intake.waits_for and now_s - intake.asked_s > self._limits.deadline_s:
                self._expire(intake)
            else:
                self._advance(intake)  # what it waits for may have been kept meanwhile
        for ahead in list(self._aheads.values()):
            late = now_s - ahead.started_s > self._limits.deadline_s
            if late and ahead.waits_for:
                ahead.cause = ahead.cause or "deadline"
                ahead.missed += len(ahead.waits_for)
                self.flights.leave(ahead, ahead.waits_for)
                ahead.waits_for = set()
            if not ahead.waits_for:
                del self._aheads[ahead.ticket]
                self._outlet.fact(ahead.ended(now_s, self._pool.block_bytes))

    def on_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        self.flights.on_outcomes(outcomes)

    def check_integrity(self) -> list[str]:
        problems = self.flights.check_integrity()
        for request_id, intake in self._intakes.items():
            if intake.seq.intake is not intake:
                problems.append(f"request {request_id} does not know of its fetch")
        return problems

    # ------------------------------------------------------------ inside

    def _begin(self, seq: Request, first: int) -> None:
        """Plan what is to come after the `first` blocks, and send for what peers have."""
        if seq.output:
            return  # a decode that was preempted: decode nodes do not read L2
        keys = seq.usable_keys()
        where = sources(seq.start.fetch, first, len(keys), len(keys))
        end = self._plan_end(keys, first, where)
        if end <= first:
            return
        intake = Intake(seq, first, end, self._clock.now_s(), self._advance)
        seq.intake = self._intakes[seq.request_id] = intake
        self._want(intake, first, end, where)
        self._advance(intake)

    def _plan_again(self, intake: Intake) -> None:
        """It queued perhaps for long: L1 and L2 may have lost some of what they had meanwhile,
        and others may have computed what follows. What did not come is not asked for again."""
        seq, keys = intake.seq, intake.seq.usable_keys()
        intake.next = intake.l1_blocks = first = seq.published
        intake.end = max(intake.end, first)
        where = sources(seq.start.fetch, first, len(keys), len(keys))
        if not intake.refused:
            intake.end = self._plan_end(keys, intake.end, where)
        self._want(intake, first, intake.end, where)

    def _want(
        self, intake: Intake, first: int, end: int, where: Mapping[int, tuple[str, ...]]
    ) -> None:
        """Send for the blocks [first, end) that are neither here nor on their way to L2."""
        keys = intake.seq.keys
        if not intake.waits_for:
            intake.asked_s = self._clock.now_s()
        for depth in range(first, end):
            key = keys[depth]
            if key in intake.waits_for or key in intake.refused:
                continue
            if self._pool.find(key) is not None or self._store.is_being_kept(key):
                continue
            if depth not in where and self.flights.of(key) is None:
                continue
            parent = keys[depth - 1] if depth else intake.seq.start.root_key
            intake.waits_for.add(key)
            self.flights.want(intake, key, parent, depth, where.get(depth, ()))

    def _plan_end(self, keys: Sequence[BlockKey], first: int, where: Container[int]) -> int:
        """Up to where the prompt's blocks are in L2, here or at a peer, or on their way."""
        for depth in range(first, len(keys)):
            key = keys[depth]
            if (
                self._pool.find(key) is None
                and self.flights.of(key) is None
                and not self._store.is_being_kept(key)
                and depth not in where
            ):
                return depth
        return len(keys)

    def _advance(self, intake: Intake) -> None:
        """Take in what has come, in the order of the prompt."""
        seq = intake.seq
        if seq.intake is not intake or intake.restoring:
            return
        intake.move(self._clock.now_s())
        if not seq.slots:
            return
        while intake.next < intake.end:
            key = seq.keys[intake.next]
            if self._store.adopt(seq, intake.next):
                intake.next += 1
                intake.l1_blocks += 1
            elif self._pool.find(key) is not None:
                self._restore(intake)
                return
            elif key in intake.waits_for or self._store.is_being_kept(key):
                return
            else:
                break
        self._finish(intake)

    def _restore(self, intake: Intake) -> None:
        """Copy the blocks that L2 has next into the request's slots."""
        seq = intake.seq
        pinned: list[HeldBlock] = []
        for depth in range(
            intake.next, min(intake.end, intake.next + self._limits.restore_blocks)
        ):
            block = self._pool.pin(seq.keys[depth])
            if block is None:
                break
            pinned.append(block)
        items = [
            Restore(block.slot, seq.slots[depth], self._pool.header(block.slot, block.key))
            for depth, block in enumerate(pinned, intake.next)
        ]
        intake.restoring = True
        first = intake.next
        self._store.hold_slots(seq, len(items))
        self._copier.submit(items, lambda results: self._restored(intake, first, pinned, results))

    def _restored(
        self, intake: Intake, first: int, pinned: list[HeldBlock], results: Sequence[Checked]
    ) -> None:
        intake.restoring = False
        good = 0
        for block, result in zip(pinned, results, strict=True):
            self._pool.unpin(block)
            if result.fault:
                self._counters["l2_read_failed"] += 1
                self._pool.drop(block)
        while good < len(results) and not results[good].fault:
            good += 1
        seq = intake.seq
        alive = seq.intake is intake
        if alive:
            self._store.publish_restored(seq, first, [r.checksum for r in results[:good]])
            for block in pinned[:good]:
                intake.restored(block.key)
            intake.next += good
            if good < len(results):
                intake.cause = "corrupt"
        self._store.let_go_slots(seq, len(results))
        if alive:
            self._advance(intake)

    def _expire(self, intake: Intake) -> None:
        """What is still under way is waited for no longer."""
        intake.cause = "deadline"
        intake.refused |= intake.waits_for
        self.flights.leave(intake, intake.waits_for)
        intake.waits_for = set()
        self._advance(intake)

    def _finish(self, intake: Intake) -> None:
        """The request may run: with its KV, or computing what has not come."""
        del self._intakes[intake.request_id]
        intake.seq.intake = None
        self.flights.leave(intake, intake.waits_for)
        fact = intake.ended(self._clock.now_s(), self._pool.block_bytes)
        self.fetch_s += fact.fetch_s
        self.exposed_s += fact.exposed_s
        self._counters["fetches"] += 1
        if fact.missed_blocks:
            self._counters[f"recomputed_{fact.cause}_blocks"] += fact.missed_blocks
        self._outlet.fact(fact)

    def _stored(self, request_id: str, flights: Sequence[Flight]) -> None:
        parent = flights[0].parent
        for flight in flights:
            self._store.inherit_class(flight.key)
        self._store.tell_stored(request_id, 2, parent, [flight.key for flight in flights])
