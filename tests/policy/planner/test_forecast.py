"""The closed-network forecast beside the figures of a sketch made before it, and beside the paper.

The sketch's parameters: GLM-5.2's decode iteration (1 + 20.5 phi(B) + 0.368 B ms, 8 of 256
experts, 4 tokens a forward pass, 2.3 accepted), prefill service S and its squared coefficient of
variation by workload, a floor of 0.45 s under every TTFT.
"""

from __future__ import annotations

import math
from random import Random

import pytest

from evctl.core.costs import Coefficients
from evctl.core.planning import Forecast
from evctl.policy.planner.forecast import Network, erlang_c, prefill_wait, solve

GLM = Coefficients(0, 0, 0, 0, 0.001, 0.0205, 0.000368, 256, 8, 4.0)
ACCEPTED = 2.3


def coding(agents: int, uncached_tokens: float, prefill: int) -> Network:
    """Claude Code: 1.25 live branches an agent; parents wait for sub-agents, so that pauses
    follow E2E."""
    return Network(
        branches=1.25 * agents,
        pause_s=12.2,
        pause_slope=0.117,
        prefill_nodes=prefill,
        decode_nodes=9 - prefill,
        service_s=0.793 * uncached_tokens / 7660,
        squared_variation=8,
        output_iterations=900 / ACCEPTED,
        floor_s=0.45,
    )


def mathematics(agents: int, prefill: int) -> Network:
    return Network(agents, 10.0, prefill, 9 - prefill, 0.09, 1200 / ACCEPTED, 2.0, floor_s=0.45)


def computer_use(agents: int, prefill: int) -> Network:
    """OSWorld: 0.88 live branches an agent, and 3.1 s a cycle (12 %) that are neither request
    nor pause, beside a pause of 1.2 s."""
    return Network(
        0.88 * agents, 4.3, prefill, 9 - prefill, 1.83, 300 / ACCEPTED, 1.0, floor_s=0.45
    )


def near(found: Forecast, *row: float) -> bool:
    """Within what the table's digits and rounded parameters leave open: 2 % of throughput; of
    times 5 %, or 0.1 s."""
    throughput, ttft, e2e = row
    assert found.ttft_s is not None
    assert found.e2e_s is not None
    return (
        abs(found.throughput_rps / throughput - 1) < 0.02
        and abs(found.ttft_s - ttft) <= max(0.1, 0.05 * ttft)
        and abs(found.e2e_s - e2e) <= max(0.1, 0.05 * e2e)
    )


SKETCH = [
    (coding(90, 4400, 3), (5.48, 3.8, 7.4)),
    (coding(90, 4400, 4), (5.55, 1.4, 7.2)),
    (coding(90, 4400, 5), (5.19, 1.0, 8.5)),
    (coding(108, 4800, 3), (5.47, 7.6, 11.2)),
    (coding(108, 4800, 4), (6.08, 2.2, 9.0)),
    (coding(108, 4800, 5), (5.83, 1.2, 9.8)),
    (coding(126, 5268, 4), (6.33, 4.3, 11.5)),
    (coding(126, 5268, 5), (6.44, 1.7, 11.1)),
    (coding(126, 5268, 6), (6.08, 1.2, 12.4)),
    (mathematics(224, 1), (9.46, 1.3, 13.7)),
    (mathematics(224, 2), (9.27, 0.6, 14.2)),
    (mathematics(224, 3), (8.87, 0.5, 15.3)),
    (mathematics(256, 1), (10.18, 2.0, 15.2)),
    (mathematics(256, 2), (10.18, 0.6, 15.1)),
    (mathematics(288, 1), (10.63, 3.5, 17.1)),
    (mathematics(288, 2), (11.07, 0.6, 16.0)),
    (computer_use(128, 8), (4.32, 18.9, 21.7)),
]


@pytest.mark.parametrize(("network", "row"), SKETCH)
def test_every_row_of_the_sketch(network: Network, row: tuple[float, float, float]) -> None:
    found = solve(network, GLM.decode_s)
    assert near(found, *row), found


