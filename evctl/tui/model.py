"""What the interface knows: frames folded into one immutable value.

Pure: time comes in as an argument (seconds of a monotonic clock), so that a test scripts it.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from evctl.core.status import ClusterStatus, EventRecord, WatchFrame
from evctl.tui.source import Stale

STALE_AFTER_S = 6.0
"""A stream that is silent for longer is stale, and nothing is changed on what it said last."""
BUCKET_S = 10.0
"""What one cell of a sparkline stands for."""
MAX_BUCKETS = 120
MAX_EVENTS = 500


class Link(StrEnum):
    """The state of the stream. The interface lives through all of them."""

    CONNECTING = "connecting"
    LIVE = "live"
    STALE = "stale"


class Bucket(msgspec.Struct, frozen=True):
    """The largest of each figure within BUCKET_S; None where nothing was seen."""

    number: int
    prefill_wait_s: float | None
    decode_wait_s: float | None
    ttft_s: float | None
    throughput_rps: float
    in_flight: int


class LastMove(msgspec.Struct, frozen=True):
    """The newest change of the split that this interface saw happen."""

    before: str
    after: str
    at_s: float


class Model(msgspec.Struct, frozen=True):
    """received_s: when the last frame came; status_s: when its figures did.

    sequence: of the last frame, None before a snapshot. attempt, reason: of the retry under way.
    gaps: frames found missing so far. resnapshot: a gap was found, deltas are not to be trusted.
    """

    status: ClusterStatus | None = None
    received_s: float | None = None
    status_s: float = 0.0
    events: tuple[EventRecord, ...] = ()
    history: tuple[Bucket, ...] = ()
    last_move: LastMove | None = None
    sequence: int | None = None
    attempt: int = 0
    lost: bool = False
    reason: str = ""
    gaps: int = 0
    resnapshot: bool = False

    def age_s(self, now_s: float) -> float | None:
        """How old what is shown is; None before anything is."""
        return None if self.received_s is None else max(0.0, now_s - self.received_s)

    def link(self, now_s: float) -> Link:
        age_s = self.age_s(now_s)
        if age_s is None:
            return Link.CONNECTING
        if self.lost or age_s > STALE_AFTER_S:
            return Link.STALE
        return Link.LIVE


def fold(model: Model, item: WatchFrame | Stale, now_s: float) -> Model:
    """The model after one item of the stream.

    A frame out of sequence changes nothing but `resnapshot`: whoever drives the stream then
    starts a fresh one, whose snapshot clears the flag.
    """
    if isinstance(item, Stale):
        return msgspec.structs.replace(
            model, lost=True, attempt=item.attempt, reason=item.reason, sequence=None
        )
    if item.kind != "snapshot" and item.sequence != (model.sequence or 0) + 1:
        return msgspec.structs.replace(model, gaps=model.gaps + 1, resnapshot=True)
    model = msgspec.structs.replace(
        model,
        received_s=now_s,
        sequence=item.sequence,
        lost=False,
        attempt=0,
        reason="",
        resnapshot=False,
        events=_joined(model, item),
    )
    return model if item.status is None else _with_status(model, item.status, now_s)


def _with_status(model: Model, status: ClusterStatus, now_s: float) -> Model:
    return msgspec.structs.replace(
        model,
        status=status,
        status_s=now_s,
        history=_recorded(model.history, status, now_s),
        last_move=_moved(model, status, now_s),
    )


def is_new_life(model: Model, frame: WatchFrame) -> bool:
    """Whether the control plane was started anew: its event log may count from one again."""
    before, after = model.status, frame.status
    return before is not None and after is not None and before.epoch != after.epoch


def _joined(model: Model, frame: WatchFrame) -> tuple[EventRecord, ...]:
    """Events in order and once each."""
    known = model.events
    if not frame.events:
        return known
    if is_new_life(model, frame):
        return frame.events[-MAX_EVENTS:]
    newest = known[-1].sequence if known else 0
    fresh = tuple(event for event in frame.events if event.sequence > newest)
    return (known + fresh)[-MAX_EVENTS:]


def _moved(model: Model, status: ClusterStatus, now_s: float) -> LastMove | None:
    before = model.status
    if before is None or before.split == status.split:
        return model.last_move
    return LastMove(before.split, status.split, now_s)


def _recorded(
    history: tuple[Bucket, ...], status: ClusterStatus, now_s: float
) -> tuple[Bucket, ...]:
    bucket = Bucket(
        number=int(now_s // BUCKET_S),
        prefill_wait_s=status.prefill.wait_p95_s,
        decode_wait_s=status.decode.wait_p95_s,
        ttft_s=status.ttft_p95_s,
        throughput_rps=status.throughput_rps,
        in_flight=status.in_flight,
    )
    if not history or history[-1].number != bucket.number:
        return (*history, bucket)[-MAX_BUCKETS:]
    last = history[-1]
    merged = Bucket(
        number=bucket.number,
        prefill_wait_s=_larger(last.prefill_wait_s, bucket.prefill_wait_s),
        decode_wait_s=_larger(last.decode_wait_s, bucket.decode_wait_s),
        ttft_s=_larger(last.ttft_s, bucket.ttft_s),
        throughput_rps=max(last.throughput_rps, bucket.throughput_rps),
        in_flight=max(last.in_flight, bucket.in_flight),
    )
    return (*history[:-1], merged)


def _larger(a: float | None, b: float | None) -> float | None:
    if a is None or b is None:
        return b if a is None else a
    return max(a, b)
