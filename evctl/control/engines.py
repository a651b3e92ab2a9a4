"""The engines as the control plane sees them: who is connected, what they say, what they get."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq

from evctl.control.greeting import Doorkeeper
from evctl.control.inventory import held_paths
from evctl.control.listening import open_listener
from evctl.control.liveness import Liveness, Loss
from evctl.control.refusals import Refusals
from evctl.control.roster import Engine, Roster
from evctl.control.settings import ControlSettings
from evctl.control.statedir import NodeProcess, StateDirectory
from evctl.control.streams import Streams
from evctl.core.blocks import KvNamespace, root_key
from evctl.core.events import (
    DispatchFailed,
    Event,
    FromNode,
    NodeJoined,
    NodeLost,
    NodeReport,
)
from evctl.core.status import Refusal
from evctl.wire import KeyPair, KeyRing, Received
from evctl.wire.aio import Readiness
from evctl.wire.messages import (
    AnyMessage,
    CancelRequest,
    Facts,
    GetInventory,
    Heartbeat,
    Hello,
    Inspection,
    Inventory,
    Peers,
    Refused,
    Tokens,
    Welcome,
)

POLL_S = 0.25
WATCH_EVERY_S = 0.5
GAP_S = 0.25
"""A round that comes so much later than it should says that this process stood still."""
TOLD_GAP_S = 1.0
TOLD_EVERY_S = 60.0
MAX_MESSAGES = 200
RETRY_CODES = frozenset({"EV-2307", "EV-2403", "EV-2405"})
"""Refusals of a request that another node may take: queue full, other epoch, stopping."""

log = logging.getLogger(__name__)


class Hub:
    """Owns the socket that engines dial. Lives on one asyncio loop."""

    def __init__(
        self,
        settings: ControlSettings,
        directory: StateDirectory,
        keypair: KeyPair,
        epoch: int,
        *,
        feed: Callable[[Event], None],
        streams: Streams,
        clock: Callable[[], float],
    ) -> None:
        self._roster = Roster()
        self.counters: Counter[str] = Counter()
        self.on_inspection: Callable[[str, Inspection], None] = lambda _node, _message: None
        self.doorkeeper = Doorkeeper(settings, directory)
        self.refusals = Refusals()
        self.on_refusal: Callable[[Refusal], None] = lambda _: None
        """Told of an engine that is turned away, once while the reason stays the same."""
        self.on_crash: Callable[[BaseException], None] = lambda _: None
        self._liveness = Liveness(directory, settings.node_lost_after_s)
        self._settings = settings
        self._directory = directory
        self._keypair = keypair
        self._epoch = epoch
        self._secret = directory.kv_secret()
        self._feed = feed
        self._streams = streams
        self._clock = clock
        self._ring = KeyRing()
        self._keys: dict[str, bytes] = {}
        self._trouble_told_s = float("-inf")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._tasks: list[asyncio.Task[None]] = []
        self._handlers: dict[type, Callable[[Engine, Any], None]] = {
            Heartbeat: self._on_heartbeat,
            Facts: self._on_facts,
            Tokens: self._on_tokens,
            Refused: self._on_refused,
            Inventory: self._on_inventory,
            Inspection: self._on_inspection,
        }

    # ------------------------------------------------------------ life

    def start(self, preferred_endpoint: str) -> str:
        """Listen, at the endpoint of an earlier life if that is free. Returns the endpoint."""
        self._load_keys()
        self._listener = open_listener(
            self._context,
            self._keypair,
            self._ring,
            self._settings.listen_host,
            preferred_endpoint,
        )
        self._listener.on_refusal = self._turn_away
        self._readiness = Readiness(self._listener)
        self._tasks = [
            asyncio.create_task(self._receive_forever(), name="engines"),
            asyncio.create_task(self._watch_forever(), name="engine-watch"),
        ]
        for task in self._tasks:
            task.add_done_callback(self._on_task_end)
        return self._listener.endpoint

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks:
            self._readiness.close()
            self._listener.close(linger_s=1.0)
        await asyncio.get_running_loop().run_in_executor(None, self._context.term)

    @property
    def engines(self) -> dict[str, Engine]:
        """Those that are in, by node."""
        return self._roster.present

    def hello_of(self, node: str) -> Hello | None:
        """What a node that is in said of itself."""
        engine = self.engines.get(node)
        return engine.hello if engine is not None else None

    def gave_up(self, process: NodeProcess) -> bool:
        """Whether that very process is an engine that was in, and fell silent."""
        return self._roster.has_silent(process)

    # ------------------------------------------------------------ to engines

    def send(self, node: str, message: AnyMessage) -> bool:
        """False when the node is not connected or takes nothing more now."""
        engine = self.engines.get(node)
        return engine is not None and self._listener.send(engine.peer, message)

    def reach(self, node: str, message: AnyMessage) -> None:
        """As `send`, also to a node that is silent: it may wake up."""
        if not self.send(node, message):
            for engine in self._roster.silent(node):
                self._listener.send(engine.peer, message)

    def send_all(self, message: AnyMessage) -> None:
        for node in list(self.engines):
            self.send(node, message)

    def wire_counters(self) -> dict[str, int]:
        return dict(self._listener.counters)

    # ------------------------------------------------------------ from engines

    async def _receive_forever(self) -> None:
        while True:
            await self._readiness.wait(POLL_S)
            for received in self._listener.receive(MAX_MESSAGES):
                try:
                    self._handle(received)
                except Exception:
                    # One bad message must not end the conversation with all engines.
                    self.counters["messages_failed"] += 1
                    log.exception("a message of an engine could not be handled")
            await asyncio.sleep(0)

    def _handle(self, received: Received) -> None:
        if isinstance(received.message, Hello):
            self._on_hello(received)
            return
        engine = self._roster.by_peer(received.peer) or self._wake(received.peer)
        handle = self._handlers.get(type(received.message))
        if engine is None:
            self._stranger(received)
        elif handle is None:
            why = f"{type(received.message).__name__} is not for the control plane"
            self._listener.send(received.peer, Refused("EV-1340", why))
        else:
            engine.heard_s = self._clock()
            handle(engine, received.message)

    def _stranger(self, received: Received) -> None:
        """A message of a connection that has not said Hello, or was refused."""
        self.counters["messages_before_hello"] += 1
        if isinstance(received.message, Refused):
            log.warning("an engine refuses: %s", received.message.reason)

    def _on_hello(self, received: Received) -> None:
        hello = received.message
        assert isinstance(hello, Hello)
        if not self.engines:
            self.doorkeeper.identity = None
        self._load_keys()
        answer = self.doorkeeper.examine(hello, received.public_key, self._keys)
        if isinstance(answer, Refused):
            self._listener.send(received.peer, answer)
            self._turn_away(received.public_key, answer.code, answer.reason)
            return
        self.refusals.forget(received.public_key)
        self._roster.drop(hello.peer.node)
        process = self._liveness.process_of(hello.peer.node)
        engine = Engine(received.peer, hello, self._clock(), process)
        if self._listener.send(
            received.peer, Welcome(self._settings.cluster, self._epoch, self._secret)
        ):
            self._admit(engine)

    def _turn_away(self, public_key: bytes, code: str, why: str) -> None:
        """Take down that an engine may not join. It is the node whose key it has, whatever it
        calls itself."""
        self.counters[f"refused_{code}"] += 1
        if any(engine.hello.peer.public_key == public_key for engine in self.engines.values()):
            return  # one bad frame of an engine that is in
        node = next((name for name, key in self._keys.items() if key == public_key), "")
        if refusal := self.refusals.add(public_key, node, code, why):
            self.on_refusal(refusal)

    def _admit(self, engine: Engine) -> None:
        """Take a node in: the reducer hears of it, its peers too, and it tells what it holds."""
        identity = self.doorkeeper.identity
        assert identity is not None, "an engine is examined before it is admitted"
        self._roster.add(engine)
        self._feed(
            NodeJoined(
                node=engine.node,
                boot_id=engine.boot_id,
                l1_blocks=engine.hello.l1_blocks,
                block_tokens=engine.hello.layout.block_tokens,
                max_running=engine.hello.max_running,
                context_tokens=identity.card.context_tokens,
                l2_blocks=engine.hello.l2_blocks,
            )
        )
        self._announce_peers()
        self.send(engine.node, GetInventory(0))

    def _wake(self, peer: bytes) -> Engine | None:
        """An engine that was given up speaks again, on the same connection."""
        engine = self._roster.wake(peer)
        if engine is not None:
            engine.heard_s = self._clock()
            self._admit(engine)
        return engine

    def _on_heartbeat(self, engine: Engine, message: Heartbeat) -> None:
        load = engine.load = message.load
        engine.counters = message.counters
        self._feed(
            NodeReport(
                node=engine.node,
                boot_id=engine.boot_id,
                waiting_prefill=load.waiting_prefill,
                running_prefill=load.running_prefill,
                waiting_decode=load.waiting_decode,
                running_decode=load.running_decode,
                l1_used_blocks=load.l1_used_blocks,
                prefill_tokens_left=load.prefill_tokens_left,
                l2_used_blocks=load.l2_used_blocks,
            )
        )

    def _on_facts(self, engine: Engine, message: Facts) -> None:
        for fact in message.events:
            self._feed(FromNode(engine.node, engine.boot_id, fact))

    def _on_tokens(self, engine: Engine, message: Tokens) -> None:
        if not self._streams.on_tokens(engine.node, message) and message.finish is None:
            # Left over from an earlier life of ours: nobody will ever read it.
            self.counters["orphans_cancelled"] += 1
            self.send(engine.node, CancelRequest(message.request_id))

    def _on_refused(self, engine: Engine, message: Refused) -> None:
        log.warning("%s refuses: %s: %s", engine.node, message.code, message.reason)
        self.counters["refused_by_engines"] += 1
        if message.request_id:
            self._feed(
                DispatchFailed(
                    request_id=message.request_id,
                    node=engine.node,
                    code=message.code,
                    reason=message.reason,
                    retry=message.code in RETRY_CODES,
                )
            )

    def _on_inventory(self, engine: Engine, message: Inventory) -> None:
        """What the node held before it (again) joined; facts that follow correct it."""
        engine.inventory.extend(message.blocks)
        if not message.last:
            return
        blocks, engine.inventory = engine.inventory, []
        for held in held_paths(blocks, self._roots()):
            self._feed(FromNode(engine.node, engine.boot_id, held))

    def _roots(self) -> frozenset[bytes]:
        """Parents of first blocks of all tenants."""
        identity = self.doorkeeper.identity
        if identity is None:
            return frozenset()
        card = identity.card
        names = [
            KvNamespace(tenant, card.weights_hash, numerics=card.numerics)
            for tenant in self._settings.tenants
        ]
        return frozenset(root_key(self._secret, name) for name in names)

    def _on_inspection(self, engine: Engine, message: Inspection) -> None:
        engine.load, engine.counters = message.load, message.counters
        self.on_inspection(engine.node, message)
        for problem in message.problems:
            log.error("%s: %s", engine.node, problem, extra={"event": "engine.integrity"})

    # ------------------------------------------------------------ silence and ends

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        """Our tasks end by being cancelled; anything else leaves the cluster without ears."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical("%s crashed", task.get_name(), exc_info=error)
            self.on_crash(error)

    def _lose(self, engine: Engine, loss: Loss) -> None:
        if loss.may_wake:
            self._roster.silence(engine)
        else:
            self._roster.drop(engine.node)
        self._feed(NodeLost(engine.node, engine.boot_id, loss.reason))
        self._announce_peers()

    async def _watch_forever(self) -> None:
        looked_s = self._clock()
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            now_s = self._clock()
            gap_s = now_s - looked_s - WATCH_EVERY_S
            looked_s = now_s
            if gap_s > GAP_S:
                self._excuse(gap_s, now_s)
            self._load_keys()
            for engine in list(self.engines.values()):
                if loss := self._liveness.examine(engine.process, now_s - engine.heard_s):
                    self._lose(engine, loss)
            self._streams.sweep()

    def _excuse(self, gap_s: float, now_s: float) -> None:
        """We were stopped, or busy. What engines said meanwhile may still be on its way, so the
        time does not count against anybody."""
        self.counters["gaps"] += 1
        if gap_s >= TOLD_GAP_S:
            extra = {"event": "engines.gap", "gap_s": round(gap_s, 3)}
            log.warning("the control plane stood still for %.1f s", gap_s, extra=extra)
        self._roster.excuse(gap_s, now_s)
        self._streams.excuse(gap_s)

    def _announce_peers(self) -> None:
        peers = tuple(engine.hello.peer for engine in self.engines.values())
        self.send_all(Peers(self._epoch, peers))

    def _load_keys(self) -> None:
        """Those that were known stay known while they cannot be read."""
        try:
            self._keys = self._directory.node_keys()
        except OSError as error:
            self.counters["keys_unreadable"] += 1
            if self._clock() - self._trouble_told_s >= TOLD_EVERY_S:
                self._trouble_told_s = self._clock()
                log.error("the nodes' keys cannot be read now", exc_info=error)
        self._ring.replace(self._keys.values())
