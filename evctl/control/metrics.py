"""The numbers of /metrics, collected from a snapshot when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from evctl.control.brain_metrics import error_metrics, move_metrics
from evctl.control.records import Records
from evctl.core.kv_status import CLASSES, REFERENCE_BUCKETS, KvSummary
from evctl.core.pool_status import FETCH_PATHS, RECOMPUTE_CAUSES, PoolStatus
from evctl.core.status import ClusterStatus

DIRECTORY: Final = "directory_"
"""Counters of this prefix have a family of their own."""


class Snapshot(msgspec.Struct, frozen=True):
    """counters: name -> value of the control plane's own counts. engines: node -> counters.
    node_waits: node -> prefills that it began, and the seconds that those had waited."""

    status: ClusterStatus
    cancelled: int
    journal_bytes: int
    counters: Mapping[str, float]
    engines: Mapping[str, Mapping[str, float]]
    kv: KvSummary
    records: Records
    node_waits: Mapping[str, tuple[int, float]] = {}


class ClusterCollector(Collector):
    """Reads a fresh snapshot at each scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> list[Metric]:
        """Nothing: registering must not take a snapshot."""
        return []

    def collect(self) -> Iterator[Metric]:
        found = self._snapshot()
        yield from _requests(found)
        yield from _waits(found.status)
        yield from _nodes(found.status)
        yield from _node_waits(found.node_waits)
        yield from _models(found.status)
        yield from _directory(found)
        yield from move_metrics(found.records.moves)
        yield from error_metrics(found.records.outcomes.errors)
        if found.status.pool is not None:
            yield from _fetches(found.status.pool)
            yield from _ahead(found.status.pool)
            yield from _occupancy(found.status.pool)
        yield from _internals(found)


