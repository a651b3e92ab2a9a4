"""A cluster that is not there: statuses to order, a source that tells them, a clock by hand."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from datetime import UTC

import msgspec

from evctl.core.errors import ConflictError, UsageError
from evctl.core.kv_status import KvStatus
from evctl.core.pool_status import AheadStatus, NodePool, PoolStatus, TierOccupancy
from evctl.core.split import parse_split
from evctl.core.status import (
    ClusterStatus,
    EventRecord,
    Move,
    NodeStatus,
    QueueStatus,
    SplitChange,
    WatchFrame,
)
from evctl.tui.look import ASCII, DARK, UNICODE, Look
from evctl.tui.model import Model, fold
from evctl.tui.source import Stale
from evctl.tui.state import Ui
from evctl.tui.views.nodes import cells, columns_for
from evctl.tui.views.scene import Scene

replace = msgspec.structs.replace


def node_pool(
    name: str, l1: tuple[int, ...], l2: tuple[int, ...], quarantined: int = 0
) -> NodePool:
    """classes of either tier: unreferenced, suspect, live."""
    tiers = TierOccupancy(1000, sum(l1), l1), TierOccupancy(2000, 1900, l2, quarantined)
    return NodePool(name, *tiers, pins=3, loans=1, write_queue_blocks=14)


POOL = PoolStatus(
    fetches=40,
    fetched_blocks={"l1": 900, "own_l2": 300, "peer_l2": 600},
    fetched_bytes={"l1": 58_982_400, "own_l2": 19_660_800, "peer_l2": 39_321_600},
    fetch_s=8.0,
    exposed_s=0.5,
    share_hidden=0.9375,
    recomputed_blocks={"gone": 3, "deadline": 12, "corrupt": 0},
    ahead=AheadStatus({"sent": 9, "done": 8, "no_room": 1}, 120, 7_864_320, 16),
    nodes=(
        node_pool("n1", (100, 20, 500), (800, 100, 900), 2),
        node_pool("n2", (500, 0, 0), (0, 0, 1900)),
        node_pool("n3", (0, 0, 1000), (1900, 0, 0)),
    ),
)
EPOCH_S = 1_700_000_000.0


def node(name: str, role: str = "P", **changes: object) -> NodeStatus:
    base = NodeStatus(
        name=name,
        role=role,
        target_role=role,
        state="ok",
        boot_id="8c1f44d2aa",
        age_s=0.4,
        queue=3,
        running=2,
        running_prefill=2 if role == "P" else 0,
        running_decode=0 if role == "P" else 2,
        l1=0.81,
        l2=0.0,
        pid=4711,
        blocks=1200,
        referenced=0.63,
    )
    return replace(base, **changes)


def cluster(*nodes: NodeStatus, **changes: object) -> ClusterStatus:
    chosen = nodes or (node("n1"), node("n2"), node("n3", "D"))
    prefill = sum(each.role == "P" for each in chosen)
    split = f"{prefill}P{len(chosen) - prefill}D"
    base = ClusterStatus(
        cluster="replay",
        gateway="http://127.0.0.1:8080",
        admin="http://evctl",
        model="smollm2-135m",
        split=split,
        target_split=split,
        mode="hold",
        generation=41,
        epoch=1,
        sequence=1,
        in_flight=7,
        prefill=QueueStatus(waiting=3, running=4, wait_p50_s=0.42, wait_p95_s=1.84),
        decode=QueueStatus(waiting=0, running=5, wait_p50_s=0.01, wait_p95_s=0.08),
        ttft_p50_s=0.71,
        ttft_p95_s=2.43,
        requests_done=312,
        requests_failed=0,
        requests_rejected=0,
        throughput_rps=2.41,
        nodes=chosen,
        held_by="",
        kv=KvStatus(
            copies=3600,
            tree_blocks=2400,
            live=14,
            suspect=2,
            ended=120,
            references=(1332, 1500, 600, 120, 30, 18),
            references_age_s=0.2,
        ),
    )
    return replace(base, **changes)


def event(sequence: int, what: str, **changes: object) -> EventRecord:
    return replace(EventRecord(sequence, EPOCH_S + sequence, "info", what), **changes)


def snapshot(status: ClusterStatus, *events: EventRecord) -> WatchFrame:
    return WatchFrame("snapshot", 1, status, events)


def model_of(status: ClusterStatus, *events: EventRecord, at_s: float = 100.0) -> Model:
    return fold(Model(), snapshot(status, *events), at_s)


def scene_of(
    model: Model, *, now_s: float = 100.4, ascii_only: bool = False, **ui: object
) -> Scene:
    look = Look(ASCII if ascii_only else UNICODE, DARK)
    return Scene(model, model, replace(Ui(), **ui), look, now_s, UTC)


def row_of(scene: Scene, each: NodeStatus, width: int = 118) -> list[str]:
    columns = columns_for(width, (each,))
    return [cell.plain.strip() for cell in cells(each, columns, scene)]


class FakeClock:
    """Seconds that pass when a test says so."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


