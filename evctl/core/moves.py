"""A change of a node's role, as it is planned."""

from __future__ import annotations

import msgspec


class Move(msgspec.Struct, frozen=True):
    """One node's change of role."""

    node: str
    before: str
    after: str
    running: int
    queued: int
