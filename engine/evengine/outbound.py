"""Prefill side of a hand-over: reserve room at the decode node, push blocks as they finish,
then pass the request on. Whatever goes wrong, the request is decoded here instead: the engine
is symmetric and the KV is at hand, so a faulty peer costs time, never a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count

from evctl.core.events import TransferDone, TransferFailed
from evctl.core.kv import BlockHeader
from evctl.wire.messages import (
    AnyMessage,
    BlocksLanded,
    BlocksVerified,
    HandOver,
    HandOverResult,
    KvGranted,
    KvRefused,
    PeerInfo,
    PeerMessage,
    ReleaseKv,
    ReserveKv,
)
from evengine.blockstore import BlockStore
from evengine.outlet import Counters, Outlet
from evengine.ports import Clock, Outcome, Transfer, TransferState
from evengine.push import Flight, Push, PushLimits, PushState, runs_of
from evengine.request import Sequence


class Outbound:
    """All pushes of this node. `decode_here(seq)` takes a request back into the loop."""

    def __init__(
        self,
        *,
        me: PeerInfo,
        store: BlockStore,
        transfer: Transfer,
        outlet: Outlet,
        clock: Clock,
        counters: Counters,
        decode_here: Callable[[Sequence], None],
        handed_over: Callable[[Sequence], None],
        limits: PushLimits,
    ) -> None:
        self._me = me
        self._layout = store.layout
        self._pages = store.pages
        self._l1 = store.l1
        self._transfer = transfer
        self._outlet = outlet
        self._clock = clock
        self._counters = counters
        self._decode_here = decode_here
        self._handed_over = handed_over
        self._limits = limits
        self._pushes: dict[str, Push] = {}
        self._flights: dict[int, Flight] = {}
        self._closing: dict[int, Push] = {}
        self._unreleased: dict[int, Push] = {}
        self._by_attempt: dict[int, Push] = {}
        self._attempts = count(1)
        self._release_again_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether something is under way that no message announces."""
        return bool(self._flights)

    # ------------------------------------------------------------ from the loop

    def start(self, seq: Sequence) -> bool:
        """Ask the decode node for room. False if it is not reachable."""
        peer = self._outlet.peer(seq.decode_node)
        if peer is None or seq.request_id in self._pushes:
            return False
        blocks = self._layout.blocks_for(seq.prompt_tokens)
        push = Push(next(self._attempts), seq, peer, blocks, self._clock.now_s())
        self._pushes[seq.request_id] = push
        self._ask(push)
        return True

    def progress(self, seq: Sequence) -> None:
        """More of the prompt is computed, or its first token is known."""
        push = self._pushes.get(seq.request_id)
        if push is not None:
            self._advance(push)

    def abandon(self, seq: Sequence) -> None:
        """The request ended here (cancelled, finished by its first token)."""
        push = self._pushes.pop(seq.request_id, None)
        if push is not None:
            self._close(push)

    def tick(self, now_s: float) -> None:
        """Ask again, and give up what took too long."""
        for push in list(self._pushes.values()):
            if push.state is PushState.ASKING:
                if now_s - push.since_s > self._limits.reserve_s:
                    self._fail(push, "no room or no answer from the decode node in time")
                elif push.ask_again_s is not None and now_s >= push.ask_again_s:
                    self._ask(push)
            elif push.waits_for_answer and now_s - push.since_s > self._limits.answer_s:
                self._fail(push, "the decode node does not answer")
        if now_s >= self._release_again_s:
            self._release_again_s = now_s + self._limits.retry_s
            for push in list(self._unreleased.values()):
                self._release(push)

    def peer_lost(self, node: str, boot_id: str) -> None:
        for push in list(self._pushes.values()):
            if push.peer.node == node and push.peer.boot_id == boot_id:
                self._fail(push, "the decode node is gone")

    # ------------------------------------------------------------ from the peer

    def on_granted(self, node: str, message: KvGranted) -> None:
        push = self._live(node, message, PushState.ASKING)
        if push is None:
            return
        if (
            not 0 <= message.held <= push.blocks
            or message.held + len(message.slots) != push.blocks
            or len(message.generations) != len(message.slots)
            or len(set(message.slots)) != len(message.slots)
        ):
            self._fail(push, "the grant does not cover the prompt")
            return
        push.state = PushState.PUSHING
        push.held = message.held
        push.slots, push.generations = message.slots, message.generations
        push.unsent = set(range(message.held, push.blocks))
        self._advance(push)

    def on_refused(self, node: str, message: KvRefused) -> AnyMessage | None:
        push = self._live(node, message)
        if push is None:
            if message.attempt in self._closing or message.attempt in self._unreleased:
                return None
            # whatever the peer still keeps for this attempt, nothing of ours can reach it
            return ReleaseKv(message.request_id, self._me.boot_id, message.attempt)
        if push.state is PushState.ASKING and message.retry:
            push.ask_again_s = self._clock.now_s() + self._limits.retry_s
        else:
            self._fail(push, message.reason)
        return None

    def on_verified(self, node: str, message: BlocksVerified) -> None:
        push = self._live(node, message, PushState.PUSHING)
        if push is None:
            return
        if push.announced.get(message.first) != message.count:
            self._counters["late_answers"] += 1
            return
        del push.announced[message.first]
        checked = set(range(message.first, message.first + message.count))
        bad = checked & set(message.bad)
        push.verified |= checked - bad
        if bad:
            self._counters["kv_blocks_bad_checksum"] += len(bad)
            push.resends += 1
            if push.resends > self._limits.resends:
                self._fail(push, "blocks arrive corrupted")
                return
            push.unsent |= bad
        self._advance(push)

    def on_result(self, node: str, message: HandOverResult) -> None:
        push = self._live(node, message, PushState.PASSING)
        if push is None:
            return
        if not message.accepted:
            self._fail(push, message.reason)
            return
        del self._pushes[message.request_id]
        self._outlet.fact(
            TransferDone(
                request_id=message.request_id,
                destination=push.peer.node,
                blocks=push.blocks - push.held,
                bytes_sent=push.bytes_sent,
                held_blocks=push.held,
            )
        )
        self._handed_over(push.seq)

    def on_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            flight = self._flights.pop(outcome.ticket, None)
            if flight is not None:
                self._landed(flight, outcome)

    # ------------------------------------------------------------ inside

    def _ask(self, push: Push) -> None:
        start = push.seq.start
        sent = self._outlet.to_peer(
            push.peer.node,
            ReserveKv(
                request_id=start.request_id,
                boot_id=self._me.boot_id,
                attempt=push.attempt,
                tenant=start.tenant,
                blocks=push.blocks,
                prompt_tokens=push.seq.prompt_tokens,
                output_tokens=start.sampling.max_tokens,
                block_keys=start.block_keys,
            ),
        )
        push.ask_again_s = None if sent else self._clock.now_s() + self._limits.retry_s

    def _advance(self, push: Push) -> None:
        if push.state is not PushState.PUSHING:
            return
        ready = self._ready_blocks(push)
        if ready:
            self._send(push, ready)
        elif len(push.verified) + push.held == push.blocks and push.seq.output:
            self._pass_on(push)

    def _ready_blocks(self, push: Push) -> list[int]:
        """Blocks that are complete (the tail: once the prompt is) and not sent."""
        complete = push.seq.published
        if push.seq.computed >= push.seq.prompt_tokens:
            complete = push.blocks
        return sorted(block for block in push.unsent if block < complete)

    def _send(self, push: Push, blocks: list[int]) -> None:
        pieces = [
            piece
            for block in blocks
            for piece in self._pages.pieces(
                push.seq.slots[block],
                push.slots[block - push.held],
                self._valid_tokens(push, block),
                push.peer.transfer.l1_blocks,
            )
        ]
        peer = push.peer
        ticket = self._transfer.write(peer.node, peer.boot_id, pieces, self._limits.transfer_s)
        total = sum(piece.length_bytes for piece in pieces)
        self._flights[ticket] = Flight(push.attempt, tuple(blocks), total)
        push.in_flight.add(ticket)
        self._by_attempt[push.attempt] = push
        push.unsent.difference_update(blocks)

    def _landed(self, flight: Flight, outcome: Outcome) -> None:
        push = self._by_attempt[flight.attempt]
        push.in_flight.discard(outcome.ticket)
        if not push.in_flight:
            del self._by_attempt[flight.attempt]
        push.settled = push.settled and outcome.settled
        if outcome.state is TransferState.DONE:
            self._counters["kv_bytes_sent"] += flight.bytes_sent
            push.bytes_sent += flight.bytes_sent
        else:
            self._outlet.recheck_peer(push.peer.node)
        if push.attempt in self._closing:
            self._release_when_settled(push)
        elif outcome.state is not TransferState.DONE:
            self._fail(push, outcome.reason)
        else:
            self._announce(push, flight.blocks)

    def _announce(self, push: Push, blocks: tuple[int, ...]) -> None:
        """Tell the peer which blocks to check, one message for each consecutive run."""
        for first, run in runs_of(blocks):
            headers = tuple(self._header(push, block) for block in run)
            sent = self._outlet.to_peer(
                push.peer.node,
                BlocksLanded(
                    request_id=push.seq.request_id,
                    boot_id=self._me.boot_id,
                    attempt=push.attempt,
                    first=first,
                    headers=headers,
                ),
            )
            if not sent:
                self._fail(push, "the decode node cannot be reached")
                return
            push.announced[first] = len(run)
        push.since_s = self._clock.now_s()

    def _header(self, push: Push, block: int) -> BlockHeader:
        slot = push.seq.slots[block]
        full = block < push.seq.prompt_tokens // self._layout.block_tokens
        valid = self._valid_tokens(push, block)
        return BlockHeader(
            boot_id=self._me.boot_id,
            key=push.seq.keys[block] if full else b"",
            generation=push.generations[block - push.held],
            valid_tokens=valid,
            checksum=self._l1.checksum(slot) if full else self._pages.checksum(slot, valid),
        )

    def _valid_tokens(self, push: Push, block: int) -> int:
        size = self._layout.block_tokens
        return min(size, push.seq.prompt_tokens - block * size)

    def _pass_on(self, push: Push) -> None:
        seq = push.seq
        sent = self._outlet.to_peer(
            push.peer.node,
            HandOver(
                request_id=seq.request_id,
                boot_id=self._me.boot_id,
                attempt=push.attempt,
                request=seq.start,
                generated=tuple(seq.output),
                logprobs=tuple(seq.logprobs),
                cached_tokens=seq.cached_tokens,
            ),
        )
        if not sent:
            self._fail(push, "the decode node cannot be reached")
            return
        push.state = PushState.PASSING
        push.since_s = self._clock.now_s()

    def _fail(self, push: Push, reason: str) -> None:
        del self._pushes[push.seq.request_id]
        self._counters["push_failed"] += 1
        self._outlet.fact(
            TransferFailed(
                request_id=push.seq.request_id, destination=push.peer.node, reason=reason
            )
        )
        self._close(push)
        self._decode_here(push.seq)

    def _close(self, push: Push) -> None:
        self._closing[push.attempt] = push
        self._release_when_settled(push)

    def _release_when_settled(self, push: Push) -> None:
        """Free the peer's slots once no copy of ours can reach them any more."""
        if push.in_flight:
            return
        del self._closing[push.attempt]
        self._unreleased[push.attempt] = push
        self._release(push)

    def _release(self, push: Push) -> None:
        """Tell the peer, as often as it takes to get the message on its way."""
        known = self._outlet.announced(push.peer.node)
        message = ReleaseKv(
            push.seq.request_id, self._me.boot_id, push.attempt, settled=push.settled
        )
        gone = known is None or known.boot_id != push.peer.boot_id
        if gone or self._outlet.to_peer(push.peer.node, message):
            del self._unreleased[push.attempt]

    def _live(
        self, node: str, message: PeerMessage, state: PushState | None = None
    ) -> Push | None:
        """The push that a peer's answer is about. Answers of another peer or life, to an earlier
        attempt, or out of turn are counted and dropped."""
        push = self._pushes.get(message.request_id)
        if (
            push is None
            or push.attempt != message.attempt
            or (push.peer.node, push.peer.boot_id) != (node, message.boot_id)
            or state not in (None, push.state)
        ):
            self._counters["late_answers"] += 1
            return None
        return push