class FakeSource:
    """An AdminSource that tells what a test puts in, and keeps what was asked of it."""

    def __init__(self, status: ClusterStatus | None = None) -> None:
        self.status_now = status or cluster()
        self.calls: list[tuple[str, bool, bool, int | None]] = []
        self.modes: list[tuple[str, str, int | None, float | None]] = []
        self.refused_until_s: float | None = None
        self.streams = 0
        self.events_now: list[EventRecord] = []
        self.errors: list[Exception] = []
        self.hold_calls = threading.Event()
        self.hold_calls.set()
        self._items: queue.Queue[WatchFrame | Stale | Exception] = queue.Queue()
        self._sequence = 0

    # ---------------------------------------------------------------- what a test says

    def tell(self, item: WatchFrame | Stale | Exception) -> None:
        self._items.put(item)

    def tell_status(self, status: ClusterStatus, *events: EventRecord, skip: int = 0) -> None:
        """The next frame of the stream; skip: frames that get lost before it."""
        self.status_now = status
        self._sequence += 1 + skip
        self.tell(WatchFrame("status", self._sequence, status, events))

    @property
    def drained(self) -> bool:
        return self._items.empty()

    # ------------------------------------------------------------------------ the port

    def watch(self) -> Iterator[WatchFrame | Stale]:
        self.streams += 1
        self._sequence = 1
        yield snapshot(self.status_now)
        while True:
            item = self._items.get()
            if isinstance(item, Exception):
                raise item
            if isinstance(item, WatchFrame) and item.kind == "snapshot":
                self._sequence = item.sequence
            yield item

    def status(self) -> ClusterStatus:
        return self.status_now

    def events(self, *, since: int, limit: int) -> tuple[EventRecord, ...]:
        return tuple(each for each in self.events_now if each.sequence > since)[-limit:]

    def set_split(
        self,
        split: str,
        *,
        by: str,
        reason: str,
        generation: int | None,
        plan: bool,
        force: bool,
    ) -> SplitChange:
        self.hold_calls.wait(10)
        self.calls.append((split, plan, force, generation))
        if self.errors:
            raise self.errors.pop(0)
        change = change_of(self.status_now, split, generation, plan=plan)
        if plan and self.refused_until_s is not None:
            return replace(change, refused_until_s=self.refused_until_s, cooldown_s=120.0)
        return change

    def set_mode(
        self, mode: str, *, by: str, reason: str, generation: int | None, for_s: float | None
    ) -> ClusterStatus:
        self.modes.append((mode, by, generation, for_s))
        if self.errors:
            raise self.errors.pop(0)
        now = self.status_now.generation
        return replace(self.status_now, mode=mode, held_by="", generation=now + 1)


def change_of(
    status: ClusterStatus, split: str, generation: int | None, *, plan: bool
) -> SplitChange:
    """What a control plane answers: the nodes that move, or a refusal."""
    wanted = parse_split(split)
    if wanted.nodes != len(status.nodes):
        raise UsageError(
            what=f"split {split} does not fit",
            why=f"the cluster has {len(status.nodes)} nodes",
            next_step="give a split of that many",
            code="EV-1103",
        )
    if generation is not None and generation != status.generation:
        raise ConflictError(
            what="the split was not changed",
            why=f"generation is {status.generation} since mallory wrote",
            next_step="look again",
            code="EV-1405",
        )
    roles = ["P"] * wanted.prefill_nodes + ["D"] * wanted.decode_nodes
    moves = tuple(
        Move(each.name, each.role, role, each.running, each.queue)
        for each, role in zip(status.nodes, roles, strict=True)
        if each.role != role
    )
    step = 0 if plan else 1
    return SplitChange(status.split, str(wanted), moves, status.generation + step, not plan)
