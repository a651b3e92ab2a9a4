"""Where the loop's messages go; the agent carries them, a test may collect them."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from evctl.core.events import EngineFact
from evctl.core.pool_status import RECOMPUTE_CAUSES
from evctl.wire.messages import AnyMessage, PeerInfo, Tokens


class Outlet(Protocol):
    """Nothing here blocks. Peers are addressed by node; a reply goes back where a message
    came from, even to a peer whose address is not known yet."""

    def tokens(self, message: Tokens) -> None: ...

    def fact(self, fact: EngineFact) -> None: ...

    def to_peer(self, node: str, message: AnyMessage) -> bool:
        """False if the peer is unknown or not connected, its queue is full, or the message is
        too large to send."""
        ...

    def peer(self, node: str) -> PeerInfo | None:
        """The present life of a node, None if it is gone or has not answered yet."""
        ...

    def announced(self, node: str) -> PeerInfo | None:
        """The life of a node that the control plane knows, whether it answers or not."""
        ...

    def recheck_peer(self, node: str) -> None:
        """A copy to or from it failed: nothing more until it confirms its boot id (rule 2)."""
        ...


Counters = Counter[str]
"""Monotonic counts by name; sent with heartbeats."""

TOLD_FROM_THE_START = (
    "fetches",
    "fetch_peer_blocks",
    "fetch_peer_bytes",
    "fetch_blocks_corrupt",
    "fetch_blocks_asked_again",
    "fetch_blocks_shared",
    "fetch_reads_failed",
    "late_answers",
    "l2_read_failed",
    "l2_blocks_written",
    "l2_bytes_written",
    "l2_blocks_restored",
    "l2_write_skipped",
    "l2_write_no_room",
    "loaned_blocks",
    "loans_expired",
    *(f"recomputed_{cause}_blocks" for cause in RECOMPUTE_CAUSES),
)
"""A count that is absent cannot be seen to be 0, and its first rise is missed."""


def new_counters() -> Counters:
    return Counter(dict.fromkeys(TOLD_FROM_THE_START, 0))
