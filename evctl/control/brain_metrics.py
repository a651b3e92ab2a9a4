"""The numbers of /metrics about moves and predictions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from evctl.control import moves, outcomes
from evctl.core.transitions import LOST, SETTLED, SUPERSEDED


def move_metrics(found: moves.MoveMeasures) -> Iterator[Metric]:
    """Of nodes that changed their role."""
    ended = CounterMetricFamily(
        "evctl_node_moves", "Changes of a node's role that ended", labels=["outcome"]
    )
    for outcome in (SETTLED, SUPERSEDED, LOST):
        ended.add_metric([outcome], found.outcomes[outcome])
    yield ended
    requests = CounterMetricFamily(
        "evctl_node_move_requests",
        "Requests of the old role that finished in place, or went elsewhere",
        labels=["what"],
    )
    for what in ("finished", "requeued"):
        requests.add_metric([what], found.requests[what])
    yield requests
    seconds = HistogramMetricFamily(
        "evctl_node_move_seconds",
        "From the cordon of a node until nothing unbegun of its old role was left (flip), and"
        " until what ran there had ended (whole)",
        labels=["until"],
    )
    for until, one in (("flip", found.flip), ("whole", found.whole)):
        seconds.add_metric([until], _cumulative(moves.BOUNDS_S, one.buckets), one.sum_s)
    yield seconds


def error_metrics(found: Mapping[str, outcomes.Errors]) -> Iterator[Metric]:
    """Of predictions."""
    errors = HistogramMetricFamily(
        "evctl_prediction_error_ratio",
        "Errors: |predicted - actual| over the actual value; of waits, over the TTFT",
        labels=["what"],
    )
    for what, one in found.items():
        errors.add_metric([what], _cumulative(outcomes.BOUNDS, one.buckets), one.total)
    yield errors


def _cumulative(bounds: Sequence[float], buckets: Sequence[int]) -> list[tuple[str, float]]:
    names = [*map(str, bounds), "+Inf"]
    return list(zip(names, map(float, accumulate(buckets)), strict=True))
