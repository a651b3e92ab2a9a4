"""All KV that moves: pushed to a decode node, taken over from a prefill node, fetched, lent, kept.

What the loop asks of every one of these, asked once.
"""

from __future__ import annotations

from evctl.core.events import FetchAheadEnded
from evctl.wire.messages import (
    BlocksLanded,
    BlocksVerified,
    FetchAhead,
    HandOver,
    HandOverResult,
    KvFetched,
    KvGranted,
    KvLocated,
    KvRefused,
    LocateKv,
    ReleaseKv,
    ReserveKv,
)
from evengine.blockstore import BlockStore
from evengine.fetch.fetcher import Fetcher
from evengine.fetch.lender import Lender
from evengine.fetch.limits import FetchLimits
from evengine.inbound import Inbound
from evengine.outbound import Outbound
from evengine.outlet import Counters, Outlet
from evengine.pool.copier import Copier
from evengine.ports import Clock, PeerHandler, Transfer
from evengine.request import Sequence


class Traffic:
    """copier and fetcher are None on a node without L2."""

    def __init__(
        self,
        *,
        boot_id: str,
        store: BlockStore,
        copier: Copier | None,
        transfer: Transfer,
        outlet: Outlet,
        clock: Clock,
        counters: Counters,
        inbound: Inbound,
        outbound: Outbound,
        limits: FetchLimits,
    ) -> None:
        self.inbound = inbound
        self.outbound = outbound
        self.lender = Lender(boot_id, store.pool, outlet, clock, counters)
        self.fetcher: Fetcher | None = None
        self._copier = copier
        self._transfer = transfer
        self._outlet = outlet
        self._clock = clock
        self._longest_s = 0.0
        """CPU time of the longest call of take(): nobody else on this node goes on meanwhile."""
        if store.pool is not None and copier is not None:
            self.fetcher = Fetcher(
                boot_id=boot_id,
                store=store,
                pool=store.pool,
                copier=copier,
                transfer=transfer,
                outlet=outlet,
                clock=clock,
                counters=counters,
                limits=limits,
            )

    @property
    def polled(self) -> bool:
        """Whether a copy is under way that no message announces."""
        return self.outbound.busy or (self.fetcher is not None and self.fetcher.busy)

    @property
    def under_way(self) -> int:
        """Whoever counts on this node, requests aside: arrivals, fetches, blocks on their way
        to L2."""
        fetches = self.fetcher.count if self.fetcher is not None else 0
        copies = self._copier.blocks_under_way if self._copier is not None else 0
        return self.inbound.count + fetches + copies

    def take(self, now_s: float) -> None:
        """Take in what was copied, and give up what took too long."""
        started_s = self._clock.thread_cpu_s()
        self._take(now_s)
        self._longest_s = max(self._longest_s, self._clock.thread_cpu_s() - started_s)

    def _take(self, now_s: float) -> None:
        if self._copier is not None:
            self._copier.poll()
        outcomes = self._transfer.poll()
        self.outbound.on_outcomes(outcomes)
        self.outbound.tick(now_s)
        self.inbound.tick(now_s)
        self.lender.tick(now_s)
        if self.fetcher is not None:
            self.fetcher.on_outcomes(outcomes)
            self.fetcher.tick(now_s)

    def peer_lost(self, node: str, boot_id: str) -> None:
        self._transfer.disconnect(node, boot_id)
        self.outbound.peer_lost(node, boot_id)
        self.inbound.peer_lost(node, boot_id)
        self.lender.peer_lost(node, boot_id)
        if self.fetcher is not None:
            self.fetcher.peer_lost(node, boot_id)

    def peer_handlers(self) -> dict[type, PeerHandler]:
        """What to do with peers' messages about KV, by type."""
        inbound, outbound, lender = self.inbound, self.outbound, self.lender
        handlers: dict[type, PeerHandler] = {
            ReserveKv: inbound.on_reserve,
            BlocksLanded: inbound.on_landed,
            HandOver: inbound.on_handover,
            ReleaseKv: inbound.on_release,
            KvGranted: outbound.on_granted,
            KvRefused: outbound.on_refused,
            BlocksVerified: outbound.on_verified,
            HandOverResult: outbound.on_result,
            LocateKv: lender.on_locate,
            KvFetched: lender.on_fetched,
        }
        if self.fetcher is not None:
            handlers[KvLocated] = self.fetcher.flights.on_located
        return handlers

    # ------------------------------------------------------------ a request's KV

    def arrived(self, seq: Sequence) -> None:
        if self.fetcher is not None:
            self.fetcher.arrived(seq)

    def admitted(self, seq: Sequence) -> None:
        if self.fetcher is not None:
            self.fetcher.admitted(seq)

    def may_run(self, seq: Sequence) -> None:
        if self.fetcher is not None:
            self.fetcher.could_run(seq, self._clock.now_s())

    def forget(self, seq: Sequence) -> None:
        if self.fetcher is not None:
            self.fetcher.cancel(seq)

    def fetch_ahead(self, message: FetchAhead) -> None:
        """Fetch KV for a branch that is about to wake."""
        if self.fetcher is not None:
            self.fetcher.fetch_ahead(message)
            return
        missed = sum(max(0, piece.end - piece.start) for piece in message.pieces)
        self._outlet.fact(FetchAheadEnded(message.ticket, (), 0.0, missed, "no_room"))

    # ------------------------------------------------------------ questions

    def gauges(self) -> dict[str, float]:
        """Present sizes, and sums that are not whole numbers, for heartbeats."""
        found: dict[str, float] = {
            "loans": self.lender.count,
            "pool_cpu_max_ms": self._longest_s * 1e3,
        }
        if self.fetcher is not None:
            found |= {
                "fetch_bytes_in_flight": self.fetcher.flights.bytes_in_flight,
                "fetch_s_total": self.fetcher.fetch_s,
                "fetch_exposed_s_total": self.fetcher.exposed_s,
            }
        return found

    def check_integrity(self) -> list[str]:
        return self.fetcher.check_integrity() if self.fetcher is not None else []
