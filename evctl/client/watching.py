"""A stream of frames that outlives the control plane: reconnects for ever, says when it is old."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from evctl.core.errors import EvctlError
from evctl.core.status import WatchFrame

FIRST_PAUSE_S: Final = 0.5
MOST_PAUSE_S: Final = 10.0
SILENCE_S: Final = 6.0
"""A stream that says nothing for so long is lost: the control plane speaks once a second."""


class Stale(msgspec.Struct, frozen=True):
    """The stream is lost. attempt: tries since; retry_in_s: until the next; reason: one line."""

    attempt: int
    reason: str
    retry_in_s: float = 0.0


class StreamLostError(EvctlError):
    """Internal to a watch: why one connection ended."""

    def __init__(self, why: str) -> None:
        super().__init__(what="the watch was lost", why=why, next_step="", code="EV-1405")


def follow(
    connect: Callable[[], Iterator[WatchFrame]],
    pause: Callable[[float], None],
    jitter: Callable[[], float],
) -> Iterator[WatchFrame | Stale]:
    """Frames of one connection after another. connect raises EvctlError when one is lost.

    jitter: random number in [0, 1); it stretches each pause by up to a half. A frame that is
    missing ends a connection like any other loss, so the next frame is a snapshot.
    """
    attempt = 0
    while True:
        try:
            for frame in in_order(connect()):
                attempt = 0
                yield frame
            reason = "the control plane ended the stream"
        except EvctlError as error:
            reason = error.why
        attempt += 1
        base_s = min(MOST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt - 1, 10))
        pause_s = min(MOST_PAUSE_S, base_s * (1 + jitter() / 2))
        yield Stale(attempt, reason, pause_s)
        pause(pause_s)


def in_order(frames: Iterator[WatchFrame]) -> Iterator[WatchFrame]:
    """The same frames; raises StreamLostError at a gap, or without a snapshot first."""
    expected: int | None = None
    for frame in frames:
        if expected is None and (frame.kind != "snapshot" or frame.status is None):
            raise StreamLostError("the stream did not begin with a snapshot")
        if expected is not None and frame.sequence != expected:
            missing = frame.sequence - expected
            raise StreamLostError(f"{missing} frames are missing before {frame.sequence}")
        expected = frame.sequence + 1
        yield frame
