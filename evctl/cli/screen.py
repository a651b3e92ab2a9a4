"""A cluster's status as text."""

from __future__ import annotations

import sys
from typing import Final

from evctl.cli.moments import left
from evctl.cli.output import number_of, percent, seconds, table
from evctl.cli.style import painted_state
from evctl.core.pool_status import PoolStatus
from evctl.core.predictions import PREDICTED, PredictionStatus
from evctl.core.status import ClusterStatus, NodeStatus, QueueStatus, Refusal

FETCHED: Final = (("own_l2", "own"), ("peer_l2", "peers"))
"""Where blocks came from that were not in the node's L1."""


def status_screen(status: ClusterStatus) -> str:
    """All of it: identity, rates, queues of both phases, nodes."""
    parts = [_head(status), _queues(status), node_table(status.nodes)]
    if status.refusals:
        parts.append("\n".join(_refusal(refusal) for refusal in status.refusals))
    return "\n\n".join(parts)


def _refusal(refusal: Refusal) -> str:
    who = refusal.node or "an unknown engine"
    return f"{who} was refused: {refusal.code}: {refusal.why}"


def _head(status: ClusterStatus) -> str:
    split = status.split
    if status.target_split != status.split:
        split = f"{status.split} -> {status.target_split}"
    mode = status.mode
    if status.held_by:
        mode += f" by {status.held_by}" + (
            f" ({status.hold_reason})" if status.hold_reason else ""
        )
    if status.held_until_s is not None:
        mode += f", for another {left(status.held_until_s)}, then {status.mode_after}"
    counts = (
        f"{status.requests_done} done, {status.requests_failed} failed, "
        f"{status.requests_rejected} rejected"
    )
    ttft = f"p50 {seconds(status.ttft_p50_s)}, p95 {seconds(status.ttft_p95_s)}"
    rows = [
        ("cluster", f"{status.cluster}, generation {status.generation}, epoch {status.epoch}"),
        ("split", f"{split}, {mode}"),
        ("model", status.model),
        ("gateway", status.gateway or "-"),
        ("requests", f"{status.in_flight} in flight, {status.throughput_rps:.2f}/s; {counts}"),
        ("TTFT", ttft),
        ("predicted", _predictions(status.predictions)),
        ("pool", "-" if status.pool is None else _pool(status.pool)),
    ]
    return "\n".join(f"{name:<9} {value}" for name, value in rows)


def _predictions(found: PredictionStatus | None) -> str:
    """By how much the last predictions were off, in the median."""
    known = [(what, getattr(found, what, None)) for what in PREDICTED]
    told = [f"{what} {percent(one.median)}" for what, one in known if one is not None]
    return f"off by {', '.join(told)} (median)" if told else "nothing yet"


def _pool(pool: PoolStatus) -> str:
    """What was fetched from host memory, and what was computed though it was to be fetched."""
    if pool.is_absent:
        return "none, l2_tokens is 0"
    if not pool.fetches:
        return "nothing fetched yet"
    found = pool.fetched_blocks
    known = [(found[path], who) for path, who in FETCHED if path in found]
    told = ", ".join(f"{blocks} {who}" for blocks, who in known) or "-"
    parts = [f"{number_of(sum(blocks for blocks, _ in known), 'block')} fetched ({told})"]
    if pool.share_hidden is not None:
        parts.append(f"{percent(pool.share_hidden)} hidden")
    return ", ".join([*parts, *_recomputed(pool.recomputed_blocks)])


def _recomputed(by_cause: dict[str, int]) -> list[str]:
    """Nothing, or how many blocks were computed for which causes, the most frequent first."""
    causes = sorted(by_cause.items(), key=lambda each: (-each[1], each[0]))
    causes = [(name.replace("_", " "), blocks) for name, blocks in causes if blocks]
    if len(causes) < 2:
        return [f"{blocks} recomputed ({name})" for name, blocks in causes]
    told = ", ".join(f"{blocks} {name}" for name, blocks in causes)
    return [f"{sum(by_cause.values())} recomputed ({told})"]


def _queues(status: ClusterStatus) -> str:
    def row(name: str, queue: QueueStatus) -> list[str]:
        waits = [seconds(queue.wait_p50_s), seconds(queue.wait_p95_s)]
        return [name, str(queue.waiting), str(queue.running), *waits]

    rows = [row("prefill", status.prefill), row("decode", status.decode)]
    head = ("PHASE", "WAITING", "RUNNING", "WAIT P50", "WAIT P95")
    return table(head, rows, right=(1, 2, 3, 4))


def node_table(nodes: tuple[NodeStatus, ...]) -> str:
    def role(node: NodeStatus) -> str:
        changing = node.target_role != node.role
        return f"{node.role}>{node.target_role}" if changing else node.role

    rows = [
        [
            node.name,
            role(node),
            node.state,
            str(node.queue),
            str(node.running),
            percent(node.l1),
            percent(node.l2),
            "-" if node.referenced is None else percent(node.referenced),
            seconds(node.age_s if node.boot_id else None),
        ]
        for node in nodes
    ]
    head = ("NODE", "ROLE", "STATE", "QUEUE", "RUN", "L1", "L2", "REF", "AGE")
    paint = {2: lambda cell: painted_state(cell, sys.stdout)}
    return table(head, rows, right=(3, 4, 5, 6, 7, 8), paint=paint)
