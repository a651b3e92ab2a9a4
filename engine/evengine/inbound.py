"""Decode side of a hand-over: grant room, check what lands, take the request over."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from evctl.core.blocks import BlockKey
from evctl.core.events import KvStored
from evctl.core.kv import BlockHeader, KvLayout
from evctl.wire.messages import (
    AnyMessage,
    BlocksLanded,
    BlocksVerified,
    HandOver,
    HandOverResult,
    KvGranted,
    KvRefused,
    ReleaseKv,
    ReserveKv,
    StartRequest,
)
from evengine.outlet import Counters, Outlet
from evengine.pool.l1 import L1Cache
from evengine.pool.memory import KvMemory
from evengine.ports import Clock, Slot
from evengine.request import Sequence, split_keys
from evengine.transfer.protocol import verify_header


class ArrivalLimits(msgspec.Struct, frozen=True):
    """idle_s: how long a reservation may see no progress. quarantine_s: how long slots rest
    that a failed or vanished writer might still reach; above any backend's own timeout."""

    idle_s: float = 60.0
    quarantine_s: float = 30.0


class Arrival:
    """Room given to one request. slots: destination of blocks [held, blocks), private."""

    def __init__(self, message: ReserveKv, held: list[Slot], slots: list[Slot], now_s: float):
        self.request_id = message.request_id
        self.source = message.source
        self.prompt_tokens = message.prompt_tokens
        self.keys = split_keys(message.block_keys)
        self.held = held
        self.slots = slots
        self.missing = set(range(len(held), message.blocks))
        self.checksums: dict[int, int] = {}
        self.touched_s = now_s


class Rest(msgspec.Struct):
    """Slots in quarantine: whose writer it was, and when they are free at the latest."""

    node: str
    boot_id: str
    until_s: float | None


