"""Requests a second that nodes, and a split of them, can serve (paper section 4.3, Eq. 5)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from evctl.core.costs import Coefficients
from evctl.core.planning import SliceRecord
from evctl.policy.costmodel.service import slice_decode_s, slice_prefill_s


class NodeCapacity(msgspec.Struct, frozen=True):
    """What a node's rate depends on besides the workload. max_running: requests that its engine
    takes into one decode batch; l1_tokens: KV that its L1 holds."""

    name: str
    coefficients: Coefficients
    max_running: int
    l1_tokens: int


def node_prefill_rate(coefficients: Coefficients, slice: SliceRecord) -> float:
    """mu_P = 1 / t_P(w): requests a second that the node can prefill. Infinite where the model
    says that prefill takes no time."""
    return _over(1.0, slice_prefill_s(coefficients, slice))


def node_decode_rate(coefficients: Coefficients, slice: SliceRecord, batch: float) -> float:
    """mu_D = B / t_D(w, B): requests a second that end on the node while it decodes `batch` of
    them. 0 for an empty batch; infinite where the slice's requests have no output."""
    return _over(batch, slice_decode_s(coefficients, slice, batch)) if batch > 0.0 else 0.0


def largest_batch(node: NodeCapacity, slice: SliceRecord) -> float:
    """Bmax: requests that the node decodes at once, bounded by its engine, and by its L1 at the
    slice's mean context (t_uc + t_c + t_out)."""
    context_tokens = slice.uncached_tokens + slice.cached_tokens + slice.output_tokens
    return min(float(node.max_running), _over(float(node.l1_tokens), context_tokens))


def theta(
    prefill: Sequence[NodeCapacity], decode: Sequence[NodeCapacity], slice: SliceRecord
) -> float:
    """Theta(P, D): requests a second of a split, as its slower phase allows (Eq. 5).

    Each decode node gets an equal share of the slice's requests in flight in both phases (N/D):
    what decode could hold if prefill were no bottleneck. With what decode holds now, an
    unsaturated decode side would predict today's throughput, and no node could ever be added to
    prefill. A phase without nodes serves nothing.
    """
    if not prefill or not decode:
        return 0.0
    share = slice.in_flight / len(decode)
    prefill_rps = math.fsum(node_prefill_rate(n.coefficients, slice) for n in prefill)
    decode_rps = math.fsum(
        node_decode_rate(n.coefficients, slice, min(largest_batch(n, slice), share))
        for n in decode
    )
    return min(prefill_rps, decode_rps)


def _over(part: float, whole: float) -> float:
    return part / whole if whole > 0.0 else math.inf
