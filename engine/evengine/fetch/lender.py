"""Peers that read from this node's L2: where blocks lie, and for how long they stay there."""

from __future__ import annotations

from evctl.core.blocks import KEY_BYTES
from evctl.wire.messages import KvFetched, KvLocated, LocateKv
from evengine.outlet import Counters, Outlet
from evengine.pool.l2 import HeldBlock, HostPool
from evengine.ports import Clock

MOST_KEYS = 512
MOST_LOANS = 256
"""Of one peer at a time; what it asks beyond is answered as not held."""
LONGEST_S = 30.0


class Loan:
    """Blocks that a peer's attempt may read, pinned until it says so or `until_s`."""

    def __init__(self, blocks: list[HeldBlock], until_s: float) -> None:
        self.blocks = blocks
        self.until_s = until_s


class Lender:
    """All loans. A peer that vanishes costs pins for LONGEST_S at most."""

    def __init__(
        self, boot_id: str, pool: HostPool | None, outlet: Outlet, clock: Clock, counters: Counters
    ) -> None:
        self._boot_id = boot_id
        self._pool = pool
        self._outlet = outlet
        self._clock = clock
        self._counters = counters
        self._loans: dict[tuple[str, str], dict[int, Loan]] = {}

    @property
    def count(self) -> int:
        return sum(map(len, self._loans.values()))

    def on_locate(self, node: str, message: LocateKv) -> KvLocated:
        """Where the asked blocks lie: -1 for one that is not here. What is named stays put."""
        keys = message.keys[: MOST_KEYS * KEY_BYTES]
        held = [
            self._pin(node, message, keys[at : at + KEY_BYTES])
            for at in range(0, len(keys), KEY_BYTES)
        ]
        blocks = [block for block in held if block is not None]
        if blocks and self._pool is not None:
            self._pool.order.access(None, [block.key for block in blocks], self._clock.now_s())
            # the order of comparison matters: NaN is to be 0
            hold_s = min(message.hold_s, LONGEST_S) if message.hold_s > 0.0 else 0.0
            loan = Loan(blocks, self._clock.now_s() + hold_s)
            self._loans.setdefault((node, message.boot_id), {})[message.attempt] = loan
        self._counters["loaned_blocks"] += len(blocks)
        pool = self._pool
        return KvLocated(
            boot_id=self._boot_id,
            attempt=message.attempt,
            slots=tuple(-1 if block is None else block.slot for block in held),
            generations=tuple(
                0 if block is None or pool is None else pool.generation(block.slot)
                for block in held
            ),
        )

    def on_fetched(self, node: str, message: KvFetched) -> None:
        loans = self._loans.get((node, message.boot_id), {})
        loan = loans.pop(message.attempt, None)
        if loan is not None:
            self._return(loan)

    def tick(self, now_s: float) -> None:
        for life, loans in list(self._loans.items()):
            for attempt, loan in list(loans.items()):
                if loan.until_s <= now_s:
                    self._counters["loans_expired"] += 1
                    self._return(loans.pop(attempt))
            if not loans:
                del self._loans[life]

    def peer_lost(self, node: str, boot_id: str) -> None:
        for loan in self._loans.pop((node, boot_id), {}).values():
            self._return(loan)

    def _pin(self, node: str, message: LocateKv, key: bytes) -> HeldBlock | None:
        known = self._outlet.announced(node)
        loans = self._loans.get((node, message.boot_id), {})
        if (
            self._pool is None
            or known is None
            or known.boot_id != message.boot_id
            or len(loans) >= MOST_LOANS
            or message.attempt in loans
        ):
            return None
        return self._pool.pin(key)

    def _return(self, loan: Loan) -> None:
        assert self._pool is not None, "only a pool lends"
        for block in loan.blocks:
            self._pool.unpin(block)
