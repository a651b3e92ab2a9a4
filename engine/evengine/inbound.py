"""Decode side of a hand-over: grant room, check what lands, take the request over."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from evctl.core.kv import BlockHeader
from evctl.wire.messages import (
    AnyMessage,
    BlocksLanded,
    BlocksVerified,
    CancelRequest,
    HandOver,
    HandOverResult,
    KvGranted,
    KvRefused,
    PeerMessage,
    ReleaseKv,
    ReserveKv,
)
from evengine.blockstore import BlockStore
from evengine.outlet import Counters, Outlet
from evengine.ports import Clock, Slot
from evengine.request import Sequence, split_keys
from evengine.transfer.protocol import verify_header


class ArrivalLimits(msgspec.Struct, frozen=True):
    """idle_s: how long a reservation may see no progress. quarantine_s: how long slots rest
    that a failed or vanished writer might still reach; above any backend's own timeout. ask_s:
    pause between two questions to a writer that has not said that it stopped."""

    idle_s: float = 60.0
    quarantine_s: float = 30.0
    ask_s: float = 5.0


class Arrival:
    """Room given to one attempt. slots: destination of blocks [held, blocks), private."""

    def __init__(
        self, node: str, message: ReserveKv, held: list[Slot], slots: list[Slot], now_s: float
    ) -> None:
        self.node = node
        self.boot_id = message.boot_id
        self.attempt = message.attempt
        self.request_id = message.request_id
        self.blocks = message.blocks
        self.prompt_tokens = message.prompt_tokens
        self.output_tokens = message.output_tokens
        self.keys = split_keys(message.block_keys)
        self.held = held
        self.slots = slots
        self.missing = set(range(len(held), message.blocks))
        self.checksums: dict[int, int] = {}
        self.touched_s = now_s

    def is_of(self, node: str, message: PeerMessage) -> bool:
        return (self.node, self.boot_id, self.attempt) == (node, message.boot_id, message.attempt)

    @property
    def owner(self) -> str:
        """Names the writer of these slots in quarantine."""
        return f"{self.boot_id}/{self.attempt}"


class Rest:
    """Slots in quarantine: whose they were, until when (None: until the writer speaks)."""

    def __init__(self, arrival: Arrival, until_s: float | None, ask_again_s: float) -> None:
        self.arrival = arrival
        self.until_s = until_s
        self.ask_again_s = ask_again_s


class Inbound:
    """All reservations of this node. Every handler returns the answer to send back, if any.

    active(request_id): whether the loop runs the request already. full(): why nothing more can
    be taken now, "" if it can. refuse_handover(message): why a request that came cannot run.
    take(seq): run it. revoke(request_id, owner): the source wants back what it handed over.
    """

    def __init__(
        self,
        *,
        boot_id: str,
        store: BlockStore,
        outlet: Outlet,
        clock: Clock,
        counters: Counters,
        active: Callable[[str], bool],
        full: Callable[[], str],
        headroom_blocks: Callable[[], int],
        refuse_handover: Callable[[HandOver], str],
        make_sequence: Callable[[HandOver], Sequence],
        take: Callable[[Sequence], None],
        revoke: Callable[[str, str], None],
        limits: ArrivalLimits,
    ) -> None:
        self._boot_id = boot_id
        self._store = store
        self._l1 = store.l1
        self._layout = store.layout
        self._outlet = outlet
        self._clock = clock
        self._counters = counters
        self._active = active
        self._full = full
        self._headroom_blocks = headroom_blocks
        self._refuse_handover = refuse_handover
        self._make_sequence = make_sequence
        self._take = take
        self._revoke = revoke
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

    def on_reserve(self, node: str, message: ReserveKv) -> AnyMessage:
        request_id = message.request_id
        known = self._outlet.announced(node)
        if known is None or known.boot_id != message.boot_id:
            return self._refuse(message, "another life of this node is known", retry=False)
        earlier = self._arrivals.get(request_id)
        if earlier is not None and earlier.node == node and earlier.attempt < message.attempt:
            self._drop(earlier, writer_done=False)
        elif earlier is not None or self._active(request_id):
            return self._refuse(message, "the request is here already", retry=False)
        if fault := self._shape_fault(message):
            return self._refuse(message, fault, retry=False)
        if reason := self._full():
            return self._refuse(message, reason, retry=True)
        held = self._l1.match(split_keys(message.block_keys))
        wanted = message.blocks - len(held)
        slots = None
        if wanted + self._headroom_blocks() <= self._l1.available_blocks:
            slots = self._l1.allocate(wanted)
        if slots is None:
            self._l1.release(held)
            return self._refuse(message, f"no {wanted} free blocks now", retry=True)
        self._arrivals[request_id] = Arrival(node, message, held, slots, self._clock.now_s())
        return KvGranted(
            request_id=request_id,
            boot_id=self._boot_id,
            attempt=message.attempt,
            held=len(held),
            slots=tuple(slots),
            generations=tuple(self._l1.generation(slot) for slot in slots),
        )

    def on_landed(self, node: str, message: BlocksLanded) -> AnyMessage:
        arrival = self._arrivals.get(message.request_id)
        if arrival is None or not arrival.is_of(node, message):
            return self._refuse(message, "there is no such reservation", retry=False)
        end = message.first + len(message.headers)
        if not len(arrival.held) <= message.first < end <= arrival.blocks:
            self._drop(arrival, writer_done=False)
            return self._refuse(message, "announced blocks were not granted", retry=False)
        arrival.touched_s = self._clock.now_s()
        bad = []
        for block, header in enumerate(message.headers, message.first):
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
            attempt=message.attempt,
            first=message.first,
            count=len(message.headers),
            bad=tuple(bad),
        )

    def on_handover(self, node: str, message: HandOver) -> AnyMessage:
        arrival = self._arrivals.get(message.request_id)
        reason = ""
        if arrival is None or not arrival.is_of(node, message):
            reason = "there is no such reservation"
        elif arrival.missing:
            reason = f"{len(arrival.missing)} blocks have not been verified"
        elif (
            message.request.request_id != message.request_id
            or len(message.request.prompt) != arrival.prompt_tokens
            or message.request.block_keys != b"".join(arrival.keys)
            or message.request.sampling.max_tokens > arrival.output_tokens
        ):
            reason = "the request is not the one that room was reserved for"
        else:
            reason = self._refuse_handover(message)
        accepted = not reason and arrival is not None
        if accepted and arrival is not None:
            del self._arrivals[message.request_id]
            seq = self._make_sequence(message)
            seq.owner = arrival.owner
            seq.slots = arrival.held + arrival.slots
            seq.computed = arrival.prompt_tokens
            self._store.publish_received(seq, len(arrival.held), arrival.checksums)
            self._take(seq)
        return HandOverResult(
            message.request_id, self._boot_id, message.attempt, accepted=accepted, reason=reason
        )

    def on_release(self, node: str, message: ReleaseKv) -> None:
        owner = f"{message.boot_id}/{message.attempt}"
        arrival = self._arrivals.get(message.request_id)
        if arrival is not None and arrival.is_of(node, message):
            self._drop(arrival, writer_done=message.settled)
        rest = self._resting.get(owner)
        if rest is None:
            self._revoke(message.request_id, owner)
        elif message.settled:
            self._lift(owner)
        else:
            # the source has said its last word; its backend may still have one
            rest.until_s = self._clock.now_s() + self._limits.quarantine_s

    # ------------------------------------------------------------ from the loop

    def cancel(self, request_id: str) -> bool:
        """Give up a reservation and pass the cancel on to the source, which owns the request;
        the slots rest until it says that it stopped writing."""
        arrival = self._arrivals.get(request_id)
        if arrival is None:
            return False
        self._drop(arrival, writer_done=False)
        self._outlet.to_peer(arrival.node, CancelRequest(request_id))
        return True

    def tick(self, now_s: float) -> None:
        for arrival in list(self._arrivals.values()):
            if now_s - arrival.touched_s > self._limits.idle_s:
                self._counters["reservations_expired"] += 1
                self._drop(arrival, writer_done=False)
        for owner, rest in list(self._resting.items()):
            if rest.until_s is not None and now_s > rest.until_s:
                self._lift(owner)
            elif rest.until_s is None and now_s > rest.ask_again_s:
                # its release may have been lost with a connection
                rest.ask_again_s = now_s + self._limits.ask_s
                self._outlet.to_peer(rest.arrival.node, self._over(rest.arrival))

    def peer_lost(self, node: str, boot_id: str) -> None:
        """Nothing more is coming from this life of a node, but a copy may still be under way."""
        for arrival in list(self._arrivals.values()):
            if (arrival.node, arrival.boot_id) == (node, boot_id):
                self._drop(arrival, writer_done=False)
        until_s = self._clock.now_s() + self._limits.quarantine_s
        for rest in self._resting.values():
            if (rest.arrival.node, rest.arrival.boot_id) == (node, boot_id):
                rest.until_s = rest.until_s or until_s

    # ------------------------------------------------------------ inside

    def _shape_fault(self, message: ReserveKv) -> str:
        """What is wrong with the numbers of a reservation, whatever the load."""
        layout = self._layout
        if (
            message.prompt_tokens < 1
            or message.output_tokens < 1
            or message.blocks != layout.blocks_for(message.prompt_tokens)
            or len(message.block_keys) != 16 * (message.prompt_tokens // layout.block_tokens)
        ):
            return "blocks, tokens and keys disagree"
        if message.blocks > self._l1.total_blocks:
            return f"{message.blocks} blocks never fit in {self._l1.total_blocks}"
        return ""

    def _check(self, arrival: Arrival, block: int, header: BlockHeader) -> str | None:
        """Why a landed block is not what it should be; None if it is."""
        slot = arrival.slots[block - len(arrival.held)]
        size = self._layout.block_tokens
        valid = min(size, arrival.prompt_tokens - block * size)
        if header.valid_tokens != valid:
            return f"{header.valid_tokens} valid tokens, not {valid}"
        return verify_header(
            header,
            self._store.pages.canonical(slot),
            boot_id=arrival.boot_id,
            key=arrival.keys[block] if block < len(arrival.keys) else b"",
            generation=self._l1.generation(slot),
            token_bytes=self._layout.token_bytes,
        )

    def _drop(self, arrival: Arrival, *, writer_done: bool) -> None:
        del self._arrivals[arrival.request_id]
        self._l1.release(arrival.held)
        if writer_done or not arrival.slots:
            self._l1.release(arrival.slots)
            return
        self._l1.quarantine(arrival.slots, arrival.owner)
        now_s = self._clock.now_s()
        known = self._outlet.announced(arrival.node)
        lost = known is None or known.boot_id != arrival.boot_id
        self._resting[arrival.owner] = Rest(
            arrival, now_s + self._limits.quarantine_s if lost else None, now_s
        )

    def _lift(self, owner: str) -> None:
        del self._resting[owner]
        self._l1.lift_quarantine(owner)

    def _refuse(self, message: PeerMessage, reason: str, *, retry: bool) -> KvRefused:
        return KvRefused(
            message.request_id, self._boot_id, message.attempt, retry=retry, reason=reason
        )

    def _over(self, arrival: Arrival) -> KvRefused:
        return KvRefused(
            arrival.request_id,
            self._boot_id,
            arrival.attempt,
            retry=False,
            reason="the reservation is over",
        )
