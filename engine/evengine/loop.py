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

from evctl.core.events import (
    FirstToken,
    PrefillStarted,
    RecallDenied,
    Recalled,
    RequestDone,
    TransferFailed,
)
from evctl.core.sampling import FinishReason, TokenLogprob
from evctl.wire.messages import (
    CancelRequest,
    HandOver,
    Load,
    PeerInfo,
    StartRequest,
    Tokens,
)
from evengine import schedule
from evengine.blockstore import BlockStore
from evengine.inbound import Inbound
from evengine.iteration import Finished, IterationThread, sample_of
from evengine.limits import LoopLimits
from evengine.order import PrefillOrder
from evengine.outbound import Outbound
from evengine.outlet import Counters, Outlet
from evengine.pool.copier import Copier
from evengine.ports import Batch, Clock, Executor, Sampled, Transfer
from evengine.request import Sequence, Stage, StopText, seeded
from evengine.roster import Roster, load_of
from evengine.traffic import Traffic
from evengine.wake import Wake

REMEMBERED_HANDOVERS = 4096


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
        self.close = self._iteration.close
        self._computing: frozenset[str] = frozenset()
        """Requests that the iteration under way works on."""
        self._after_iteration: list[Callable[[], object]] = []
        self._store = store
        self._clock = clock
        self._outlet = outlet
        self.counters = counters
        self.kv_secret = b""
        """Keys the hashes of generated blocks; the control plane sends it with Welcome."""
        self._eos_ids = eos_ids
        self._decode_text = decode_text
        self._limits = limits
        self._order = PrefillOrder(
            store, shortest_first=limits.shortest_first, ageing=limits.prefill_ageing
        )
        self.run_s = 0.0
        """Wall seconds of iterations so far."""
        self._roster = Roster()
        self._turns = schedule.PhaseTurns()
        self.warm_up = self._turns.switch
        self._blocked: tuple[Sequence, int] | None = None
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
            headroom_blocks=lambda: len(self._roster.decoding),
            refuse_handover=self._refuse_handover,
            make_sequence=self._sequence_of,
            take=self._take_over,
            revoke=self._revoke,
            limits=limits.arrival,
        )
        traffic = self.traffic = Traffic(
            boot_id=me.boot_id,
            store=store,
            copier=copier,
            transfer=transfer,
            outlet=outlet,
            clock=clock,
            counters=counters,
            inbound=self.inbound,
            outbound=self.outbound,
            limits=limits.fetch,
        )
        self.peer_handlers, self.peer_lost = traffic.peer_handlers, traffic.peer_lost
        self.fetch_ahead = traffic.fetch_ahead

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
        self.traffic.arrived(seq)

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
        return not (len(self._roster) or self.traffic.under_way)

    @property
    def polled(self) -> bool:
        """Whether a copy is under way that no message announces."""
        return self.traffic.polled

    def gauges(self) -> dict[str, float]:
        """Present sizes, and sums that are not whole numbers, for heartbeats."""
        return self._store.gauges() | self.traffic.gauges()

    def check_integrity(self) -> list[str]:
        """Violations in L1, L2 and in the agreement of requests with their slots."""
        parts = (self._store, self._roster, self.traffic)
        return [problem for part in parts for problem in part.check_integrity()]

    # ------------------------------------------------------------ one turn

    def turn(self) -> None:
        """Take in what arrived and what was computed; start an iteration if none runs."""
        now_s = self._clock.now_s()
        self.traffic.take(now_s)
        finished = self._iteration.take()
        if finished is not None:
            self._end_iteration(finished)
        self._expire(now_s)
        self._admit()
        if not self._iteration.under_way:
            self._start_iteration()
        self._store.announce_evictions()

    def _start_iteration(self) -> None:
        self._grow_decodes()
        chunk_tokens = self._limits.chunk_tokens
        order = self._order.arranged(self._roster.prefilling)
        prefills = schedule.choose_prefills(order, self._store, chunk_tokens, self.traffic.may_run)
        decoding = [s for s in self._roster.decoding if not s.blocks_needed(len(s.tokens))]
        prefills, decoding = self._turns.choose(prefills, decoding)
        for seq in prefills:
            if not seq.begun:
                self._begin(seq)
        batch = schedule.build_batch(prefills, decoding, chunk_tokens)
        if batch is not None:
            self._computing = batch.request_ids
            self._iteration.start(batch)

    def _end_iteration(self, finished: Finished) -> None:
        self.run_s += finished.run_s
        self._computing = frozenset()
        assert finished.sampled is not None, "an iteration without result has raised"
        sample = sample_of(finished, self._store.take_restored_tokens())
        self._order.observe(sample)
        self.counters["iterations"] += 1
        self.counters["prefill_tokens"] += sample.prefill_tokens
        self.counters["decode_tokens"] += sample.decode_requests
        self._outlet.fact(sample)
        self._apply(finished.batch, finished.sampled)
        postponed, self._after_iteration = self._after_iteration, []
        for call in postponed:
            call()

    def _expire(self, now_s: float) -> None:
        for seq in [s for s in self._roster.waiting if now_s > s.deadline_s and not s.output]:
            self._finish(seq, FinishReason.ERROR, "the request waited past its deadline")

    def _admit(self) -> None:
        """Give waiting requests, in their order, the blocks of their prompt, once they may run
        soon."""
        roster = self._roster
        seq = self._order.first(roster.waiting)
        if self._blocked is not None and self._blocked[0] is not seq:
            self._blocked = None  # it was cancelled, recalled, overtaken, or has expired
        while seq is not None and roster.running < self._limits.max_running:
            if self._far(seq):
                return
            if self._blocked == (seq, self._store.l1.available_blocks):
                return  # nothing was freed since it last did not fit
            if not self._store.take_prefix(seq, headroom_blocks=len(roster.decoding)):
                self._blocked = (seq, self._store.l1.available_blocks)
                return
            self._blocked = None
            roster.move(seq, Stage.PREFILL)
            self.traffic.admitted(seq)
            seq = self._order.first(roster.waiting)

    def _far(self, seq: Sequence) -> bool:
        """Whether a request cannot run soon: others have more than a chunk before it, and that
        takes long. Where a chunk alone takes long, its KV may come while the last one runs."""
        tokens = self._order.ahead_tokens(seq, self._roster.prefilling)
        takes_s = tokens * self._order.token_s
        return tokens > self._limits.chunk_tokens and takes_s > self._limits.admit_ahead_s

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
                if self._store.leaving_blocks:
                    break  # room comes when copies are done; until then it sits out
                youngest = max(decoding, key=lambda s: s.arrived_s)
                self.counters["preempted"] += 1
                self._store.release(youngest)
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
        self.traffic.forget(seq)
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
        try:
            self._check(message.request, known=message.request_id in self._roster, waiting=0)
        except schedule.RequestRefusedError as error:
            return error.why
        return schedule.handover_fault(message, self._executor.vocab_size)

    def _full_for_arrivals(self) -> str:
        """Why no hand-over is taken now: the batch is full, or somebody waits for blocks here,
        who would wait for ever if arrivals took every block that comes free."""
        taken = len(self._roster.decoding) + self.inbound.count
        if taken >= self._limits.max_running:
            return f"{taken} requests decode here or are about to"
        if self._blocked is not None:
            return "a request here waits for blocks"
        return ""

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
