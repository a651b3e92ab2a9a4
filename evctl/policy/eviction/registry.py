"""Every order by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from evctl.policy.eviction.expected import ExpectedUse
from evctl.policy.eviction.fifo import S3Fifo, Sieve
from evctl.policy.eviction.lru import Lru, ReferencedLast, SessionRelease
from evctl.policy.eviction.port import EvictionOrder
from evctl.policy.eviction.retention import Retention

ORDERS: Mapping[str, Callable[[int], EvictionOrder]] = {
    "lru": lambda _: Lru(),
    "s3-fifo": S3Fifo,
    "sieve": lambda _: Sieve(),
    "ttl": lambda _: Retention(),
    "session-release": lambda _: SessionRelease(),
    "paper": lambda _: ReferencedLast(),
    "expected": lambda _: ExpectedUse(),
}
"""Name to constructor; each takes the pool's capacity in blocks. Belady is not among them: it
needs the future."""


def make_order(name: str, pool_blocks: int) -> EvictionOrder:
    """Raises ValueError for an unknown name."""
    if name not in ORDERS:
        raise ValueError(f"no eviction order {name!r}; there are {', '.join(ORDERS)}")
    return ORDERS[name](pool_blocks)
