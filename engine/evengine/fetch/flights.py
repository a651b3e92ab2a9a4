"""Blocks on their way from peers' L2 into ours.

Each block flies once, however many requests wait for it. Batches are asked for, read one-sided,
and accepted only if header and checksum are those of the block that was asked for. A block that
one peer could not give is asked of the next that is said to hold it; after the last it is lost,
and whoever waits computes it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import count

from evctl.core.blocks import BlockKey
from evctl.policy.eviction import RefClass
from evctl.wire.messages import KvFetched, KvLocated, LocateKv
from evengine.fetch.flight import Batch, Flight, FlightState, Waiter
from evengine.fetch.limits import FetchLimits
from evengine.outlet import Counters, Outlet
from evengine.pool.arrivals import Arrivals
from evengine.pool.copier import Checked, Copier
from evengine.pool.headers import HEADER_BYTES, boot_digest
from evengine.pool.l2 import HostPool
from evengine.ports import Clock, Digest, Outcome, Piece, Slot, Transfer, TransferState

_log = logging.getLogger("evengine.fetch")


class Flights:
    """All blocks on their way to this node. One thread calls it; nothing here blocks."""

    def __init__(
        self,
        *,
        boot_id: str,
        pool: HostPool,
        copier: Copier,
        transfer: Transfer,
        outlet: Outlet,
        clock: Clock,
        counters: Counters,
        stored: Callable[[str, Sequence[Flight]], None],
        limits: FetchLimits,
    ) -> None:
        """stored(request_id, flights): blocks that are in L2 from now on, in order."""
        self._boot_id = boot_id
        self._pool = pool
        self._copier = copier
        self._transfer = transfer
        self._outlet = outlet
        self._clock = clock
        self._counters = counters
        self._stored = stored
        self._limits = limits
        self._by_key: dict[BlockKey, Flight] = {}
        self._queues: OrderedDict[Waiter, deque[Flight]] = OrderedDict()
        self._asked: dict[int, Batch] = {}
        self._reading: dict[int, Batch] = {}
        self._accepting = 0
        self._resting: deque[tuple[float, list[Slot]]] = deque()
        self._attempts = count(1)
        self.bytes_in_flight = 0
        self._digest = Digest(HEADER_BYTES, pool.block_bytes)

    @property
    def busy(self) -> bool:
        """Whether a copy is under way, which no message announces."""
        return bool(self._reading)

    @property
    def under_way(self) -> int:
        """Batches asked for, being read or being accepted."""
        return len(self._asked) + len(self._reading) + self._accepting

    def of(self, key: BlockKey) -> Flight | None:
        return self._by_key.get(key)

    # ------------------------------------------------------------ waiting

    def want(
        self,
        waiter: Waiter,
        key: BlockKey,
        parent: BlockKey,
        depth: int,
        nodes: Sequence[str],
    ) -> None:
        """Wait for a block, with whoever waits for it already; whom each would ask is asked."""
        flight = self._by_key.get(key)
        if flight is None:
            flight = self._by_key[key] = Flight(key, parent, depth, nodes)
        else:
            self._counters["fetch_blocks_shared"] += 1
            flight.nodes.extend(node for node in nodes if node not in flight.nodes)
        flight.waiters[waiter] = None
        if flight.state is FlightState.QUEUED:  # in several queues: whose turn comes first
            self._queues.setdefault(waiter, deque()).append(flight)

    def leave(self, waiter: Waiter, keys: Iterable[BlockKey]) -> None:
        """Wait no longer. What nobody waits for is not asked for; what is under way comes in."""
        for key in keys:
            flight = self._by_key.get(key)
            if flight is None or waiter not in flight.waiters:
                continue
            del flight.waiters[waiter]
            if flight.state is FlightState.QUEUED and not flight.waiters:
                self._over(flight)
        queue = self._queues.pop(waiter, None)
        for flight in queue or ():
            if flight.state is FlightState.QUEUED:  # others wait for it: it is theirs too
                self._queues.setdefault(next(iter(flight.waiters)), deque()).append(flight)

    # ------------------------------------------------------------ asking

    def pump(self, now_s: float) -> None:
        """Ask for what may be asked for now, the waiters taking turns."""
        while self._resting and self._resting[0][0] <= now_s:
            self._pool.lift(self._resting.popleft()[1])
        for batch in [b for b in self._asked.values() if b.answer_by_s <= now_s]:
            self._outlet.recheck_peer(batch.peer.node)
            self._give_up(batch, "unreachable")
        turns = len(self._queues)
        while self._queues and turns and self.bytes_in_flight < self._limits.bytes_in_flight:
            waiter = self._whose_turn()
            queue = self._queues[waiter]
            self._queues.move_to_end(waiter)
            flights = self._next_batch(queue, now_s)
            self._ask(flights, now_s)
            if not queue:
                self._queues.pop(waiter, None)
            turns = len(self._queues) if flights else turns - 1

    def _whose_turn(self) -> Waiter:
        """Requests before fetches for nobody yet."""
        return next((w for w in self._queues if w.request_id), next(iter(self._queues)))

    def _next_batch(self, queue: deque[Flight], now_s: float) -> list[Flight]:
        """The first flights of a queue that one and the same peer may be asked for; none while
        the first of them waits for its peer to answer a ping."""
        batch: list[Flight] = []
        while queue and len(batch) < self._limits.batch_blocks:
            flight = queue[0]
            if flight.state is not FlightState.QUEUED:
                queue.popleft()
                continue
            if not self._turn_to_a_peer(flight):
                if self._may_wait(flight, now_s):
                    break
                queue.popleft()
                self._lose(flight, "unreachable")
                continue
            if batch and flight.nodes[0] != batch[0].nodes[0]:
                break
            flight.state = FlightState.UNDER_WAY  # it may be in this queue twice, and in others
            batch.append(queue.popleft())
        return batch

    def _turn_to_a_peer(self, flight: Flight) -> bool:
        """Have a node that answers in front of the flight's others. False if none does now."""
        for _ in range(len(flight.nodes)):
            if self._outlet.peer(flight.nodes[0]) is not None:
                return True
            flight.nodes.rotate(-1)
        return False

    def _may_wait(self, flight: Flight, now_s: float) -> bool:
        """A peer is not spoken to until it has answered a ping, after a failed copy for example:
        that takes moments if it lives."""
        if not any(self._outlet.announced(node) for node in flight.nodes):
            return False
        if flight.silent_s is None:
            flight.silent_s = now_s
        return now_s - flight.silent_s < self._limits.answer_s

    def _ask(self, flights: list[Flight], now_s: float) -> None:
        if not flights:
            return
        node = flights[0].nodes[0]
        peer = self._outlet.peer(node)
        assert peer is not None, "asked only of peers that answer"
        batch = Batch(next(self._attempts), peer, flights)
        keys = b"".join(flight.key for flight in flights)
        message = LocateKv(self._boot_id, batch.attempt, keys, self._limits.hold_s)
        batch.bytes = len(flights) * self._pool.stride
        self.bytes_in_flight += batch.bytes
        batch.answer_by_s = now_s + self._limits.answer_s
        self._asked[batch.attempt] = batch
        if not self._outlet.to_peer(node, message):
            self._give_up(batch, "unreachable")

    # ------------------------------------------------------------ reading

    def on_located(self, node: str, message: KvLocated) -> None:
        """A peer says where its blocks lie."""
        batch = self._asked.get(message.attempt)
        if batch is None or (batch.peer.node, batch.peer.boot_id) != (node, message.boot_id):
            self._counters["late_answers"] += 1
            return
        most = batch.peer.transfer.pool_blocks
        slots, generations = message.slots, message.generations
        if len(slots) != len(batch.flights) or len(generations) != len(slots):
            self._give_up(batch, "failed")
            return
        there = [i for i, slot in enumerate(slots) if 0 <= slot < most]
        gone = [flight for i, flight in enumerate(batch.flights) if not 0 <= slots[i] < most]
        batch.flights = [batch.flights[i] for i in there]
        for flight in gone:
            self._elsewhere(flight, "gone")
        if not batch.flights:
            self._end(batch)
            return
        self._read(batch, [(slots[i], generations[i]) for i in there])

    def _read(self, batch: Batch, where: list[tuple[Slot, int]]) -> None:
        taken = self._take_slots(batch.flights)
        lost = [flight for flight, slot in zip(batch.flights, taken, strict=True) if slot is None]
        there = [at for at, slot in enumerate(taken) if slot is not None]
        batch.flights = [batch.flights[at] for at in there]
        batch.slots = [slot for slot in taken if slot is not None]
        where = [where[at] for at in there]
        for flight in lost:
            self._lose(flight, "no_room")
        if not batch.flights:
            self._end(batch)
            return
        peer, stride = batch.peer, self._pool.stride
        batch.generations = [generation for _, generation in where]
        pieces = [
            Piece(self._pool.slot_offset(ours), peer.transfer.pool_offset + slot * stride, stride)
            for ours, (slot, _) in zip(batch.slots, where, strict=True)
        ]
        ticket = self._transfer.read(
            peer.node, peer.boot_id, pieces, self._limits.transfer_s, self._digest
        )
        del self._asked[batch.attempt]
        self._reading[ticket] = batch

    def _take_slots(self, flights: Sequence[Flight]) -> list[Slot | None]:
        """A slot for each flight, for as many as there is room. What may be evicted for it is
        what whoever waits for that block may displace, not what the batch may."""
        groups: dict[RefClass, list[int]] = {}
        for at, flight in enumerate(flights):
            at_most = max(waiter.at_most for waiter in flight.waiters or (_NOBODY,))
            groups.setdefault(at_most, []).append(at)
        taken: list[Slot | None] = [None] * len(flights)
        for at_most, places in sorted(groups.items(), reverse=True):
            count = min(len(places), self._pool.room(at_most))
            slots = self._pool.take(count, self._clock.now_s(), at_most) or []
            for at, slot in zip(places, slots, strict=False):
                taken[at] = slot
        return taken

    def on_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            batch = self._reading.pop(outcome.ticket, None)
            if batch is None:
                continue
            if outcome.state is TransferState.DONE:
                self._accept(batch, outcome.checksums)
                continue
            self._counters["fetch_reads_failed"] += 1
            self._outlet.recheck_peer(batch.peer.node)
            self._free(batch, settled=outcome.settled)
            self._give_up(batch, "failed", again=True)

    def _free(self, batch: Batch, *, settled: bool) -> None:
        """Slots of a read that failed."""
        if settled:
            self._pool.give_back(batch.slots)
            return
        self._pool.rest(batch.slots)
        until_s = self._clock.now_s() + self._limits.quarantine_s
        self._resting.append((until_s, batch.slots))

    # ------------------------------------------------------------ accepting

    def _accept(self, batch: Batch, checksums: Sequence[int]) -> None:
        """checksums: of what has come, if the transfer has them: then headers are all that is
        left to look at, and nobody else's copies are waited for."""
        self._accepting += 1
        keys = [flight.key for flight in batch.flights]
        boot = boot_digest(batch.peer.boot_id)
        arrivals = Arrivals(batch.slots, keys, boot, batch.generations)
        if checksums:
            self._accepted(batch, arrivals.take_over(self._pool, checksums))
            return
        items = arrivals.items(self._pool)
        self._copier.submit(items, lambda results: self._accepted(batch, results))

    def _accepted(self, batch: Batch, results: Sequence[Checked]) -> None:
        self._accepting -= 1
        good: list[Flight] = []
        bad: list[Flight] = []
        for flight, slot, result in zip(batch.flights, batch.slots, results, strict=True):
            if result.fault:
                self._counters["fetch_blocks_corrupt"] += 1
                told = {"peer": batch.peer.node, "slot": slot, "why": result.fault}
                _log.warning("a block that was read from a peer is refused", extra=told)
                self._pool.give_back([slot])
                bad.append(flight)
                continue
            self._pool.hold(slot, flight.key, flight.parent, flight.depth, result.checksum)
            good.append(flight)
        self._counters["fetch_peer_blocks"] += len(good)
        self._counters["fetch_peer_bytes"] += len(good) * self._pool.block_bytes
        batch.flights = []
        self._end(batch)
        self._tell_stored(good)
        for flight in good:
            waiters = list(flight.waiters)
            self._over(flight)
            for waiter in waiters:
                waiter.arrived(flight, batch.peer.node)
        for flight in bad:
            self._elsewhere(flight, "corrupt")

    def _tell_stored(self, flights: list[Flight]) -> None:
        run: list[Flight] = []
        for flight in flights:
            if run and flight.parent != run[-1].key:
                self._stored(_request_of(run[0]), run)
                run = []
            run.append(flight)
        if run:
            self._stored(_request_of(run[0]), run)

    # ------------------------------------------------------------ failing

    def peer_lost(self, node: str, boot_id: str) -> None:
        """What was asked of it will not be answered; reads under way fail by themselves."""
        for batch in list(self._asked.values()):
            if (batch.peer.node, batch.peer.boot_id) == (node, boot_id):
                self._give_up(batch, "unreachable")

    def _give_up(self, batch: Batch, cause: str, *, again: bool = False) -> None:
        flights, batch.flights = batch.flights, []
        self._end(batch)
        for flight in flights:
            if again and not flight.failed:
                flight.failed = True
                flight.nodes.append(batch.peer.node)  # once, after it has answered a ping (rule 2)
            self._elsewhere(flight, cause)

    def _end(self, batch: Batch) -> None:
        """The peer need not keep the blocks in place any longer."""
        self._asked.pop(batch.attempt, None)
        self.bytes_in_flight -= batch.bytes
        batch.bytes = 0
        self._outlet.to_peer(batch.peer.node, KvFetched(self._boot_id, batch.attempt))

    def _elsewhere(self, flight: Flight, cause: str) -> None:
        """The peer in front could not give it: ask the next one, if somebody still waits."""
        flight.nodes.popleft()
        if not flight.nodes or not flight.waiters:
            self._lose(flight, cause)
            return
        self._counters["fetch_blocks_asked_again"] += 1
        flight.state = FlightState.QUEUED
        self._queues.setdefault(next(iter(flight.waiters)), deque()).append(flight)

    def _lose(self, flight: Flight, cause: str) -> None:
        waiters = list(flight.waiters)
        self._over(flight)
        for waiter in waiters:
            waiter.lost(flight, cause)

    def _over(self, flight: Flight) -> None:
        flight.state = FlightState.OVER
        flight.waiters = {}
        del self._by_key[flight.key]

    # ------------------------------------------------------------ invariants

    def check_integrity(self) -> list[str]:
        problems = []
        for key, flight in self._by_key.items():
            if flight.key != key or flight.state is FlightState.OVER:
                problems.append(f"flight of block {key.hex()} is {flight.state.value}")
            if flight.state is FlightState.QUEUED and not flight.waiters:
                problems.append(f"nobody waits for block {key.hex()}, which is queued")
        batches = [*self._asked.values(), *self._reading.values()]
        if not self._accepting and self.bytes_in_flight != sum(batch.bytes for batch in batches):
            problems.append(f"{self.bytes_in_flight} bytes are counted as in flight wrongly")
        return problems


def _request_of(flight: Flight) -> str:
    return next((waiter.request_id for waiter in flight.waiters), "")


class _Nobody:
    """Of a block that is under way and that nobody waits for any more."""

    request_id = ""
    at_most = RefClass.UNREFERENCED

    def arrived(self, flight: Flight, node: str) -> None: ...

    def lost(self, flight: Flight, cause: str) -> None: ...


_NOBODY = _Nobody()