@pytest.mark.parametrize(
    ("network", "row"),
    [
        (coding(90, 4400, 3), (5.44, 3.5, 7.8)),
        (coding(126, 5268, 4), (6.27, 4.5, 11.2)),
        (mathematics(224, 2), (9.20, 0.6, 14.0)),
        (computer_use(128, 8), (4.33, 21.6, 24.2)),
    ],
)
def test_rows_of_the_paper_within_fifteen_percent(
    network: Network, row: tuple[float, float, float]
) -> None:
    found = solve(network, GLM.decode_s)
    values = (found.throughput_rps, found.ttft_s or 0.0, found.e2e_s or 0.0)
    assert all(abs(value / told - 1) < 0.15 for value, told in zip(values, row, strict=True))
    assert abs(found.throughput_rps / row[0] - 1) < 0.02


@pytest.mark.parametrize("agents", [128, 160])
def test_eight_prefill_nodes_are_best_for_computer_use(agents: int) -> None:
    found = {p: solve(computer_use(agents, p), GLM.decode_s).throughput_rps for p in range(1, 9)}
    assert max(found, key=found.__getitem__) == 8
    assert found[8] == pytest.approx(4.3, abs=0.05)


def any_network(random: Random) -> Network:
    return Network(
        branches=random.uniform(0.5, 500),
        pause_s=random.choice([0.0, 1.0, 10.0, 300.0]),
        prefill_nodes=random.randint(1, 96),
        decode_nodes=random.randint(1, 96),
        service_s=10 ** random.uniform(-2, 1),
        output_iterations=10 ** random.uniform(0, 3.3),
        squared_variation=random.uniform(0.0, 17.0),
        most_batch=random.choice([1.0, 4.0, 32.0, math.inf]),
        pause_slope=random.choice([0.0, 0.117]),
        floor_s=random.choice([0.0, 0.45]),
        hand_over_s=random.choice([0.0, 0.2]),
    )


def test_the_loop_closes_wherever_it_is_solved() -> None:
    """X = branches / (E2E + pause), by Little's law: the definition of the fixed point."""
    random = Random(7)
    for _ in range(500):
        network = any_network(random)
        found = solve(network, GLM.decode_s)
        assert found.e2e_s is not None
        cycle_s = found.e2e_s * (1 + network.pause_slope) + network.pause_s
        assert found.throughput_rps * cycle_s == pytest.approx(network.branches, rel=1e-3)
        assert found.throughput_rps * network.service_s < network.prefill_nodes


def test_more_branches_never_serve_less_nor_sooner() -> None:
    random = Random(8)
    for _ in range(200):
        network = any_network(random)
        fields = {name: getattr(network, name) for name in Network.__struct_fields__}
        more = Network(**{**fields, "branches": 1.3 * network.branches})
        few, many = solve(network, GLM.decode_s), solve(more, GLM.decode_s)
        assert many.throughput_rps >= few.throughput_rps * (1 - 1e-6)
        assert (many.e2e_s or 0) >= (few.e2e_s or 0) * (1 - 1e-6)


@pytest.mark.parametrize(
    ("servers", "load", "waits"),
    # M/M/1: the load itself; M/M/2 at one half each: 1/3; M/M/3 by the textbook's sum.
    [(1, 0.7, 0.7), (2, 1.0, 1 / 3), (3, 2.0, 4 / 9)],
)
def test_erlang_c(servers: int, load: float, waits: float) -> None:
    assert erlang_c(servers, load) == pytest.approx(waits)


def test_waits_of_one_server_are_those_of_pollaczek_and_khinchine() -> None:
    network = Network(1, 0, 1, 1, 2.0, 1.0, squared_variation=3.0)
    load = 0.8
    mean_s, waits = prefill_wait(network, load / 2.0)
    assert mean_s == pytest.approx(load / (1 - load) * 2.0 * (1 + 3.0) / 2)
    assert waits == pytest.approx(load)
