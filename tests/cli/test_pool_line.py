"""The line of `evctl status` about the pool."""

from __future__ import annotations

import pytest

from evctl.cli.screen import status_screen
from evctl.core.pool_status import NodePool, PoolStatus, TierOccupancy
from tests.client.fake_admin import POOL, status

WITHOUT = NodePool("n1", TierOccupancy(1024, 0), TierOccupancy(0, 0))
OWN = PoolStatus(1, {"own_l2": 1}, {}, 0.0, 0.0, 0.0, None, {"gone": 0})
ONE_CAUSE = PoolStatus(
    2, {"own_l2": 12, "peer_l2": 980}, {}, 1.0, 0.03, 9.0, 0.97, {"no_room": 12}
)


@pytest.mark.parametrize(
    ("pool", "said"),
    [
        (None, "-"),
        (PoolStatus(nodes=(WITHOUT,)), "none, l2_tokens is 0"),
        (PoolStatus(), "nothing fetched yet"),
        (OWN, "1 block fetched (1 own)"),
        (
            ONE_CAUSE,
            "992 blocks fetched (12 own, 980 peers), 97% hidden, 12 recomputed (no room)",
        ),
        (
            POOL,
            "900 blocks fetched (300 own, 600 peers), 94% hidden,"
            " 15 recomputed (12 deadline, 3 gone)",
        ),
    ],
)
def test_the_pool_in_one_line(pool: PoolStatus | None, said: str) -> None:
    screen = status_screen(status(pool=pool))
    assert f"\npool      {said}\n" in screen
