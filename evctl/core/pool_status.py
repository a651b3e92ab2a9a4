"""What the pool of all nodes' host memory looks like from outside: values of the admin API, the
CLI and the TUI."""

from __future__ import annotations

from typing import Final

import msgspec

FETCH_PATHS: Final = ("l1", "own_l2", "peer_l2")
"""Where a block of a prompt was found: in the node's L1, in its L2, in a peer's L2."""


RECOMPUTE_CAUSES: Final = (
    "deadline", "unreachable", "gone", "failed", "corrupt", "no_room", "cancelled",
)  # fmt: skip
"""Why blocks that were to be fetched were computed instead."""


class TierOccupancy(msgspec.Struct, frozen=True):
    """A tier of a node by its last heartbeat, in blocks. classes: those that hold KV, by
    reference class (unreferenced, suspect, live); () where the engine does not say.
    quarantined: kept from use because a failed transfer may still write there."""

    total_blocks: int
    used_blocks: int
    classes: tuple[int, ...] = ()
    quarantined_blocks: int = 0


class NodePool(msgspec.Struct, frozen=True):
    """What a node has of either tier. pins: on blocks of its L2, by reads of its own and of peers.
    loans: attempts of peers that may read there. write_queue_blocks: waiting to be copied from
    L1 to L2. Each of the three is None where the engine does not say."""

    node: str
    l1: TierOccupancy
    l2: TierOccupancy
    pins: int | None = None
    loans: int | None = None
    write_queue_blocks: int | None = None


class AheadStatus(msgspec.Struct, frozen=True):
    """Fetches for waiting branches, before their next request. outcomes: what became of branches
    that were due: sent, nothing_to_fetch, no_room; and of what was sent: done, short, lost.
    blocks, bytes: that came; under_way_blocks: that were asked for and may still come."""

    outcomes: dict[str, int] = {}
    blocks: int = 0
    bytes: int = 0
    under_way_blocks: int = 0


class PoolStatus(msgspec.Struct, frozen=True):
    """The pool since the start of this life of the control plane; occupancy as of now.

    fetches: requests that missed a part of their prompt in L1 and looked elsewhere, and
    fetched_blocks, fetched_bytes: of their prompts, by FETCH_PATHS. fetch_s: how long KV was on
    its way to L1 (FetchEnded), all added up; exposed_s: of that, how long a request could have
    run but for its KV. fetch_queued_s: beside that, how long all of it lay in L2 and waited for
    slots. share_hidden: 1 - exposed_s / fetch_s, None before the first fetch.
    recomputed_blocks: planned to be fetched and computed instead, by cause.
    """

    fetches: int = 0
    fetched_blocks: dict[str, int] = {}
    fetched_bytes: dict[str, int] = {}
    fetch_s: float = 0.0
    exposed_s: float = 0.0
    fetch_queued_s: float = 0.0
    share_hidden: float | None = None
    recomputed_blocks: dict[str, int] = {}
    ahead: AheadStatus = AheadStatus()
    nodes: tuple[NodePool, ...] = ()

    @property
    def mean_fetch_s(self) -> float | None:
        """None before the first fetch."""
        return self.fetch_s / self.fetches if self.fetches else None

    @property
    def is_absent(self) -> bool:
        """There are nodes, none of them has an L2, and none had when anything was fetched."""
        return (
            bool(self.nodes)
            and not self.fetches
            and not any(n.l2.total_blocks for n in self.nodes)
        )
