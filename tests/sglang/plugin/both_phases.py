"""SGLang 0.5.23's scheduler with both phases' queues and transfer managers, as a plugin.

A prototype (docs/decisions/009-two-transfer-managers.md): tensor parallelism, overlap scheduling,
speculation and a second tier are left out. The server is started as a decode node with a radix
cache and with role switching allowed, which gives it what both phases need: the decode-shaped
request pool and a bootstrap server of its own. Its role is then no property of the process: a
request whose bootstrap address is this node's is prefilled here, any other is decoded here.

SGLang asks "which role am I" in about a hundred places. Here the answer is that of the phase
whose turn it is, and what the two roles use differently under one name is exchanged with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from sglang.srt.disaggregation.mooncake import conn
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers import scheduler as upstream
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_disagg

PREFILL, DECODE = DisaggregationMode.PREFILL, DisaggregationMode.DECODE
# Under one name in both roles, and never the same thing.
OF_A_PHASE = (
    "waiting_queue",
    "running_batch",
    "last_batch",
    "chunked_req",
    "_pending_chunked_abort_req",
)
DECODE_QUEUES = ("disagg_decode_prealloc_queue", "disagg_decode_transfer_queue")


class OneRegistration(conn.MooncakeKVManager):
    """Registers each region once a process, whichever manager comes first.

    SGLang's own registers in every constructor, the engine refuses a batch that overlaps what is
    registered, and SGLang does not look at the result: the second manager's metadata buffers would
    stay unknown to the engine.
    """

    _known: ClassVar[set[tuple[int, int]]] = set()

    def register_buffer_to_engine(self) -> None:
        new = [region for region in self._registerable_regions() if region not in self._known]
        if not new:
            return
        pointers, lengths = zip(*new, strict=True)
        result = self.engine.batch_register(list(pointers), list(lengths))
        if result != 0:
            raise RuntimeError(f"{len(new)} regions were not registered: {result}")
        self._known.update(new)

    def deregister_buffer_to_engine(self) -> None:
        raise RuntimeError("a manager's regions are in use by the other phase")


class BothPhases(upstream.Scheduler):
    def init_disaggregation(self) -> None:
        self._kept: dict[DisaggregationMode, dict[str, Any]] = {}
        super().init_disaggregation()
        assert self.disaggregation_mode == DECODE, "start it with --disaggregation-mode decode"
        decode_queues = {name: getattr(self, name) for name in DECODE_QUEUES}
        with get_disagg().override(disaggregation_mode="prefill"):
            # Sets all four queues to None first. The metadata buffers that it leaves on the
            # scheduler are right: only the prefill half reads them from there.
            super().init_disaggregation()
        for name, queue in decode_queues.items():
            setattr(self, name, queue)
        self.disaggregation_mode = DECODE
        prefill, decode = (
            self.disagg_prefill_bootstrap_queue.kv_manager,
            self.disagg_decode_prealloc_queue.kv_manager,
        )
        assert prefill is not decode
        assert prefill.engine is decode.engine
        assert isinstance(prefill, OneRegistration), "the hook on the manager's class did not take"
        assert isinstance(decode, OneRegistration), "the hook on the manager's class did not take"

    def run_event_loop(self) -> None:
        assert not self.enable_overlap, "start it with --disable-overlap-schedule"
        self._kept[PREFILL] = {
            "waiting_queue": [],
            "running_batch": upstream.ScheduleBatch(reqs=[], batch_is_full=False),
            "last_batch": None,
            "chunked_req": None,
            "_pending_chunked_abort_req": None,
        }
        super().run_event_loop()

    # SGLang's `_dispatch_event_loop_once` takes this one: the process is a decode node to it.
    def event_loop_normal_disagg_decode(self) -> None:
        with upstream.torch.no_grad():
            while not self.gracefully_exit:
                self.ingest_requests()
                if self._engine_paused:
                    self._record_scheduler_state_for_paused_engine()
                    continue
                busy = self._turn_of_decode()
                with self._phase(PREFILL):
                    busy = self._turn_of_prefill() or busy
                if not busy:
                    self._sched_idled = True
                    self.on_idle()

    def _turn_of_decode(self) -> bool:
        self.process_decode_queue()
        plan = self.get_next_disagg_decode_batch_to_run(running_batch=self.running_batch)
        return self._run(plan)

    def _turn_of_prefill(self) -> bool:
        self.waiting_queue.extend(self.disagg_prefill_bootstrap_queue.pop_bootstrapped())
        plan = self.get_next_disagg_prefill_batch_to_run(
            running_batch=self.running_batch, last_batch=self.last_batch
        )
        busy = self._run(plan)
        self.process_disagg_prefill_inflight_queue()
        return busy

    def _run(self, plan: Any) -> bool:
        self.running_batch, batch = plan.running_batch, plan.batch_to_run
        batch = self.ngram_embedding_manager.prepare_for_forward(
            batch, chunked_req=self.chunked_req
        )
        self.cur_batch_for_debug = batch
        if batch:
            self.process_batch_result(batch, self.run_batch(batch))
        self.last_batch = batch
        return bool(batch)

    @contextmanager
    def _phase(self, mode: DisaggregationMode) -> Iterator[None]:
        """What is inside happens in this phase; nests."""
        before = self.disaggregation_mode
        if mode == before or not self._kept:
            yield
            return
        self._exchange(before, mode)
        try:
            with get_disagg().override(disaggregation_mode=mode.value):
                yield
        finally:
            self._exchange(mode, before)

    def _exchange(self, old: DisaggregationMode, new: DisaggregationMode) -> None:
        self._kept[old] = {name: getattr(self, name) for name in OF_A_PHASE}
        for name, value in self._kept.pop(new).items():
            setattr(self, name, value)
        self.disaggregation_mode = new
        self._sync_disaggregation_mode_to_subcomponents()

    # ------------------------------------------------------------------ requests

    def _phase_of(self, request: Any) -> DisaggregationMode:
        """By its bootstrap address, which both nodes get: the prefill node's."""
        here = (self.server_args.host, get_disagg().disaggregation_bootstrap_port)
        return PREFILL if (request.bootstrap_host, request.bootstrap_port) == here else DECODE

    def handle_generate_request(self, recv_req: Any, **kwargs: Any) -> None:
        with self._phase(self._phase_of(recv_req)):
            super().handle_generate_request(recv_req, **kwargs)

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        with self._phase(self._phase_of(req)):
            super()._add_request_to_queue(req, is_retracted)

    def abort_request(self, recv_req: Any) -> None:
        for mode in (DECODE, PREFILL):
            with self._phase(mode):
                super().abort_request(recv_req)

    def is_fully_idle(self, for_health_check: bool = False, ignore_waiting: bool = False) -> bool:
        idle = True
        for mode in (DECODE, PREFILL):
            with self._phase(mode):
                idle = super().is_fully_idle(for_health_check, ignore_waiting) and idle
        return idle

    def handle_pd_role_switch(self, recv_req: Any) -> Any:
        raise RuntimeError("this scheduler has both roles: there is nothing to switch")


def register() -> None:
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler", BothPhases, HookType.REPLACE)
    HookRegistry.register(
        "sglang.srt.disaggregation.mooncake.conn.MooncakeKVManager",
        OneRegistration,
        HookType.REPLACE,
    )
