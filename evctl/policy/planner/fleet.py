"""Nodes as candidates see them: who is in which phase under another split."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from evctl.core.costs import Coefficients
from evctl.core.planning import Forecast, SliceRecord
from evctl.core.split import Split
from evctl.policy.capacity import NodeCapacity, largest_batch, node_prefill_rate, theta
from evctl.policy.planner.forecast import Network, solve

LEAST_SERVICE_S = 1e-9
"""Of a request that a model says takes no time: a queue needs some."""


class Fleet(msgspec.Struct, frozen=True):
    """Alive nodes by the role that the router sends them, those that are cheapest to move first.
    split: of all nodes, lost ones included: what a candidate differs from."""

    split: Split
    prefill: tuple[NodeCapacity, ...]
    decode: tuple[NodeCapacity, ...]

    def under(self, split: Split) -> tuple[tuple[NodeCapacity, ...], tuple[NodeCapacity, ...]]:
        """The alive nodes of either phase once the cheapest ones have moved."""
        gained = split.prefill_nodes - self.split.prefill_nodes
        if gained >= 0:
            return (*self.prefill, *self.decode[:gained]), self.decode[gained:]
        return self.prefill[-gained:], (*self.decode, *self.prefill[:-gained])

    def splits(self) -> list[Split]:
        """All candidates: at least one node a phase. The present one among them."""
        nodes = self.split.nodes
        return [Split(prefill, nodes - prefill) for prefill in range(1, nodes)]


def slower_phase(fleet: Fleet, split: Split, slice_: SliceRecord) -> Forecast:
    """Theta of Eq. 5: throughput, and nothing about latency."""
    return Forecast(theta(*fleet.under(split), slice_))


def closed_loop(fleet: Fleet, split: Split, slice_: SliceRecord) -> Forecast:
    """The closed network of the slice's branches on that split. The slice must have measured
    pauses (branches > 0). A pool of different nodes is taken for as many equal ones.

    The pause of the loop is what keeps branches out of flight, for each request: first ones of a
    branch, and those of no branch, have none.
    """
    prefill, decode = fleet.under(split)
    rate = sum(node_prefill_rate(node.coefficients, slice_) for node in prefill)
    if rate <= 0.0:  # a model by which a request takes for ever
        return Forecast(0.0)
    service_s = max(LEAST_SERVICE_S, len(prefill) / rate)
    began_s = slice_.arrivals / max(1e-9, slice_.end_s - slice_.start_s)
    prefilling_s = slice_.prefill_running / began_s if began_s else 0.0
    pausing = max(0.0, slice_.branches - slice_.in_flight)
    network = Network(
        branches=slice_.branches,
        pause_s=pausing / began_s if began_s else 0.0,
        prefill_nodes=len(prefill),
        decode_nodes=len(decode),
        service_s=service_s,
        output_iterations=slice_.output_tokens / (slice_.accepted_per_iteration or 1.0),
        squared_variation=slice_.squared_variation,
        most_batch=sum(largest_batch(node, slice_) for node in decode) / len(decode),
        floor_s=max(0.0, prefilling_s - slice_.service_s) if slice_.service_s else 0.0,
        hand_over_s=slice_.decode_queue / began_s if began_s else 0.0,
    )
    context_tokens = slice_.uncached_tokens + slice_.cached_tokens + slice_.output_tokens / 2
    return solve(network, _mean_iteration(decode, context_tokens))


def _mean_iteration(
    nodes: tuple[NodeCapacity, ...], context_tokens: float
) -> Callable[[float], float]:
    """Iteration time of their mean node, whose requests have so many tokens of context each. Eq. 2
    is linear in its coefficients, so that nodes with the same experts are one with mean
    coefficients."""
    models = [node.coefficients for node in nodes]
    first = models[0]
    alike = all(
        (m.experts, m.experts_per_token, m.forwarded_tokens)
        == (first.experts, first.experts_per_token, first.forwarded_tokens)
        for m in models
    )
    if not alike:
        return lambda batch: (
            sum(m.decode_s(max(1.0, batch), max(1.0, batch) * context_tokens) for m in models)
            / len(models)
        )
    mean = Coefficients(
        c0_s=0.0,
        c1_s=0.0,
        c2_s=0.0,
        c3_s=0.0,
        d0_s=sum(m.d0_s for m in models) / len(models),
        d1_s=sum(m.d1_s for m in models) / len(models),
        d2_s=sum(m.d2_s for m in models) / len(models),
        experts=first.experts,
        experts_per_token=first.experts_per_token,
        forwarded_tokens=first.forwarded_tokens,
        d3_s=sum(m.d3_s for m in models) / len(models),
    )
    return lambda batch: mean.decode_s(max(1.0, batch), max(1.0, batch) * context_tokens)
