"""The symmetric loop: takes in transfers and fetches, admits, runs iterations of both phases.

An iteration runs on a thread of its own; what comes meanwhile is taken in at once, only what an
iteration under way uses is left alone until it ends. The loop has no role. A request is prefilled
where it was sent and decoded where it says; which requests those are is the router's business, so
a change of role needs nothing here.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from evctl.core.events import (
    FetchAheadEnded,
    FirstToken,
    IterationSample,
    PrefillStarted,
    RecallDenied,
    Recalled,
    RequestDone,
    TransferFailed,
)
from evctl.core.sampling import FinishReason, TokenLogprob
from evctl.core.split import Phase
from evctl.core.workload import attention_pairs
from evctl.wire.messages import (
    CancelRequest,
    FetchAhead,
    HandOver,
    Load,
    PeerInfo,
    StartRequest,
    Tokens,
)
from evengine import schedule
from evengine.blockstore import BlockStore, KeepLimits
from evengine.fetch.fetcher import Fetcher
from evengine.fetch.lender import Lender
from evengine.fetch.limits import FetchLimits
from evengine.inbound import ArrivalLimits, Inbound
from evengine.iteration import Finished, IterationThread
from evengine.outbound import Outbound
from evengine.outlet import Counters, Outlet
from evengine.pool.copier import Copier
from evengine.ports import Batch, Clock, Executor, Sampled, Transfer
from evengine.push import PushLimits
from evengine.request import Sequence, Stage, StopText, seeded
from evengine.roster import Roster, load_of
from evengine.wake import Wake

REMEMBERED_HANDOVERS = 4096


class LoopLimits(msgspec.Struct, frozen=True):
    """chunk_tokens: prompt tokens in one iteration. max_running: decodes in one batch.
    max_waiting: requests that may queue here. keep: L1 to L2; fetch: L2 and peers to L1."""

    chunk_tokens: int = 512
    max_running: int = 64
    max_waiting: int = 1024
    push: PushLimits = PushLimits()
    arrival: ArrivalLimits = ArrivalLimits()
    keep: KeepLimits = KeepLimits()
    fetch: FetchLimits = FetchLimits()


class Loop:
    """All requests of one node. Called from one thread, again and again: `turn`."""

    def __init__(
        self,
        *,
        me: PeerInfo,
        executor: Executor,
        store: BlockStore,
        copier: Copier | None,
        transfer: Transfer,
        clock: Clock,
        wake: Wake,
        outlet: Outlet,
        counters: Counters,
        eos_ids: frozenset[int],
        decode_text: Callable[[list[int]], str],
        limits: LoopLimits,
    ) -> None:
        self._node = me.node
        self._executor = executor
        self._iteration = IterationThread(executor, clock, wake)
        self._computing: frozenset[str] = frozenset()
        """Requests that the iteration under way works on."""
        self._after_iteration: list[Callable[[], object]] = []
        self._store = store
        self._copier = copier
        self._transfer = transfer
        self._clock = clock
        self._outlet = outlet
        self.counters = counters
        self.kv_secret = b""
        """Keys the hashes of generated blocks; the control plane sends it with Welcome."""
        self._eos_ids = eos_ids
        self._decode_text = decode_text
        self._limits = limits
        self.run_s = 0.0
        """Wall seconds of iterations so far."""
        self._roster = Roster()
        self._blocked: tuple[str, int] | None = None
        """Request at the head of the queue that did not fit, and the free blocks then."""
        self._handed_over: OrderedDict[str, str] = OrderedDict()
        self.outbound = Outbound(
            me=me,
            store=store,
            transfer=transfer,
            outlet=outlet,
            clock=clock,
            counters=counters,
            decode_here=self._decode_here,
            handed_over=self._passed_on,
            limits=limits.push,
        )
        self.inbound = Inbound(
            boot_id=me.boot_id,
            store=store,
            outlet=outlet,
            clock=clock,
            counters=counters,
            active=self._roster.__contains__,
            full=self._full_for_arrivals,
            headroom_blocks=self._headroom_blocks,
            refuse_handover=self._refuse_handover,
            make_sequence=self._sequence_of,
            take=self._take_over,
            revoke=self._revoke,
            limits=limits.arrival,
        )
        self.lender = Lender(me.boot_id, store.pool, outlet, clock, counters)
        self.fetcher: Fetcher | None = None
        if store.pool is not None and copier is not None:
            self.fetcher = Fetcher(
                boot_id=me.boot_id,
                store=store,
                pool=store.pool,
                copier=copier,
                transfer=transfer,
                outlet=outlet,
                clock=clock,
                counters=counters,
                limits=limits.fetch,
            )

    # ------------------------------------------------------------ requests in and out

    def submit(self, start: StartRequest) -> None:
        """Queue a request. Raises RequestRefusedError and changes nothing if it cannot run."""
        self._check(
            start,
            known=start.request_id in self._roster or self.inbound.expects(start.request_id),
            waiting=len(self._roster.waiting),
        )
        start = seeded(start, int.from_bytes(os.urandom(7), "little"))
        seq = self._new_sequence(start)
        self._roster.enter(seq, Stage.WAITING)
        if self.fetcher is not None:
            self.fetcher.arrived(seq)

    def cancel(self, request_id: str) -> bool:
        """End a request wherever it stands. False if it is not here."""
        seq = self._roster.get(request_id)
        if seq is not None and request_id in self._computing:
            self._after_iteration.append(lambda: self.cancel(request_id))
            return True
        if seq is not None:
            self.counters[f"cancelled_in_{seq.stage.value}"] += 1
            self._finish(seq, FinishReason.CANCELLED)
            return True
        handed_to = self._handed_over.pop(request_id, None)
        if handed_to is not None:
            # the canceller may have reached the other node before the hand-over did
            self.counters["cancels_forwarded"] += 1
            return self._outlet.to_peer(handed_to, CancelRequest(request_id))
        known = self.inbound.cancel(request_id)
        self.counters["cancelled_in_arrival" if known else "cancelled_unknown"] += 1
        return known

    def recall(self, request_id: str) -> None:
        """Give back a request that has not begun, without a word to its client."""
        seq = self._roster.get(request_id)
        if seq is not None and not seq.begun and not seq.output:
            self._forget(seq)
            self._outlet.fact(Recalled(request_id))
        else:
            self._outlet.fact(RecallDenied(request_id))

    def load(self) -> Load:
        """What this node is busy with now."""
        return load_of(self._roster, self._store, self.inbound.count)

    @property
    def idle(self) -> bool:
        """Whether nobody counts on this node: no request, no room promised to one, and nothing
        of a request on its way to L2."""
        fetches = self.fetcher.count if self.fetcher is not None else 0
        copies = self._copier.blocks_under_way if self._copier is not None else 0
        return not (len(self._roster) or self.inbound.count or fetches or copies)

    def peer_lost(self, node: str, boot_id: str) -> None:
        self._transfer.disconnect(node, boot_id)
        self.outbound.peer_lost(node, boot_id)
        self.inbound.peer_lost(node, boot_id)
        self.lender.peer_lost(node, boot_id)
        if self.fetcher is not None:
            self.fetcher.peer_lost(node, boot_id)

    def fetch_ahead(self, message: FetchAhead) -> None:
        """Fetch KV for a branch that is about to wake."""
        if self.fetcher is not None:
            self.fetcher.fetch_ahead(message)
            return
        missed = sum(piece.end - piece.start for piece in message.pieces)
        self._outlet.fact(FetchAheadEnded(message.ticket, (), 0.0, missed, "no_room"))

    def gauges(self) -> dict[str, float]:
        """Present sizes and sums that are not whole numbers, for heartbeats."""
        found = self._store.gauges() | {"loans": self.lender.count}
        if self.fetcher is not None:
            found |= {
                "fetch_bytes_in_flight": self.fetcher.flights.bytes_in_flight,
                "fetch_s_total": self.fetcher.fetch_s,
                "fetch_exposed_s_total": self.fetcher.exposed_s,
            }
        return found

    def close(self) -> None:
        self._iteration.close()

    def check_integrity(self) -> list[str]:
        """Violations in L1, L2 and in the agreement of requests with their slots."""
        fetches = self.fetcher.check_integrity() if self.fetcher is not None else []
        return self._store.check_integrity() + self._roster.check_integrity() + fetches

    # ------------------------------------------------------------ one turn

    def turn(self) -> None:
        """Take in what arrived and what was computed; start an iteration if none runs."""
        now_s = self._clock.now_s()
        self._take_copies(now_s)
        finished = self._iteration.take()
        if finished is not None:
            self._end_iteration(finished)
        self._expire(now_s)
        self._admit()
        if not self._iteration.under_way:
            self._start_iteration()
        self._store.announce_evictions()

    def _take_copies(self, now_s: float) -> None:
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

    def _start_iteration(self) -> None:
        self._grow_decodes()
        chunk_tokens = self._limits.chunk_tokens
        prefills = schedule.choose_prefills(
            self._roster.prefilling, self._store, chunk_tokens, self._may_run
        )
        for seq in prefills:
            if not seq.begun:
                self._begin(seq)
        batch = schedule.build_batch(prefills, self._roster.decoding, chunk_tokens)
        if batch is not None:
            ids = [*(c.request_id for c in batch.chunks), *(r.request_id for r in batch.rows)]
            self._computing = frozenset(ids)
            self._iteration.start(batch)

    def _end_iteration(self, finished: Finished) -> None:
        self.run_s += finished.run_s
        self._computing = frozenset()
        assert finished.sampled is not None, "an iteration without result has raised"
        self._sample(finished.batch, finished.busy_s)
        self._apply(finished.batch, finished.sampled)
        postponed, self._after_iteration = self._after_iteration, []
        for call in postponed:
            call()

    def _may_run(self, seq: Sequence) -> None:
        """A request's turn has come."""
        if self.fetcher is not None:
            self.fetcher.could_run(seq, self._clock.now_s())

    @property
    def awaits_transfer(self) -> bool:
        """Whether a copy is under way, which must be polled."""
        return self.outbound.busy or (self.fetcher is not None and self.fetcher.busy)

    def _expire(self, now_s: float) -> None:
        for seq in [s for s in self._roster.waiting if now_s > s.deadline_s and not s.output]:
            self._finish(seq, FinishReason.ERROR, "the request waited past its deadline")

    def _admit(self) -> None:
        """Give waiting requests, first come first served, the blocks of their prompt."""
        roster = self._roster
        while roster.waiting and roster.running < self._limits.max_running:
            seq = roster.waiting[0]
            if self._blocked == (seq.request_id, self._store.l1.available_blocks):
                return  # nothing was freed since it last did not fit
            if not self._store.take_prefix(seq, headroom_blocks=len(roster.decoding)):
                self._blocked = (seq.request_id, self._store.l1.available_blocks)
                return
            self._blocked = None
            roster.move(seq, Stage.PREFILL)
            if self.fetcher is not None:
                self.fetcher.admitted(seq)

    def _begin(self, seq: Sequence) -> None:
        """A prompt's first chunk is about to run: say so, and reserve room at the decode node
        (not earlier: it may have queued for long)."""
        seq.begun = True
        if not seq.output:
            seq.cached_tokens = seq.computed
        self._outlet.fact(PrefillStarted(seq.request_id, seq.computed, seq.uncomputed_tokens))
        if seq.decode_node != self._node and not self.outbound.start(seq):
            self.counters["push_unreachable"] += 1
            reason = "the decode node does not answer"
            self._outlet.fact(TransferFailed(seq.request_id, seq.decode_node, reason))
            seq.decode_node = self._node

    def _grow_decodes(self) -> None:
        """A slot for each decode that enters a new block; the youngest give way if none is
        left, and compute their KV again later."""
        decoding = self._roster.decoding
        for seq in sorted(decoding, key=lambda s: s.arrived_s):
            while seq.stage is Stage.DECODE and not self._store.cover(seq, len(seq.tokens)):
                youngest = max(decoding, key=lambda s: s.arrived_s)
                self.counters["preempted"] += 1
                self._store.release(youngest)
                self._store.await_slots(youngest)
                youngest.forget_kv()
                self._roster.move(youngest, Stage.WAITING, first=True)

    def _apply(self, batch: Batch, sampled: Sampled) -> None:
        """Account for what was computed, in the order of the batch."""
        results = iter(zip(sampled.token_ids, sampled.logprobs, strict=True))
        for chunk in batch.chunks:
            seq = self._roster[chunk.request_id]
            seq.computed = chunk.start + len(chunk.tokens)
            self._store.publish(seq)
            if chunk.sample:
                self._prefilled(seq, *next(results))
            self.outbound.progress(seq)
        for row in batch.rows:
            seq = self._roster[row.request_id]
            seq.computed += 1
            self._store.publish(seq)
            self._emit(seq, *next(results))

    def _prefilled(self, seq: Sequence, token: int, logprob: TokenLogprob | None) -> None:
        if not seq.output:
            self._outlet.fact(FirstToken(seq.request_id, seq.prompt_tokens))
        here = seq.decode_node == self._node
        self._roster.move(seq, Stage.DECODE if here else Stage.HANDING_OVER)
        self._emit(seq, token, logprob)

    def _emit(self, seq: Sequence, token: int, logprob: TokenLogprob | None) -> None:
        seq.append(token, logprob)
        reason = seq.finish_reason(self._eos_ids, self._executor.context_tokens)
        if reason is not None:
            self._finish(seq, reason)
            return
        self._send_tokens(seq, None)

    def _send_tokens(self, seq: Sequence, finish: str | None, error: str = "") -> None:
        """What was not sent yet; one token, or none when a request ends without one."""
        fresh = seq.output[seq.sent :]
        self._outlet.tokens(
            Tokens(
                request_id=seq.request_id,
                start=seq.sent,
                token_ids=tuple(fresh),
                logprobs=tuple(seq.logprobs[seq.sent :]),
                finish=finish,
                error=error,
                cached_tokens=seq.cached_tokens,
            )
        )
        seq.sent = len(seq.output)

    def _finish(self, seq: Sequence, reason: str, error: str = "") -> None:
        self.outbound.abandon(seq)
        self._send_tokens(seq, reason, error)
        self._outlet.fact(
            RequestDone(
                request_id=seq.request_id,
                reason=reason,
                prompt_tokens=seq.prompt_tokens,
                cached_tokens=seq.cached_tokens,
                output_tokens=len(seq.output),
                detail=error,
            )
        )
        self._forget(seq)

    def _forget(self, seq: Sequence) -> None:
        """The request is not this node's any more; its finished blocks stay cached."""
        self._roster.remove(seq)
        if self.fetcher is not None:
            self.fetcher.cancel(seq)
        self._store.release(seq)
        self._store.settle(seq)

    # ------------------------------------------------------------ hand-over

    def _decode_here(self, seq: Sequence) -> None:
        """A push failed: the request stays."""
        seq.decode_node = self._node
        if seq.stage is Stage.HANDING_OVER:
            self._roster.move(seq, Stage.DECODE)

    def _passed_on(self, seq: Sequence) -> None:
        self._handed_over[seq.request_id] = seq.decode_node
        if len(self._handed_over) > REMEMBERED_HANDOVERS:
            self._handed_over.popitem(last=False)
        self._forget(seq)

    def _sequence_of(self, message: HandOver) -> Sequence:
        seq = self._new_sequence(message.request)
        for token in message.generated:
            seq.append(token, None)
        seq.logprobs = list(message.logprobs)
        seq.sent = len(seq.output)
        seq.cached_tokens = message.cached_tokens
        return seq

    def _check(self, start: StartRequest, *, known: bool, waiting: int) -> None:
        schedule.check_request(
            start,
            known=known,
            waiting=waiting,
            max_waiting=self._limits.max_waiting,
            executor=self._executor,
            total_blocks=self._store.l1.total_blocks,
            kv_secret=self.kv_secret,
        )

    def _refuse_handover(self, message: HandOver) -> str:
        """Why a handed-over request cannot go on here, "" if it can."""
        sampling = message.request.sampling
        try:
            self._check(message.request, known=message.request_id in self._roster, waiting=0)
        except schedule.RequestRefusedError as error:
            return error.why
        if len(message.generated) != 1 or not (
            0 <= message.generated[0] < self._executor.vocab_size
        ):
            return "a hand-over carries exactly one generated token of the vocabulary"
        if sampling.temperature > 0 and sampling.seed is None:
            return "a sampled request is handed over with its seed"
        if len(message.logprobs) != (0 if sampling.logprobs is None else 1):
            return "the logprobs are not those of the generated token"
        return ""

    def _full_for_arrivals(self) -> str:
        """Why no hand-over is taken now: the batch is full, or somebody waits for blocks here,
        who would wait for ever if arrivals took every block that comes free."""
        taken = len(self._roster.decoding) + self.inbound.count
        if taken >= self._limits.max_running:
            return f"{taken} requests decode here or are about to"
        if self._blocked is not None:
            return "a request here waits for blocks"
        return ""

    def _headroom_blocks(self) -> int:
        return len(self._roster.decoding)

    def _take_over(self, seq: Sequence) -> None:
        seq.decode_node = self._node
        self._roster.enter(seq, Stage.DECODE)

    def _revoke(self, request_id: str, owner: str) -> None:
        """The source gave up on a hand-over that did succeed, and decodes itself."""
        if request_id in self._computing:
            self._after_iteration.append(lambda: self._revoke(request_id, owner))
            return
        seq = self._roster.get(request_id)
        if seq is not None and seq.owner == owner:
            self.counters["handovers_revoked"] += 1
            self._forget(seq)

    # ------------------------------------------------------------ small things

    def _new_sequence(self, start: StartRequest) -> Sequence:
        seq = Sequence(
            start, self.kv_secret, self._executor.layout.block_tokens, self._clock.now_s()
        )
        if start.sampling.stop:
            seq.stop_text = StopText(start.sampling.stop, self._decode_text)
        return seq

    def _sample(self, batch: Batch, busy_s: float) -> None:
        """The regressors of Eq. 1 and 2 for this iteration."""
        self.counters["iterations"] += 1
        self.counters["prefill_tokens"] += sum(len(c.tokens) for c in batch.chunks)
        self.counters["decode_tokens"] += len(batch.rows)
        self._outlet.fact(
            IterationSample(
                phase=Phase.PREFILL if batch.chunks else Phase.DECODE,
                busy_s=busy_s,
                prefill_tokens=sum(len(c.tokens) for c in batch.chunks),
                attention_pairs=sum(attention_pairs(len(c.tokens), c.start) for c in batch.chunks),
                restored_tokens=self._store.take_restored_tokens(),
                decode_requests=len(batch.rows),
            )
        )
