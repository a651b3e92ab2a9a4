"""The data worker: one thread that follows the cluster and keeps the newest model.

The interface reads `model` when it paints and never waits for data: bursts coalesce between two
paints. The thread is a daemon because a source may sit in a read of several seconds, and leaving
must not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from evctl.core.errors import EvctlError
from evctl.core.status import WatchFrame
from evctl.tui.model import MAX_EVENTS, Model, fold, is_new_life
from evctl.tui.source import AdminSource, Stale

RESTART_FIRST_S = 0.5
RESTART_MOST_S = 10.0
"""Pause before a stream that ended, raised or lost a frame is started again; it doubles."""


class Feed:
    """Follows `source` from start() to stop(); `clock`: monotonic seconds."""

    def __init__(self, source: AdminSource, clock: Callable[[], float]) -> None:
        self._source = source
        self._clock = clock
        self._model = Model()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="evctl-top-feed", daemon=True)

    @property
    def model(self) -> Model:
        """The newest; replaced whole, so no lock is needed to read it."""
        return self._model

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it does so at its next item, and nobody waits for that."""
        self._stopped.set()

    def _follow(self) -> None:
        pause_s = RESTART_FIRST_S
        attempt = 0
        while not self._stopped.is_set():
            failure = self._one_stream()
            if self._stopped.is_set():
                return
            if self._model.attempt == 0 and not self._model.lost:
                pause_s, attempt = RESTART_FIRST_S, 0  # it had delivered
            if failure is not None:
                attempt += 1
                self._take(Stale(attempt, failure, pause_s))
            self._stopped.wait(pause_s)
            pause_s = min(RESTART_MOST_S, 2 * pause_s)

    def _one_stream(self) -> str | None:
        """Fold one stream until it ends; returns why, or None to start afresh after a gap."""
        try:
            for item in self._source.watch():
                self._take(self._with_events(item))
                if self._stopped.is_set() or self._model.resnapshot:
                    return None
        except EvctlError as error:
            return str(error)
        except Exception as error:  # shown in the header; the interface outlives its source
            return f"{type(error).__name__}: {error}"
        return "the stream ended"

    def _with_events(self, item: WatchFrame | Stale) -> WatchFrame | Stale:
        """A snapshot that says nothing of events gets those that are missing here."""
        if not isinstance(item, WatchFrame) or item.kind != "snapshot" or item.events:
            return item
        known = self._model.events
        fresh = is_new_life(self._model, item) or not known
        since = 0 if fresh else known[-1].sequence
        events = self._source.events(since=since, limit=MAX_EVENTS)
        return msgspec.structs.replace(item, events=events)

    def _take(self, item: WatchFrame | Stale) -> None:
        self._model = fold(self._model, item, self._clock())
