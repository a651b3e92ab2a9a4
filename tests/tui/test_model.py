"""Frames folded into the model, with time in a test's hand."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from evctl.core.status import QueueStatus, WatchFrame
from evctl.tui.feed import Feed
from evctl.tui.model import BUCKET_S, MAX_BUCKETS, MAX_EVENTS, STALE_AFTER_S, Link, Model, fold
from evctl.tui.source import Stale
from tests.tui.fakes import FakeSource, cluster, event, model_of, replace, snapshot


def test_nothing_is_known_before_the_first_snapshot() -> None:
    model = Model()
    assert model.link(50.0) is Link.CONNECTING
    assert model.age_s(50.0) is None
    assert fold(model, Stale(2, "refused"), 50.0).link(50.0) is Link.CONNECTING


def test_age_counts_on_without_frames() -> None:
    model = model_of(cluster(), at_s=100.0)
    assert model.link(100.5) is Link.LIVE
    assert model.link(100.0 + STALE_AFTER_S) is Link.LIVE
    assert model.link(100.1 + STALE_AFTER_S) is Link.STALE
    assert model.age_s(114.0) == pytest.approx(14.0)


def test_loss_keeps_everything_but_the_claim_to_be_live() -> None:
    before = model_of(cluster(), event(1, "hello"))
    lost = fold(before, Stale(3, "nobody listens"), 101.0)
    assert lost.link(101.0) is Link.STALE
    assert (lost.status, lost.events, lost.attempt) == (before.status, before.events, 3)
    back = fold(lost, snapshot(cluster(generation=42)), 120.0)
    assert back.link(120.0) is Link.LIVE
    assert (back.attempt, back.reason) == (0, "")
    assert back.status is not None
    assert back.status.generation == 42


def test_a_gap_is_not_folded_but_asks_for_a_snapshot() -> None:
    model = model_of(cluster())
    model = fold(model, WatchFrame("status", 2, cluster(generation=42)), 101.0)
    gapped = fold(model, WatchFrame("status", 4, cluster(generation=44)), 102.0)
    assert gapped.resnapshot
    assert gapped.gaps == 1
    assert gapped.status is not None
    assert gapped.status.generation == 42
    assert not fold(gapped, snapshot(cluster()), 103.0).resnapshot


def test_events_come_once_each_and_bounded() -> None:
    model = model_of(cluster(), event(1, "a"), event(2, "b"))
    model = fold(model, WatchFrame("events", 2, None, (event(2, "b"), event(3, "c"))), 101.0)
    assert [each.sequence for each in model.events] == [1, 2, 3]
    burst = tuple(event(number, "x") for number in range(4, 3000))
    model = fold(model, WatchFrame("events", 3, None, burst), 101.1)
    assert len(model.events) == MAX_EVENTS
    assert model.events[-1].sequence == 2999


def test_a_new_life_of_the_control_plane_counts_from_one_again() -> None:
    model = model_of(cluster(), event(8, "old"))
    model = fold(model, snapshot(cluster(epoch=2), event(1, "new")), 101.0)
    assert [each.what for each in model.events] == ["new"]


def test_history_keeps_the_largest_of_each_bucket() -> None:
    at_s = 100 * BUCKET_S
    calm = cluster()
    model = model_of(calm, at_s=at_s)
    busy = replace(calm, prefill=QueueStatus(9, 9, 3.0, 9.0), throughput_rps=1.0)
    model = fold(model, WatchFrame("status", 2, busy), at_s + BUCKET_S / 2)
    (only,) = model.history
    assert only.prefill_wait_s == 9.0
    assert only.throughput_rps == calm.throughput_rps
    for step in range(1, 2 * MAX_BUCKETS):
        frame = WatchFrame("status", 2 + step, calm)
        model = fold(model, frame, at_s + step * BUCKET_S)
    assert len(model.history) == MAX_BUCKETS


def test_the_last_move_is_the_one_seen_to_happen() -> None:
    model = model_of(cluster(split="2P1D"))
    assert model.last_move is None
    model = fold(model, WatchFrame("status", 2, cluster(split="1P2D")), 130.0)
    assert model.last_move is not None
    assert (model.last_move.before, model.last_move.after) == ("2P1D", "1P2D")
    assert model.last_move.at_s == 130.0


def test_the_feed_resnapshots_after_a_gap_and_outlives_a_raising_source() -> None:
    source = FakeSource()
    source.events_now = [event(1, "before"), event(2, "also before")]
    feed = Feed(source, lambda: 0.0)
    feed.start()
    wait_for(lambda: feed.model.status is not None)
    assert [each.sequence for each in feed.model.events] == [1, 2]
    source.tell_status(cluster(generation=50), skip=2)
    wait_for(lambda: source.streams == 2 and not feed.model.resnapshot)
    assert feed.model.gaps == 1
    assert feed.model.status is not None
    assert feed.model.status.generation == 50
    source.tell(RuntimeError("boom"))
    wait_for(lambda: "boom" in feed.model.reason)
    assert feed.model.status is not None
    wait_for(lambda: source.streams == 3 and not feed.model.lost)
    feed.stop()
    source.tell_status(cluster())


def wait_for(true: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.005)