def render_metrics(snapshot: Callable[[], Snapshot]) -> bytes:
    """Prometheus text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ClusterCollector(snapshot))
    return generate_latest(registry)


def _requests(found: Snapshot) -> Iterator[Metric]:
    status = found.status
    ended = CounterMetricFamily("evctl_requests", "Requests that ended", labels=["outcome"])
    ended.add_metric(["done"], status.requests_done)
    ended.add_metric(["failed"], status.requests_failed)
    ended.add_metric(["rejected"], status.requests_rejected)
    ended.add_metric(["cancelled"], found.cancelled)
    yield ended
    here = GaugeMetricFamily("evctl_requests_here", "Requests now", labels=["phase", "state"])
    for phase, queue in (("prefill", status.prefill), ("decode", status.decode)):
        here.add_metric([phase, "waiting"], queue.waiting)
        here.add_metric([phase, "running"], queue.running)
    yield here


def _waits(status: ClusterStatus) -> Iterator[Metric]:
    waits = GaugeMetricFamily(
        "evctl_wait_seconds", "Waits of the last minute", labels=["what", "quantile"]
    )
    rows = (
        ("prefill", "0.5", status.prefill.wait_p50_s),
        ("prefill", "0.95", status.prefill.wait_p95_s),
        ("decode", "0.5", status.decode.wait_p50_s),
        ("decode", "0.95", status.decode.wait_p95_s),
        ("ttft", "0.5", status.ttft_p50_s),
        ("ttft", "0.95", status.ttft_p95_s),
    )
    for what, quantile, value in rows:
        if value is not None:
            waits.add_metric([what, quantile], value)
    yield waits


def _nodes(status: ClusterStatus) -> Iterator[Metric]:
    up = GaugeMetricFamily("evctl_node_up", "1 unless lost", labels=["node", "role"])
    age = GaugeMetricFamily("evctl_node_age_seconds", "Since its last word", labels=["node"])
    used = GaugeMetricFamily(
        "evctl_node_kv_used_ratio", "Blocks in use by requests", labels=["node", "tier"]
    )
    work = GaugeMetricFamily("evctl_node_requests", "Requests there", labels=["node", "state"])
    for node in status.nodes:
        up.add_metric([node.name, node.target_role], float(node.state in ("ok", "late")))
        age.add_metric([node.name], node.age_s)
        used.add_metric([node.name, "l1"], node.l1)
        used.add_metric([node.name, "l2"], node.l2)
        work.add_metric([node.name, "queued"], node.queue)
        work.add_metric([node.name, "prefill"], node.running_prefill)
        work.add_metric([node.name, "decode"], node.running_decode)
    yield from (up, age, used, work)


def _node_waits(node_waits: Mapping[str, tuple[int, float]]) -> Iterator[Metric]:
    waits = SummaryMetricFamily(
        "evctl_node_prefill_wait_seconds",
        "From arrival to the start of prefill, by the node that began it",
        labels=["node"],
    )
    for node, (count, total_s) in sorted(node_waits.items()):
        waits.add_metric([node], count_value=count, sum_value=total_s)
    yield waits


def _models(status: ClusterStatus) -> Iterator[Metric]:
    error = SummaryMetricFamily(
        "evctl_iteration_error_ratio",
        "Of predicted iteration times, relative to what was measured, since the model is in force",
        labels=["node", "kind"],
    )
    terms = GaugeMetricFamily(
        "evctl_model_seconds", "Coefficients of a node's times", labels=["node", "term"]
    )
    warming = GaugeMetricFamily(
        "evctl_node_warming", "1 while it works for both phases to be learned", labels=["node"]
    )
    off = GaugeMetricFamily(
        "evctl_model_off_ratio",
        "Predicted over measured busy time of the last window, minus 1",
        labels=["node"],
    )
    for model in status.times:
        warming.add_metric([model.node], float(model.warming))
        for term, seconds in model.coefficients.items():
            terms.add_metric([model.node, term], seconds)
        for one in model.iterations:
            error.add_metric([model.node, one.kind], one.iterations, one.errors)
        if model.off is not None:
            off.add_metric([model.node], model.off)
    yield from (error, terms, warming, off)


def _directory(found: Snapshot) -> Iterator[Metric]:
    kv, status = found.kv, found.kv.status
    branches = GaugeMetricFamily(
        "evctl_branches",
        "Branches; of ended ones, those whose ids are remembered",
        labels=["state"],
    )
    for state in ("live", "suspect", "ended"):
        branches.add_metric([state], getattr(status, state))
    copies = GaugeMetricFamily(
        "evctl_node_kv_copies",
        "Blocks on the node, each once, by what refers to them",
        labels=["node", "class"],
    )
    blocks = GaugeMetricFamily(
        "evctl_node_kv_blocks", "Blocks on the node by tier", labels=["node", "tier"]
    )
    for node in kv.nodes:
        for name, count in zip(CLASSES, node.classes, strict=True):
            copies.add_metric([node.node, name], count)
        blocks.add_metric([node.node, "l1"], node.l1)
        blocks.add_metric([node.node, "l2"], node.l2)
    references = GaugeMetricFamily(
        "evctl_kv_copies",
        "Copies of blocks by how many references of live branches they have; counted when asked"
        " for, at most every some seconds",
        labels=["references"],
    )
    for name, count in zip(REFERENCE_BUCKETS, status.references, strict=False):
        references.add_metric([name], count)
    yield from (branches, copies, blocks, references)
    yield GaugeMetricFamily("evctl_kv_tree_blocks", "Blocks in the tree", value=status.tree_blocks)
    yield GaugeMetricFamily("evctl_kv_tree_runs", "Runs in the tree", value=kv.runs)
    events = CounterMetricFamily(
        "evctl_directory_events",
        "What the directory ignored, dropped, guessed or changed by itself",
        labels=["what"],
    )
    for name, value in sorted(found.counters.items()):
        if name.startswith(DIRECTORY):
            events.add_metric([name.removeprefix(DIRECTORY)], value)
    yield events


def _fetches(pool: PoolStatus) -> Iterator[Metric]:
    blocks = CounterMetricFamily(
        "evctl_fetched_blocks",
        "Blocks of prompts that were not whole in L1, by where they were found",
        labels=["path"],
    )
    size = CounterMetricFamily("evctl_fetched_bytes", "The same in bytes", labels=["path"])
    for path in FETCH_PATHS:
        blocks.add_metric([path], pool.fetched_blocks.get(path, 0))
        size.add_metric([path], pool.fetched_bytes.get(path, 0))
    yield from (blocks, size)
    yield SummaryMetricFamily(
        "evctl_fetch_seconds",
        "How long KV was on its way to L1",
        count_value=pool.fetches,
        sum_value=pool.fetch_s,
    )
    yield SummaryMetricFamily(
        "evctl_fetch_exposed_seconds",
        "Of that, how long requests could have run but for their KV",
        count_value=pool.fetches,
        sum_value=pool.exposed_s,
    )
    if pool.share_hidden is not None:
        what = "Share of fetch time that was hidden behind queues, since the start"
        yield GaugeMetricFamily("evctl_fetch_hidden_ratio", what, value=pool.share_hidden)
    recomputed = CounterMetricFamily(
        "evctl_recomputed_blocks", "Blocks computed that were to be fetched", labels=["cause"]
    )
    causes = dict.fromkeys(RECOMPUTE_CAUSES, 0) | pool.recomputed_blocks
    for cause, count in causes.items():
        recomputed.add_metric([cause], count)
    yield recomputed


def _ahead(pool: PoolStatus) -> Iterator[Metric]:
    ended = CounterMetricFamily(
        "evctl_fetch_ahead", "Waiting branches that were due, and fetches", labels=["outcome"]
    )
    for outcome, count in pool.ahead.outcomes.items():
        ended.add_metric([outcome], count)
    yield ended
    for name, what, count in (
        ("evctl_fetch_ahead_blocks", "Blocks that came ahead of a request", pool.ahead.blocks),
        ("evctl_fetch_ahead_bytes", "The same in bytes", pool.ahead.bytes),
    ):
        came = CounterMetricFamily(name, what)
        came.add_metric([], count)
        yield came
    under_way = "Blocks asked for ahead of a request that may still come"
    yield GaugeMetricFamily(
        "evctl_fetch_ahead_under_way_blocks", under_way, value=pool.ahead.under_way_blocks
    )


def _occupancy(pool: PoolStatus) -> Iterator[Metric]:
    cached = GaugeMetricFamily(
        "evctl_node_tier_blocks",
        "Blocks of a node's tier that hold KV, by what refers to them",
        labels=["node", "tier", "class"],
    )
    quarantined = GaugeMetricFamily(
        "evctl_node_quarantined_blocks",
        "Blocks kept from use because a failed transfer may still write there",
        labels=["node", "tier"],
    )
    for node in pool.nodes:
        for tier, occupancy in (("l1", node.l1), ("l2", node.l2)):
            for name, count in zip(CLASSES, occupancy.classes, strict=False):
                cached.add_metric([node.node, tier, name], count)
            quarantined.add_metric([node.node, tier], occupancy.quarantined_blocks)
    yield from (cached, quarantined)


def _internals(found: Snapshot) -> Iterator[Metric]:
    status = found.status
    yield GaugeMetricFamily("evctl_epoch", "Life of the control plane", value=status.epoch)
    yield GaugeMetricFamily("evctl_generation", "Accepted writes", value=status.generation)
    journal = CounterMetricFamily("evctl_journal_bytes", "Written to the journal")
    journal.add_metric([], found.journal_bytes)
    yield journal
    counts = CounterMetricFamily("evctl_control", "Counts of the control plane", labels=["what"])
    for name, value in sorted(found.counters.items()):
        if not name.startswith(DIRECTORY):
            counts.add_metric([name], value)
    yield counts
    engine = GaugeMetricFamily(
        "evctl_engine", "What engines count, as of the last heartbeat", labels=["node", "what"]
    )
    for node, counters in sorted(found.engines.items()):
        for name, value in sorted(counters.items()):
            engine.add_metric([node, name], value)
    yield engine
