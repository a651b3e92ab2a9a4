"""A full L2 under a short churn: nothing lost, nothing wrong, nothing that grows."""

from __future__ import annotations

import pytest

from evctl.policy.eviction import ORDERS
from tests.pool.churn import run
from tests.pool.tiers import Tiers


@pytest.mark.parametrize("eviction", ORDERS)
def test_every_order_keeps_the_books(eviction: str) -> None:
    tiers = Tiers(7, l1_blocks=150, l2_blocks=100, eviction=eviction)
    try:
        figures = run(tiers, 3_000)
    finally:
        tiers.close()
    assert figures.problems == []
    assert figures.least_occupancy == 1.0


def test_twenty_thousand_operations_leave_memory_as_it_was() -> None:
    tiers = Tiers(1)
    try:
        figures = run(tiers, 20_000)
    finally:
        tiers.close()
    assert figures.problems == []
    assert figures.audits >= 4
    assert figures.least_occupancy == 1.0
    assert figures.flat, f"RSS grew by {figures.grew_bytes} bytes"
    done = tiers.counters
    for what in ("l2_blocks_written", "l2_blocks_restored", "loaned_blocks", "loans_expired"):
        assert done[what] > 50, f"the churn did not try {what}"
    assert min(tiers.pool.evicted_by_class) > 50
