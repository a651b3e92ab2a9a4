"""The control plane of one cluster, put together: what serves the gateway and the admin API."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from typing import Final

import msgspec
import psutil

from evctl.control.audit import LIMIT_S, Audit
from evctl.control.branch_list import Wanted
from evctl.control.calibration import Calibration, calibration_limits
from evctl.control.dispatch import Dispatcher
from evctl.control.engines import Hub
from evctl.control.eventlog import EventLog
from evctl.control.frontdoor import InferenceRequest, ModelCard, OverloadedError
from evctl.control.journal import FORMAT, Journal, JournalHeader, segments, strays
from evctl.control.kept_models import KeptModels
from evctl.control.kv_board import KvBoard
from evctl.control.measures import Measures
from evctl.control.metrics import Snapshot
from evctl.control.overrides import Overrides
from evctl.control.pool import PoolMeasures
from evctl.control.recollect import Recollection
from evctl.control.records import Records
from evctl.control.settings import ControlSettings
from evctl.control.statedir import ControlRecord, StateDirectory
from evctl.control.status import Identification, StatusBoard
from evctl.control.streams import Streams
from evctl.control.why import WhyBoard
from evctl.control.writer import Writer
from evctl.core.branches import BranchSignal
from evctl.core.effects import SignalTaken
from evctl.core.errors import EvctlError
from evctl.core.events import (
    BranchSignalled,
    Event,
    FromNode,
    RequestArrived,
    RequestCancelled,
    RequestDone,
)
from evctl.core.kv_status import BranchPage, BranchPlace, BranchRow
from evctl.core.sampling import FinishReason
from evctl.core.status import ClusterStatus, EventRecord
from evctl.policy.directory import DirectoryConfig
from evctl.policy.state import ClusterState, PolicyConfig, StepResult
from evctl.policy.transition import ADVISE, AUTO
from evctl.wire.keys import load_keypair
from evctl.wire.messages import Tokens

IDLE_CHECK_S: Final = 5.0
DRAIN_TIMEOUT_S: Final = 900.0
DRAIN_POLL_S: Final = 0.05
STOP_RETRY_S: Final = 5.0
MAX_STRAYS: Final = 8


class ControlPlane:
    """A frontdoor.FrontDoor over engines. Made, started and closed on one asyncio loop.

    Raises EvctlError when the state directory is not usable or served by another.
    """

    def __init__(self, settings: ControlSettings) -> None:
        self.settings = settings
        self.directory = StateDirectory(settings.directory)
        self.kv_secret = self.directory.kv_secret()
        self.directory.lock()
        self.allow_replay = settings.allow_replay
        self.stopping = asyncio.Event()
        """Set when somebody asked for the end of the cluster; whoever runs us closes us."""
        self.clock = time.monotonic
        self._earlier = self.directory.control_record()
        self.epoch = 1 + max([self._earlier.epoch if self._earlier else 0, *segments_of(self)])
        writes = self.directory.split_writes()
        config = self._policy_config(writes)
        self.state = ClusterState(config)
        self.events = EventLog(time.time, writes, self.directory.append_split_write)
        self.measures = Measures(self.clock())
        self.counters: Counter[str] = Counter()
        self.streams = Streams(self.clock, self._give_up, self._progressed)
        header = JournalHeader(FORMAT, self.epoch, 0, self.clock(), time.time(), config)
        self.journal = Journal(self.directory.journal, header)
        self.writer = Writer(self.state, self.clock, self.journal, self._carry_out)
        self.writer.on_problem = lambda what: self.events.add("fail", what)
        self.pool = PoolMeasures()
        self.records = Records(self.state)
        self.writer.observers += [
            self.measures.observe,
            self.pool.observe,
            self.records.observe,
            self._observe,
        ]
        self.hub = Hub(
            settings,
            self.directory,
            load_keypair(self.directory.control_key),
            self.epoch,
            feed=self.writer.feed,
            streams=self.streams,
            clock=self.clock,
        )
        self.hub.on_crash = self._crashed
        self.hub.on_refusal = lambda refusal: self.events.add(
            "warn", f"refused: {refusal.code}: {refusal.why}", refusal.node
        )
        self.calibration = Calibration(
            calibration_limits(settings.warm_up_s, drift=settings.watch_drift),
            context_term=settings.decode_context,
            kept=KeptModels(
                self.directory.root / "times", lambda what: self.events.add("warn", what)
            ),
            hello=self.hub.hello_of,
            feed=self.writer.feed,
            note=self.events.add,
        )
        self.writer.observers.append(self.calibration.observe)
        self._dispatcher = Dispatcher(
            self.state, self.epoch, self.hub, self.streams, self.events, self.writer.feed
        )
        self._dispatcher.on_signal = lambda taken: self._signals_taken.append(taken)
        self.overrides = Overrides(
            self.writer,
            self.directory,
            self.clock,
            settings.cooldown_s,
            last_by=next((w.write.by for w in reversed(writes) if w.write is not None), ""),
        )
        self.kv = KvBoard(self.state, self.clock)
        self.audit = Audit(self.state)
        recollection = Recollection(self.directory.journal)
        self.why = WhyBoard(
            self.state, self.records, self.events, self.kv, recollection, self.clock
        )
        self._board = StatusBoard(
            self.state,
            self.measures,
            self.hub,
            self.directory,
            self.kv,
            self.pool,
            self.calibration,
            self.records.outcomes,
        )
        self._boot_id = secrets.token_hex(16)
        self._gateway = ""
        self._refusing = ""
        self._draining: asyncio.Task[None] | None = None
        self._signals_taken: list[SignalTaken] = []
        self._tasks: list[asyncio.Task[None]] = []

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Listen for engines. `publish` then tells the world where."""
        self.endpoint = self.hub.start(self._earlier.control_endpoint if self._earlier else "")
        self._tasks.append(asyncio.create_task(self._check_forever(), name="idle-check"))
        self.events.add("info", f"control plane up, epoch {self.epoch}")
        if self.state.planner.fresh and self.state.mode == AUTO:
            self.events.add("info", "mode auto: the planner only advises in its first window")
        for name, why in self.directory.damaged.items():
            self.events.add(
                "warn", f"{name} in {self.directory.root} is damaged and ignored: {why}"
            )
        for path in strays(self.directory.journal)[:MAX_STRAYS]:
            self.events.add("warn", f"{path} is no journal of ours and ignored")

    def publish(self, gateway: str) -> None:
        """Write control.json. gateway: URL, "" without one."""
        self._gateway = gateway
        me = psutil.Process()
        self.directory.write_control_record(
            ControlRecord(
                pid=os.getpid(),
                start_time=me.create_time(),
                boot_id=self._boot_id,
                epoch=self.epoch,
                control_endpoint=self.endpoint,
                gateway=gateway,
                admin=str(self.directory.admin_socket()),
            )
        )

    def refuse(self, why: str) -> None:
        """Take no new requests from now on."""
        self._refusing = self._refusing or why

    def end_streams(self) -> None:
        """Take no new requests, and end open ones with an error, at their engines too."""
        self.refuse("the control plane is stopping")
        self.streams.fail_all("the control plane is stopping")
        for request_id in list(self.state.requests):
            self.writer.feed(RequestCancelled(request_id))

    async def close(self) -> None:
        """Everything of ours ends; engines go on."""
        self.end_streams()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.kv.close()
        await self.calibration.close()
        await self.hub.close()
        self.writer.stop_ticks()
        await asyncio.get_running_loop().run_in_executor(None, self.journal.close)
        self.directory.unlock()

    def request_stop(self, *, drain: bool) -> None:
        """Have `stopping` set: now, or once nothing is in flight. Returns at once. Engines go
        on; whoever started them ends them."""
        self.refuse("the control plane is stopping")
        if not drain:
            self.stopping.set()
        elif self._draining is None:
            self._draining = asyncio.create_task(self._drain_then_stop(), name="drain")
            self._tasks.append(self._draining)

    def call_off_stop(self) -> bool:
        """Take requests again after a stop that waits for those in flight. False when the end has
        begun: nothing calls that off."""
        if self.stopping.is_set():
            return False
        if self._draining is not None:
            self._draining.cancel()
            self._tasks.remove(self._draining)
            self._draining = None
            self._refusing = ""
            self.events.add("info", "the stop was called off: requests are taken again")
        return True

    # ------------------------------------------------------------ FrontDoor

    def model(self) -> ModelCard | None:
        """None until the first engine has joined. The context is what every node can hold, so
        that no request is accepted that some node must refuse."""
        identity = self.hub.doorkeeper.identity
        if identity is None:
            return None
        card = identity.card
        blocks = min((e.hello.l1_blocks for e in self.hub.engines.values()), default=None)
        if blocks is None or blocks * card.block_tokens >= card.context_tokens:
            return card
        return msgspec.structs.replace(card, context_tokens=blocks * card.block_tokens)

    def ready(self) -> str:
        """Why requests cannot be served now; "" when they can."""
        if self._refusing:
            return self._refusing
        if not any(node.alive for node in self.state.nodes.values()):
            return "no engine is connected"
        return ""

    async def submit(self, request: InferenceRequest) -> AsyncGenerator[Tokens, None]:
        """Run a request; the contract is in frontdoor.FrontDoor.submit."""
        if self._refusing:
            raise OverloadedError(self._refusing, STOP_RETRY_S)
        stream = self.streams.open(request)
        try:
            self.writer.feed(_arrival(request))
            while True:
                message = await stream.read()
                yield message
                if message.finish is not None:
                    return
        finally:
            if not stream.ended:
                self.writer.feed(RequestCancelled(request.request_id))
            self.streams.close(request.request_id)

    def branch_signal(self, tenant: str, signal: BranchSignal, what: str) -> str:
        """Taken in before this returns; the contract is in frontdoor.FrontDoor."""
        self._signals_taken.clear()
        self.writer.feed(BranchSignalled(tenant, what, signal))
        self.counters[f"branch_signals_{what}"] += 1
        why = self._signals_taken[-1].why if self._signals_taken else "it could not be taken in"
        self.counters["branch_signals_without_effect"] += bool(why)
        return why

    async def branches(self, tenant: str, *, after: str, limit: int) -> BranchPage:
        """The contract is in frontdoor.FrontDoor."""
        place = BranchPlace(0.0, tenant, after) if after else None
        return await self.kv.branches.page(Wanted(tenant, after=place, limit=limit))

    def branch(self, tenant: str, branch: str) -> BranchRow | None:
        """The contract is in frontdoor.FrontDoor."""
        found = self.kv.branches.known(tenant, branch)
        return found.row if found is not None else None

    # ------------------------------------------------------------ operators and branches

    def has_heard_of(self, tenant: str, branch: str) -> bool:
        """Whether the branch lives, or ended and is remembered."""
        ledger = self.state.directory.ledger
        return (tenant, branch) in ledger.branches or (tenant, branch) in ledger.ended

    def end_branch(self, tenant: str, branch: str, *, by: str, reason: str) -> str:
        """End it as its harness would; the event log says who did. Returns why nothing changed,
        "" when it was ended."""
        why = self.branch_signal(tenant, BranchSignal(branch), "end")
        if not why:
            told = f": {reason}" if reason else ""
            self.events.add("info", f"branch {branch} of tenant {tenant} ended by {by}{told}")
        return why

    # ------------------------------------------------------------ what others read

    def status(self) -> ClusterStatus:
        about = Identification(
            cluster=self.settings.cluster,
            model=self.settings.model,
            epoch=self.epoch,
            gateway=self._gateway,
            admin=f"unix:{self.directory.admin_socket()}",
        )
        return self._board.status(about, self.events.sequence, self.clock())

    def snapshot(self) -> Snapshot:
        """For metrics."""
        counters: Counter[str] = Counter(self.counters)
        counters.update(self.hub.counters)
        counters.update(self.streams.counters)
        counters["steps"] = self.writer.steps
        counters["facts_ignored"] = self.state.tallies.ignored
        tallies = msgspec.structs.asdict(self.state.directory.tallies)
        counters.update({f"directory_{name}": count for name, count in tallies.items()})
        counters.update({f"wire_{k}": v for k, v in self.hub.wire_counters().items()})
        return Snapshot(
            status=self.status(),
            cancelled=self.state.tallies.cancelled,
            journal_bytes=self.journal.written_bytes,
            counters=counters,
            kv=self.kv.summary(),
            records=self.records,
            engines={name: engine.counters for name, engine in self.hub.engines.items()},
            node_waits=dict(self.measures.node_waits),
        )

    # ------------------------------------------------------------ inside

    def _policy_config(self, writes: Sequence[EventRecord]) -> PolicyConfig:
        """The configured split, or the roles that an earlier life left. Generations go on from
        the last one that is known, even if the roles are lost: nobody may mistake one for
        another."""
        settings = self.settings
        config = PolicyConfig(
            nodes=settings.nodes,
            split=settings.split,
            max_queued=settings.max_queued,
            node_late_after_s=settings.node_late_after_s,
            fetch_ahead=settings.fetch_ahead,
            warm_up_s=settings.warm_up_s,
            mode=settings.first_mode,
            planner=settings.planner,
            routing=settings.routing,
            shortest_first=settings.shortest_first,
            prefill_ageing=settings.prefill_ageing,
            append_tokens=settings.append_tokens,
            directory=DirectoryConfig(suspect_after_s=settings.suspect_after_s),
        )
        ended = [one.transition.number for one in writes if one.transition is not None]
        begun = [one.write.change for one in writes if one.write is not None]
        config = msgspec.structs.replace(config, transitions=max([0, *ended, *begun]))
        held = self.directory.held_roles()
        if held is None:
            told = [one.write for one in writes if one.write is not None]
            known = [write.generation for write in told]
            # What held the split, and until when, is lost: nothing moves until somebody says so.
            mode = ADVISE if told and told[-1].mode != AUTO else config.mode
            generation = max([config.generation, *known])
            return msgspec.structs.replace(config, generation=generation, mode=mode)
        return msgspec.structs.replace(
            config,
            roles={name: role.value for name, role in held.roles.items()},
            generation=held.generation,
            mode=held.mode,
            held_by=held.held_by,
            hold_reason=held.hold_reason,
            held_until_s=(
                None if held.until_s is None else self.clock() + held.until_s - time.time()
            ),
            mode_after=held.mode_after,
        )

    def _carry_out(self, effect: object) -> None:
        self._dispatcher.carry_out(effect)  # type: ignore[arg-type]

    def _observe(self, _: float, event: Event, result: StepResult) -> None:
        del result
        if isinstance(event, FromNode) and isinstance(event.fact, RequestDone):
            if event.fact.reason == FinishReason.CANCELLED:
                # Nobody here asked for it, or the stream would be closed already.
                self.streams.fail(event.fact.request_id, "the engine was told to cancel it")
            self.streams.done(event.fact.request_id)

    def _crashed(self, error: BaseException) -> None:
        """Whoever started us starts us again; engines wait for that."""
        self.events.add("fail", f"EV-9003: the control plane ends itself: {error!r}")
        self.stopping.set()

    def _give_up(self, request_id: str) -> None:
        self.writer.feed(RequestCancelled(request_id))

    def _progressed(self, request_id: str, before: int, received: int) -> None:
        self.measures.progressed(self.clock(), request_id, before, received)

    async def _drain_then_stop(self) -> None:
        deadline_s = self.clock() + DRAIN_TIMEOUT_S
        while (self.state.requests or len(self.streams)) and self.clock() < deadline_s:
            await asyncio.sleep(DRAIN_POLL_S)
        self.stopping.set()

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(IDLE_CHECK_S)
            if self.writer.audit_is_due():
                await self._audit_books()

    async def _audit_books(self) -> None:
        try:
            found = await self.audit.run()
        except OSError as error:
            self.writer.audited((f"they could not be looked at: {error}",), LIMIT_S)
        except EvctlError as error:
            self.writer.audited((f"{error.code}: {error.why}",), LIMIT_S)
        else:
            self.writer.audited(found.problems, found.seconds)


def segments_of(plane: ControlPlane) -> list[int]:
    """Epochs that have a journal: none of them may be used again."""
    return list(segments(plane.directory.journal))


def _arrival(request: InferenceRequest) -> RequestArrived:
    return RequestArrived(
        request_id=request.request_id,
        tenant=request.tenant,
        branch=request.branch,
        prompt_tokens=len(request.prompt),
        max_output_tokens=request.sampling.max_tokens,
        root_key=request.root_key,
        block_keys=request.block_keys,
    )
