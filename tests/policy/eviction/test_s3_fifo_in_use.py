"""S3-FIFO among entries that are in use."""

from __future__ import annotations

from evctl.policy.eviction import S3Fifo
from tests.policy.eviction.test_orders import fill


def test_s3_fifo_ends_its_search_where_all_of_the_main_queue_is_in_use() -> None:
    """What may go is in the small queue, which is below its share."""
    order = S3Fifo(100)
    for key in "ab":
        fill(order, key, 0.0, None)
        order.pin(key)
    for key in "abcdefghij":
        if key not in order:
            fill(order, key, 0.0, None)
    first = order.victims(1, 1.0)  # the pinned ones are promoted on the way
    rest = [order.victims(1, 2.0)[0] for _ in range(7)]
    assert sorted([*first, *rest]) == list("cdefghij")
    assert order.victims(1, 3.0) == []
