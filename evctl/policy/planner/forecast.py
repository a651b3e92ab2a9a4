"""Closed-network forecast: throughput and latency of a split (design, section 5, plus).

Agents are a closed loop: a branch prefills, decodes, pauses, and comes back. So the forecast is
the fixed point of X = branches / (E2E + pause) with the queueing time of the prefill pool
(Allen-Cunneen), the batch of each decode node (Eq. 2), and a throughput below what prefill can
do. Latency rises with X, so the fixed point is the one root of a rising function.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from evctl.core.planning import Forecast

STEPS = 60
"""Of an iteration, at most; some ten suffice."""
CLOSE = 1e-9
_NEARLY = 1.0 - 1e-9
TAIL = 0.05
"""Waits beyond the 95th percentile."""


class Network(msgspec.Struct, frozen=True):
    """One split under one mean workload.

    branches: live ones, which is requests in flight and pauses under way. pause_s and
    pause_slope: a pause lasts pause_s + pause_slope * E2E (a parent waits for its sub-agents,
    whose time follows E2E). prefill_nodes, decode_nodes: alive ones. service_s: of one prefill
    node for a request; squared_variation: of that service. output_iterations: t_out / t_acc.
    most_batch: requests that a decode node holds at most. floor_s: of every first token, what
    neither queue nor prefill explains (hand-over).
    """

    branches: float
    pause_s: float
    prefill_nodes: int
    decode_nodes: int
    service_s: float
    output_iterations: float
    squared_variation: float = 1.0
    most_batch: float = math.inf
    pause_slope: float = 0.0
    floor_s: float = 0.0
    hand_over_s: float = 0.0


def solve(network: Network, iteration_s: Callable[[float], float]) -> Forecast:
    """Requests a second, mean TTFT and E2E, P95 of the wait for prefill; 0 and no more where
    nothing can be served: decode holds no request, or no branch is there.

    iteration_s: of a decode node with so many requests (Eq. 2), not falling.
    """
    most_rps = network.prefill_nodes / network.service_s
    decode_rps = _decode_limit(network, iteration_s)
    if decode_rps <= 0.0:
        return Forecast(0.0)

    def excess(throughput_rps: float) -> float:
        """Branches that so many requests a second would take, beyond those there are; times what
        is left of prefill, so that it is smooth where the queue grows without end."""
        e2e_s = _e2e(network, throughput_rps, iteration_s)
        cycle_s = e2e_s * (1.0 + network.pause_slope) + network.pause_s
        return (throughput_rps * cycle_s - network.branches) * (most_rps - throughput_rps)

    high = min(most_rps, decode_rps) * _NEARLY
    return _told(network, _root(excess, high), iteration_s, decode_rps)


def prefill_wait(network: Network, throughput_rps: float) -> tuple[float, float]:
    """Mean wait for prefill, and the share of requests that wait at all (Allen-Cunneen: Erlang
    C, times (1 + c2) / 2 for service that varies)."""
    servers = network.prefill_nodes
    load = throughput_rps * network.service_s
    waiting = erlang_c(servers, load)
    idle_rps = servers / network.service_s - throughput_rps
    return waiting / idle_rps * (1.0 + network.squared_variation) / 2.0, waiting


def erlang_c(servers: int, load: float) -> float:
    """Share of arrivals that wait; load: mean number of busy servers, below `servers`."""
    blocked = 1.0
    for busy in range(1, servers + 1):
        blocked = load * blocked / (busy + load * blocked)
    return servers * blocked / (servers - load * (1.0 - blocked))


def _root(excess: Callable[[float], float], high: float) -> float:
    """Where a function that is below 0 at 0 and rises comes to 0, at most `high`: false position,
    the end that stays halved (Illinois), which takes some ten steps."""
    low, below, above = 0.0, excess(0.0), excess(high)
    if above <= 0.0:
        return high
    side = 0
    for _ in range(STEPS):
        middle = (low * above - high * below) / (above - below)
        value = excess(middle)
        if abs(value) <= CLOSE * abs(below) or high - low <= CLOSE * high:
            return middle
        if value > 0.0:
            high, above = middle, value
            below = below / 2.0 if side > 0 else below
            side = 1
        else:
            low, below = middle, value
            above = above / 2.0 if side < 0 else above
            side = -1
    return low


def _told(
    network: Network,
    throughput_rps: float,
    iteration_s: Callable[[float], float],
    decode_rps: float,
) -> Forecast:
    wait_s, waiting = prefill_wait(network, throughput_rps)
    e2e_s = _e2e(network, throughput_rps, iteration_s)
    if throughput_rps >= decode_rps * (1.0 - 1e-6):
        # Decode is full: who finds no room there waits, and the loop takes as long as it must.
        cycle_s = network.branches / throughput_rps
        e2e_s = max(e2e_s, (cycle_s - network.pause_s) / (1.0 + network.pause_slope))
    p95_s = wait_s / waiting * math.log(waiting / TAIL) if waiting > TAIL else 0.0
    return Forecast(throughput_rps, _ttft(network, wait_s), e2e_s, p95_s)


def _e2e(network: Network, throughput_rps: float, iteration_s: Callable[[float], float]) -> float:
    wait_s, _ = prefill_wait(network, throughput_rps)
    batch = _batch(network, throughput_rps, iteration_s)
    decode_s = iteration_s(batch) * network.output_iterations
    return _ttft(network, wait_s) + decode_s + network.hand_over_s


def _ttft(network: Network, wait_s: float) -> float:
    return network.floor_s + wait_s + network.service_s


def _batch(
    network: Network, throughput_rps: float, iteration_s: Callable[[float], float]
) -> float:
    """Requests on a decode node: the root of B = x * T(B) * iterations, at most `most_batch`. A
    batch below 1 iterates as one of 1 does."""
    per_node = throughput_rps / network.decode_nodes * network.output_iterations
    most = min(network.most_batch, network.branches / network.decode_nodes)
    batch = 0.0
    for _ in range(STEPS):
        once = min(per_node * iteration_s(batch), most)
        twice = min(per_node * iteration_s(once), most)
        first, second = once - batch, twice - once
        if abs(second) <= CLOSE * twice:
            return twice
        batch = twice
        if first > second > 0.0:  # steps shrink by a ratio: go to where they end (Steffensen)
            batch = min(once + second * first / (first - second), most)
    return batch


def _decode_limit(network: Network, iteration_s: Callable[[float], float]) -> float:
    """Requests a second with every decode node as full as it can be."""
    if not network.output_iterations:
        return math.inf
    batch = min(network.most_batch, network.branches / network.decode_nodes)
    each_s = iteration_s(batch) * network.output_iterations
    return network.decode_nodes * batch / each_s if each_s > 0.0 else math.inf
