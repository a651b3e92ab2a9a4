"""Nine nodes under the paper's three workloads, with figures of the calibration of its tables."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from evctl.core.costs import Coefficients
from evctl.core.planning import SliceRecord
from evctl.core.split import Split
from evctl.policy.capacity import NodeCapacity
from evctl.policy.planner.fleet import Fleet
from evctl.policy.planner.forecast import Network, solve

NODES = 9
GLM = Coefficients(0, 0, 0, 0, 0.001, 0.0205, 0.000368, 256, 8, 4.0)
FLOOR_S = 0.45


class Workload(msgspec.Struct, frozen=True):
    """service_s: S of one prefill node; the rest as in tests of the forecast."""

    branches: float
    service_s: float
    output_tokens: float
    pause_s: float
    variation: float
    uncached_tokens: float
    context_tokens: float = 150_000
    pause_slope: float = 0.0


OSWORLD_128 = Workload(0.88 * 128, 1.83, 300, 4.3, 1, 9000)
CODING_126 = Workload(1.25 * 126, 0.793 * 5268 / 7660, 900, 12.2, 8, 5268, pause_slope=0.117)
CODING_90 = Workload(1.25 * 90, 0.793 * 4400 / 7660, 900, 12.2, 8, 4400, pause_slope=0.117)
PUTNAM_288 = Workload(288, 0.09, 1200, 10, 2, 440, 45_000)


def fleet(work: Workload, prefill: int, **more: Any) -> Fleet:
    model = msgspec.structs.replace(GLM, c1_s=work.service_s / work.uncached_tokens, **more)
    nodes = tuple(NodeCapacity(f"n{i}", model, 256, 5_000_000) for i in range(NODES))
    return Fleet(Split(prefill, NODES - prefill), nodes[:prefill], nodes[prefill:])


def window(
    work: Workload, prefill: int, *, spread: float = 0.02, slices: int = 10, seed: int = 1
) -> list[SliceRecord]:
    """Slices as they would be under that split. spread: of each slice's mean tokens."""
    network = Network(
        work.branches,
        work.pause_s,
        prefill,
        NODES - prefill,
        work.service_s,
        work.output_tokens / 2.3,
        work.variation,
        pause_slope=work.pause_slope,
        floor_s=FLOOR_S,
    )
    found = solve(network, GLM.decode_s)
    count = int(60 * found.throughput_rps)
    random = Random(seed)
    return [
        SliceRecord(
            start_s=60.0 * k,
            end_s=60.0 * k + 60.0,
            arrivals=count,
            completions=count,
            uncached_tokens=work.uncached_tokens * (1 + random.gauss(0, spread)),
            cached_tokens=work.context_tokens,
            attention_pairs=0.0,
            restored_tokens=0.0,
            output_tokens=work.output_tokens * (1 + random.gauss(0, spread)),
            accepted_per_iteration=2.3,
            tokens_per_iteration=1e9,
            in_flight=found.throughput_rps * (found.e2e_s or 0.0),
            decode_queue=0.0,
            prefill_queue=0.0,
            branches=work.branches,
            pause_s=work.pause_s,
            squared_variation=work.variation,
            service_s=work.service_s,
        )
        for k in range(slices)
    ]
