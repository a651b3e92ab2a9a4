"""t_P is one formula: what the router predicts of a prompt is what the planner counts for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.core.costs import Coefficients
from evctl.policy.cluster import ClusterState, PolicyConfig
from evctl.policy.costmodel.service import prefill_service_s

MODEL = Coefficients(0.04, 1e-4, 3e-9, 2e-6, 0.01, 0.0, 1e-3)


@given(
    tokens=st.floats(0.0, 1e6),
    pairs=st.floats(0.0, 1e12),
    restored=st.floats(0.0, 1e6),
    per_iteration=st.one_of(st.just(0.0), st.floats(1.0, 1e5)),
)
def test_router_and_planner_count_alike(
    tokens: float, pairs: float, restored: float, per_iteration: float
) -> None:
    state = ClusterState(PolicyConfig(("n1", "n2"), "1P1D"))
    node = state.nodes["n1"]
    node.coefficients, node.tokens_per_iteration = MODEL, per_iteration
    by_planner_s = prefill_service_s(MODEL, tokens, pairs, restored, per_iteration)
    assert state.prefill_s(node, tokens, pairs, restored) == by_planner_s


@pytest.mark.parametrize(
    ("tokens", "per_iteration", "fixed_s"),
    [(100.0, 0.0, 0.04), (100.0, 400.0, 0.01), (0.0, 0.0, 0.0), (0.5, 0.0, 0.02)],
)
def test_a_prompt_bears_its_share_of_the_fixed_cost(
    tokens: float, per_iteration: float, fixed_s: float
) -> None:
    found_s = prefill_service_s(MODEL, tokens, 1e6, 10.0, per_iteration)
    own_s = 1e-4 * tokens + 3e-9 * 1e6 + 2e-6 * 10.0
    assert found_s == pytest.approx(fixed_s + own_s)
