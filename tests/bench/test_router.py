"""`evctl bench router` on little input: what comes out, never how fast it was."""

from __future__ import annotations

import pytest
from msgspec import UNSET

from evctl.bench.router import ageing
from evctl.bench.router.decisions import Times, decide
from evctl.bench.router.run import FULL, PLUS, QUICK, Case, cases, rows_of
from evctl.bench.router.stage import Shape, Stage
from evctl.policy.state import check
from evctl.trace.files import SAMPLE

TINY = Shape(4, "2P2D", in_flight=4, conversations=4, prompts=60, measured=20)


def test_the_stage_is_a_cluster_amid_its_work() -> None:
    """What wrong code would pass? One whose directory or queues are not what they seem."""
    stage = Stage(TINY, SAMPLE)
    prompts = stage.prompts()
    next(prompts)
    state = stage.state
    assert check(state) == []
    stages = {record.stage for record in state.requests.values()}
    assert stages == {"waiting", "prefill", "decode"}
    assert len(state.requests) == 16
    assert state.directory.tree.blocks > 100
    for node in state.nodes.values():
        assert state.directory.nodes[node.name].blocks[1] > 0
        assert state.directory.nodes[node.name].blocks[2] > 0
        assert node.coefficients is not None
    assert all(node.load.prefills for node in state.nodes.values() if node.role == "P")
    assert sum(1 for _ in prompts) == 19


@pytest.mark.parametrize("known", [True, False])
def test_every_second_prompt_is_a_decision_and_nothing_is_left_over(known: bool) -> None:
    shape = Shape(4, "2P2D", conversations=4, prompts=60, measured=20, known=known, options=PLUS)
    times = decide(shape, SAMPLE)
    assert (len(times.decision_ns), len(times.step_ns)) == (10, 10)
    assert len(times.match_ns) == len(times.decision_cpu_ns) == 10
    assert all(m < d for m, d in zip(times.match_ns, times.decision_ns, strict=True))
    assert "4 conversations" in times.about


def times_of(decision_us: int) -> Times:
    times = Times()
    times.decision_ns = [decision_us * 1000] * 9 + [10**9]
    times.decision_cpu_ns = times.match_ns = times.step_ns = times.read_ns = [1000] * 10
    return times


@pytest.mark.parametrize(("decision_us", "ok"), [(60, True), (61, False)])
def test_the_median_decision_is_judged(decision_us: int, ok: bool) -> None:
    first, *rest = rows_of(Case("9 nodes", TINY, 60.0), times_of(decision_us))
    assert (first.value, first.ok) == (float(decision_us), ok)
    assert all(row.ok is UNSET for row in rest)
    assert rest[0].value == 1e6


def test_promises_are_those_of_nine_and_of_ninety_six_nodes() -> None:
    found = list(cases(FULL))
    goals = {case.shape.nodes: case.goal_us for case in found if case.goal_us is not None}
    assert goals == {9: 60.0, 96: 150.0}
    assert len({case.name for case in found}) == len(found) == len(list(cases(QUICK)))


def test_the_sketch_of_ageing_orders_as_it_says() -> None:
    """The one long request of an agent beside many short ones: it waits longest without ageing,
    and least in the order of arrival; the mean is the other way round."""
    short = [ageing.Turn(0.1, 2000, 0.0)] * 50
    long = [ageing.Turn(1.0, 60_000, 0.0)] * 2
    branches = [short, short, short, long]
    told = {}
    for value in (ageing.FIRST_COME, 0.3, 0.0):
        done, busy = ageing.simulate(branches, 12, value, seed=1, hours=0.6)
        longest = [ttft_s for tokens, ttft_s in done if tokens == 60_000]
        told[value] = (sum(t for _, t in done) / len(done), max(longest))
        assert 0.0 < busy <= 1.0
    (first_mean, first_most), (_, aged_most), (mean, most) = told.values()
    assert mean < first_mean
    assert first_most < aged_most < most
