"""The stream behind /admin/v1/watch: a snapshot, then what changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from evctl.control.plane import ControlPlane
from evctl.core.status import EventRecord, WatchFrame

MIN_INTERVAL_S: Final = 0.5
MAX_INTERVAL_S: Final = 1.0
FIRST_EVENTS: Final = 100
"""Events before the snapshot that a new watcher gets along."""


async def watch(plane: ControlPlane) -> AsyncIterator[WatchFrame]:
    """Frames until the control plane stops or the reader leaves.

    A status comes at most twice a second when something changed, and at least once a second;
    events come as they happen. A slow reader gets fewer, newer ones. A jump in `sequence` says
    that events are missing between.
    """
    feed = _Feed(plane)
    waiter = plane.events.watch()
    try:
        yield feed.snapshot()
        while not plane.stopping.is_set():
            await _wait(waiter, feed.pause_s)
            waiter.clear()
            for frame in feed.frames():
                yield frame
    finally:
        plane.events.unwatch(waiter)


class _Feed:
    """What one watcher has seen."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._sequence = 0
        self._events = 0
        self._steps = 0
        self._sent_s = float("-inf")

    @property
    def pause_s(self) -> float:
        """Until the next status may be due."""
        return max(0.01, self._sent_s + MIN_INTERVAL_S - self._plane.clock())

    def snapshot(self) -> WatchFrame:
        log = self._plane.events
        self._events = max(0, log.sequence - FIRST_EVENTS)
        records = log.since(self._events)
        self._events = log.sequence
        return self._status_frame("snapshot", records)

    def frames(self) -> list[WatchFrame]:
        found = []
        if frame := self._event_frame():
            found.append(frame)
        since_s = self._plane.clock() - self._sent_s
        changed = self._plane.writer.steps != self._steps
        if since_s >= (MIN_INTERVAL_S if changed else MAX_INTERVAL_S):
            found.append(self._status_frame("status", ()))
        return found

    def _event_frame(self) -> WatchFrame | None:
        records = self._plane.events.since(self._events)
        if not records:
            return None
        if records[0].sequence != self._events + 1:
            self._sequence += 1
        self._events = records[-1].sequence
        return WatchFrame("events", self._next(), events=records)

    def _status_frame(self, kind: str, records: tuple[EventRecord, ...]) -> WatchFrame:
        self._sent_s = self._plane.clock()
        self._steps = self._plane.writer.steps
        return WatchFrame(kind, self._next(), self._plane.status(), records)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence


async def _wait(waiter: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await waiter.wait()
    except TimeoutError:
        pass
