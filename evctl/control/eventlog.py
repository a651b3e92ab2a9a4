"""The last things that happened, for people: a bounded log that can be waited on."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from evctl.core.status import EventRecord, SplitWrite
from evctl.core.transitions import LOST, Transition

MAX_RECORDS = 5_000
_LEVELS = {"info": logging.INFO, "warn": logging.WARNING, "fail": logging.ERROR}

log = logging.getLogger("evctl.events")


class EventLog:
    """wall_s: seconds since the epoch. Sequences start at 1 and rise by one.

    earlier: writes to the split, and changes of it that ended, in earlier lives, oldest first;
    they come first here too. keep: told of each new one, for a later life.
    """

    def __init__(
        self,
        wall_s: Callable[[], float],
        earlier: Iterable[EventRecord] = (),
        keep: Callable[[EventRecord], None] = lambda _: None,
    ) -> None:
        self._wall_s = wall_s
        self._keep = keep
        self._records: deque[EventRecord] = deque(maxlen=MAX_RECORDS)
        self._waiters: set[asyncio.Event] = set()
        self.sequence = 0
        for record in earlier:
            self.sequence += 1
            self._records.append(msgspec.structs.replace(record, sequence=self.sequence))

    def add(self, level: str, what: str, node: str = "", request_id: str = "") -> None:
        extra = {"event": "cluster", "node": node, "request_id": request_id}
        self._append(level, what, extra, node=node, request_id=request_id)

    def add_write(self, write: SplitWrite) -> None:
        """Somebody changed split or mode."""
        extra = {"event": "split", "by": write.by, "generation": write.generation}
        self._append("info", write.told(), extra, write=write)
        self._keep_last()

    def add_transition(self, change: Transition) -> None:
        """A change of the split is over."""
        extra = {"event": "transition", "change": change.number, "outcome": change.outcome}
        level = "warn" if change.outcome == LOST else "info"
        self._append(level, change.told(), extra, transition=change)
        self._keep_last()

    def _keep_last(self) -> None:
        try:
            self._keep(self._records[-1])
        except OSError as error:
            self.add("warn", f"this change is kept in memory only, not in the history: {error}")

    def _append(
        self,
        level: str,
        what: str,
        extra: Mapping[str, object],
        *,
        node: str = "",
        request_id: str = "",
        write: SplitWrite | None = None,
        transition: Transition | None = None,
    ) -> None:
        self.sequence += 1
        record = EventRecord(
            self.sequence, self._wall_s(), level, what, node, request_id, write, transition
        )
        self._records.append(record)
        log.log(_LEVELS.get(level, logging.INFO), "%s", what, extra=extra)
        for waiter in self._waiters:
            waiter.set()

    def since(self, sequence: int, limit: int = MAX_RECORDS) -> tuple[EventRecord, ...]:
        """Records after `sequence`, oldest first, at most `limit`."""
        missing = self.sequence - sequence
        if missing <= 0:
            return ()
        fresh = list(self._records)[-missing:]
        return tuple(fresh[:limit])

    def watch(self) -> asyncio.Event:
        """Set at every record until `unwatch`; the caller clears it."""
        waiter = asyncio.Event()
        self._waiters.add(waiter)
        return waiter

    def unwatch(self, waiter: asyncio.Event) -> None:
        self._waiters.discard(waiter)