class Inbound:
    """All reservations of this node. Every handler returns the answer to send back, if any.

    active(request_id): whether the loop runs the request already. take(seq): run it.
    expected_keys(request): what its prompt hashes to. release_active(request_id, boot_id): that
    life of the source wants back what it handed over.
    """

    def __init__(
        self,
        *,
        boot_id: str,
        layout: KvLayout,
        memory: KvMemory,
        l1: L1Cache,
        outlet: Outlet,
        clock: Clock,
        counters: Counters,
        active: Callable[[str], bool],
        headroom_blocks: Callable[[], int],
        make_sequence: Callable[[HandOver], Sequence],
        expected_keys: Callable[[StartRequest], bytes],
        take: Callable[[Sequence], None],
        release_active: Callable[[str, str], None],
        limits: ArrivalLimits,
    ) -> None:
        self._boot_id = boot_id
        self._layout = layout
        self._memory = memory
        self._l1 = l1
        self._outlet = outlet
        self._clock = clock
        self._counters = counters
        self._active = active
        self._headroom_blocks = headroom_blocks
        self._make_sequence = make_sequence
        self._expected_keys = expected_keys
        self._take = take
        self._release_active = release_active
        self._limits = limits
        self._arrivals: dict[str, Arrival] = {}
        self._resting: dict[str, Rest] = {}

    @property
    def count(self) -> int:
        return len(self._arrivals)

    def expects(self, request_id: str) -> bool:
        """Whether room is reserved under this id, so that nothing else may run under it."""
        return request_id in self._arrivals

    # ------------------------------------------------------------ from the peer

    def on_reserve(self, message: ReserveKv) -> AnyMessage:
        request_id = message.request_id
        if request_id in self._arrivals or self._active(request_id):
            return self._refuse(request_id, "the request is here already", retry=False)
        if request_id in self._resting:
            return self._refuse(request_id, "its earlier room is still in quarantine", retry=True)
        layout = self._layout
        if (
            message.prompt_tokens < 1
            or message.output_tokens < 1
            or message.blocks != layout.blocks_for(message.prompt_tokens)
            or len(message.block_keys) != 16 * (message.prompt_tokens // layout.block_tokens)
        ):
            return self._refuse(request_id, "blocks, tokens and keys disagree", retry=False)
        keys = split_keys(message.block_keys)
        most = layout.blocks_for(message.prompt_tokens + message.output_tokens)
        if most > self._l1.total_blocks:
            return self._refuse(
                request_id, f"{most} blocks never fit in {self._l1.total_blocks}", retry=False
            )
        held = self._l1.match(keys)
        wanted = message.blocks - len(held)
        slots = None
        if wanted + self._headroom_blocks() <= self._l1.available_blocks:
            slots = self._l1.allocate(wanted)
        if slots is None:
            self._l1.release(held)
            return self._refuse(request_id, f"no {wanted} free blocks now", retry=True)
        self._arrivals[request_id] = Arrival(message, held, slots, self._clock.now_s())
        return KvGranted(
            request_id=request_id,
            boot_id=self._boot_id,
            held=len(held),
            slots=tuple(slots),
            generations=tuple(self._l1.generation(slot) for slot in slots),
        )

    def on_landed(self, message: BlocksLanded) -> AnyMessage | None:
        arrival = self._arrivals.get(message.request_id)
        if arrival is None or arrival.source.boot_id != message.boot_id:
            return self._refuse(message.request_id, "there is no such reservation", retry=False)
        arrival.touched_s = self._clock.now_s()
        bad = []
        for offset, header in enumerate(message.headers):
            block = message.first + offset
            reason = self._check(arrival, block, header)
            if reason is None:
                arrival.missing.discard(block)
                arrival.checksums[block] = header.checksum
            else:
                bad.append(block)
                self._counters["kv_blocks_refused"] += 1
        return BlocksVerified(
            request_id=message.request_id,
            boot_id=self._boot_id,
            first=message.first,
            count=len(message.headers),
            bad=tuple(bad),
        )

    def on_handover(self, message: HandOver) -> AnyMessage:
        request_id = message.request.request_id
        arrival = self._arrivals.get(request_id)
        reason = ""
        if arrival is None or arrival.source.boot_id != message.boot_id:
            reason = "there is no such reservation"
        elif arrival.missing:
            reason = f"{len(arrival.missing)} blocks have not been verified"
        elif (
            len(message.request.prompt) != arrival.prompt_tokens
            or message.request.block_keys != b"".join(arrival.keys)
            or message.request.block_keys != self._expected_keys(message.request)
            or not message.generated
        ):
            reason = "the request is not the one that room was reserved for"
        if reason or arrival is None:
            return HandOverResult(request_id, self._boot_id, accepted=False, reason=reason)
        del self._arrivals[request_id]
        seq = self._make_sequence(message)
        seq.slots = arrival.held + arrival.slots
        seq.computed = arrival.prompt_tokens
        self._publish_received(seq, arrival)
        self._take(seq)
        return HandOverResult(request_id, self._boot_id, accepted=True)

    def on_release(self, message: ReleaseKv) -> None:
        arrival = self._arrivals.get(message.request_id)
        if arrival is not None and arrival.source.boot_id == message.boot_id:
            self._drop(arrival, writer_done=message.settled)
        rest = self._resting.get(message.request_id)
        if rest is not None and rest.boot_id == message.boot_id:
            if message.settled:
                self._lift(message.request_id)
            else:
                # the source has said its last word; its backend may still have one
                rest.until_s = self._clock.now_s() + self._limits.quarantine_s
        elif arrival is None:
            self._release_active(message.request_id, message.boot_id)

    # ------------------------------------------------------------ from the loop

    def cancel(self, request_id: str) -> bool:
        """Give up a reservation; its slots rest until the source says that it stopped."""
        arrival = self._arrivals.get(request_id)
        if arrival is None:
            return False
        self._drop(arrival, writer_done=False)
        self._outlet.to_peer(
            arrival.source.node,
            self._refuse(request_id, "cancelled", retry=False),
        )
        return True

    def tick(self, now_s: float) -> None:
        for arrival in list(self._arrivals.values()):
            if now_s - arrival.touched_s > self._limits.idle_s:
                self._counters["reservations_expired"] += 1
                self._drop(arrival, writer_done=False)
        for request_id, rest in list(self._resting.items()):
            if rest.until_s is not None and now_s > rest.until_s:
                self._lift(request_id)

    def peer_lost(self, node: str, boot_id: str) -> None:
        """Nothing more is coming from this life of a node, but a copy may still be under way."""
        for arrival in list(self._arrivals.values()):
            if arrival.source.node == node and arrival.source.boot_id == boot_id:
                self._drop(arrival, writer_done=False)
        until_s = self._clock.now_s() + self._limits.quarantine_s
        for rest in self._resting.values():
            if rest.node == node and rest.boot_id == boot_id and rest.until_s is None:
                rest.until_s = until_s

    # ------------------------------------------------------------ inside

    def _check(self, arrival: Arrival, block: int, header: BlockHeader) -> str | None:
        """Why a landed block is not what it should be; None if it is."""
        index = block - len(arrival.held)
        if not 0 <= index < len(arrival.slots):
            return "the block was not granted"
        slot = arrival.slots[index]
        size = self._layout.block_tokens
        valid = min(size, arrival.prompt_tokens - block * size)
        if header.valid_tokens != valid:
            return f"{header.valid_tokens} valid tokens, not {valid}"
        return verify_header(
            header,
            self._memory.block(slot),
            boot_id=arrival.source.boot_id,
            key=arrival.keys[block] if block < len(arrival.keys) else b"",
            generation=self._l1.generation(slot),
            token_bytes=self._layout.token_bytes,
        )

    def _publish_received(self, seq: Sequence, arrival: Arrival) -> None:
        """Cache the full blocks that came. They are not written to L2: the prefill node did."""
        first = len(arrival.held)
        full = seq.prompt_tokens // self._layout.block_tokens
        stored: list[BlockKey] = []
        for block in range(first, full):
            slot = seq.slots[block]
            parent = seq.keys[block - 1] if block else b""
            checksum = arrival.checksums[block]
            seq.slots[block] = self._l1.publish(slot, seq.keys[block], parent, checksum)
            stored.append(seq.keys[block])
        seq.published = full
        if stored:
            parent = seq.keys[first - 1] if first else seq.start.root_key
            self._outlet.fact(KvStored(seq.request_id, 1, parent, tuple(stored)))

    def _drop(self, arrival: Arrival, *, writer_done: bool) -> None:
        del self._arrivals[arrival.request_id]
        self._l1.release(arrival.held)
        if writer_done or not arrival.slots:
            self._l1.release(arrival.slots)
            return
        self._l1.quarantine(arrival.slots, arrival.request_id)
        gone = self._outlet.peer(arrival.source.node)
        lost = gone is None or gone.boot_id != arrival.source.boot_id
        until_s = self._clock.now_s() + self._limits.quarantine_s if lost else None
        self._resting[arrival.request_id] = Rest(
            arrival.source.node, arrival.source.boot_id, until_s
        )

    def _lift(self, request_id: str) -> None:
        del self._resting[request_id]
        self._l1.lift_quarantine(request_id)

    def _refuse(self, request_id: str, reason: str, *, retry: bool) -> KvRefused:
        return KvRefused(request_id, self._boot_id, retry=retry, reason=reason)
