"""What the interface asks of a running cluster; `evctl.client` implements it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from evctl.client import Stale
from evctl.core.status import ClusterStatus, EventRecord, SplitChange, WatchFrame

__all__ = ["AdminSource", "Stale"]


class AdminSource(Protocol):
    """A cluster seen through its admin API. Called from threads of the interface, never its loop.

    Every call ends: a source has timeouts of its own.
    """

    def watch(self) -> Iterator[WatchFrame | Stale]:
        """Frames for ever: a snapshot first, then what changes, at least one a second.

        On loss it yields a Stale at each try and, once back, a snapshot; it does not raise for
        a cluster that cannot be reached. Calling it again gives a fresh stream.
        """
        ...

    def status(self) -> ClusterStatus:
        """The cluster now. Raises UnreachableError."""
        ...

    def events(self, *, since: int, limit: int) -> tuple[EventRecord, ...]:
        """Events with a sequence above `since`, oldest first. Raises UnreachableError."""
        ...

    def set_split(
        self,
        split: str,
        *,
        by: str,
        reason: str,
        generation: int | None,
        plan: bool,
        force: bool,
    ) -> SplitChange:
        """Change the split and hold it; with plan, only say what would move.

        Raises UsageError (no such split), ConflictError (the generation moved), RefusedError
        (a safety rule; force passes it) or UnreachableError.
        """
        ...

    def set_mode(
        self,
        mode: str,
        *,
        by: str,
        reason: str,
        generation: int | None,
        for_s: float | None,
    ) -> ClusterStatus:
        """auto: the planner decides; advise: it only says what it would; hold: the split as it
        is, for for_s seconds or until somebody releases it.

        Raises ConflictError (the generation moved) or UnreachableError.
        """
        ...
