"""ClusterStatus, from the writer's state and what was measured."""

from __future__ import annotations

import time

import msgspec

from evctl.control.brain import brain_status
from evctl.control.calibration import Calibration
from evctl.control.engines import Hub
from evctl.control.kv_board import KvBoard
from evctl.control.liveness import why_gone
from evctl.control.measures import Measures, Window
from evctl.control.outcomes import Outcomes
from evctl.control.pool import PoolMeasures
from evctl.control.statedir import NodeProcess, StateDirectory
from evctl.core.status import ClusterStatus, NodeStatus, QueueStatus
from evctl.policy.state import ClusterState, NodeRecord, RequestRecord, Stage
from evctl.policy.transition import HOLD


class Identification(msgspec.Struct, frozen=True):
    """What does not change in a life of the control plane. gateway, admin: URLs."""

    cluster: str
    model: str
    epoch: int
    gateway: str
    admin: str


class StatusBoard:
    """Reads everything, changes nothing."""

    def __init__(
        self,
        state: ClusterState,
        measures: Measures,
        hub: Hub,
        directory: StateDirectory,
        kv: KvBoard,
        pool: PoolMeasures,
        calibration: Calibration,
        outcomes: Outcomes,
    ) -> None:
        self._state = state
        self._measures = measures
        self._hub = hub
        self._directory = directory
        self._kv = kv
        self._pool = pool
        self._calibration = calibration
        self._outcomes = outcomes

    def status(self, about: Identification, sequence: int, now_s: float) -> ClusterStatus:
        state, measures = self._state, self._measures
        change = state.transitions.open
        counts = dict.fromkeys(Stage, 0)
        for record in state.requests.values():
            counts[record.stage] += 1
        return ClusterStatus(
            cluster=about.cluster,
            gateway=about.gateway,
            admin=about.admin,
            model=about.model,
            split=state.settled_split,
            target_split=str(state.split),
            mode=state.mode,
            generation=state.generation,
            epoch=about.epoch,
            sequence=sequence,
            in_flight=len(state.requests),
            prefill=_queue(
                counts[Stage.WAITING], counts[Stage.PREFILL], measures.prefill_wait, now_s
            ),
            decode=_queue(
                counts[Stage.HANDOVER], counts[Stage.DECODE], measures.decode_wait, now_s
            ),
            ttft_p50_s=measures.ttft.percentile(now_s, 0.5),
            ttft_p95_s=measures.ttft.percentile(now_s, 0.95),
            requests_done=state.tallies.done,
            requests_failed=state.tallies.failed,
            requests_rejected=state.tallies.rejected,
            throughput_rps=measures.throughput_rps(now_s),
            nodes=tuple(self._node(node, now_s) for node in state.nodes.values()),
            held_by=state.held_by,
            hold_reason=state.hold_reason,
            refusals=self._hub.refusals.listed(),
            kv=self._kv.status(),
            pool=self._pool.status(state, self._hub.engines),
            times=tuple(self._calibration.status(node) for node in state.nodes.values()),
            held_until_s=(
                None if state.held_until_s is None else time.time() + state.held_until_s - now_s
            ),
            mode_after=state.mode_after if state.mode == HOLD else "",
            transition=change.so_far() if change is not None else None,
            predictions=self._outcomes.status(),
            brain=brain_status(state, now_s),
        )

    def _node(self, node: NodeRecord, now_s: float) -> NodeStatus:
        state = self._state
        records = state.requests_of(node)
        prefilling = sum(r.stage is Stage.PREFILL and r.prefill_node == node.name for r in records)
        decoding = sum(r.stage is Stage.DECODE and r.decode_node == node.name for r in records)
        engine = self._hub.engines.get(node.name)
        load = engine.load if engine else None
        process = self._directory.node_process(node.name)
        held = self._kv.of_node(node.name)
        blocks = sum(held.classes) if held else 0
        return NodeStatus(
            name=node.name,
            role=node.settled_role.value,
            target_role=node.role.value,
            state=self._state_word(node, process),
            boot_id=node.boot_id,
            age_s=max(0.0, now_s - node.seen_s) if node.boot_id else 0.0,
            queue=_waiting_at(node.name, records),
            running=prefilling + decoding,
            running_prefill=prefilling,
            running_decode=decoding,
            l1=_share(load.l1_used_blocks, load.l1_total_blocks) if load else 0.0,
            l2=_share(load.l2_used_blocks, load.l2_total_blocks) if load else 0.0,
            pid=process.pid if process else None,
            blocks=blocks,
            referenced=1.0 - held.classes[0] / blocks if held and blocks else None,
        )

    def _state_word(self, node: NodeRecord, process: NodeProcess | None) -> str:
        """Of a node that is not in, its process tells: one that has never joined is starting;
        an engine that we have given up since is known by its own."""
        if node.alive:
            return "late" if node.late else "ok"
        if process is not None and not self._hub.gave_up(process) and not why_gone(process):
            return "starting"
        return "lost" if node.boot_id else "absent"


def _waiting_at(node: str, records: list[RequestRecord]) -> int:
    """What waits there now: for its prefill to begin, or, computed elsewhere, to be handed over.
    Over all nodes this is what waits in both phases. What a node will decode once another has
    computed it waits there, and not here yet."""
    prefill = sum(r.stage is Stage.WAITING and r.prefill_node == node for r in records)
    return prefill + sum(r.stage is Stage.HANDOVER and r.decode_node == node for r in records)


def _share(used: int, total: int) -> float:
    return used / total if total else 0.0


def _queue(waiting: int, running: int, waits: Window, now_s: float) -> QueueStatus:
    return QueueStatus(
        waiting=waiting,
        running=running,
        wait_p50_s=waits.percentile(now_s, 0.5),
        wait_p95_s=waits.percentile(now_s, 0.95),
    )
