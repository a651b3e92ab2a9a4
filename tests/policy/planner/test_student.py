"""Student's t against scipy, over the degrees and tails that tests use."""

from __future__ import annotations

import pytest
from scipy import stats

from evctl.policy.planner.student import quantile, upper_tail


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 6, 9, 10, 29, 100, 999])
def test_quantiles_and_tails(degrees: int) -> None:
    for tail in (0.4, 0.1, 0.05, 0.025, 0.00625, 0.001, 1e-5):
        wanted = float(stats.t.isf(tail, degrees))
        assert quantile(tail, degrees) == pytest.approx(wanted, rel=1e-9)
        assert upper_tail(wanted, degrees) == pytest.approx(tail, rel=1e-6)
    assert upper_tail(0.0, degrees) == pytest.approx(0.5)


def test_beyond_a_thousand_degrees_it_is_the_normal_law() -> None:
    assert quantile(0.05, 10**6) == pytest.approx(1.6449, rel=1e-3)
