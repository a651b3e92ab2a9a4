"""The journal replays to equal effects; a torn tail is told, not hidden."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from evctl.control.journal import (
    FORMAT,
    Journal,
    JournalEnd,
    JournalHeader,
    JournalLimits,
    frame,
    segments,
    strays,
)
from evctl.control.replay import JournalReader, replay
from evctl.core.branches import BranchSignal
from evctl.core.effects import Dispatch, FetchAhead
from evctl.core.errors import IntegrityError, NotFoundError
from evctl.core.events import (
    Event,
    FetchAheadEnded,
    FetchEnded,
    FromNode,
    Override,
    PrefillStarted,
    RequestArrived,
    Tick,
)
from evctl.core.kv import FetchPiece, FetchSource
from evctl.policy.state import ClusterState, PolicyConfig, step
from tests.policy.cluster import Cluster, keys, of

encode = msgspec.msgpack.encode
CONFIG = PolicyConfig(("n1", "n2", "n3"), "2P1D")


class Recording(Cluster):
    """Keeps what it was fed."""

    def feed(self, event: Event) -> list:  # type: ignore[type-arg]
        self.now_s += 0.01
        self.recorded = [*getattr(self, "recorded", []), (self.now_s, event)]
        return super().feed(event)


def some_events(count: int) -> list[tuple[float, Event]]:
    """What a run of requests feeds, taken from a cluster of the policy tests."""
    cluster = Recording()
    for index in range(count):
        name = f"r{index}"
        cluster.arrive(name, 40, keys(*range(10)))
        cluster.decode(name)
        cluster.done(name)
    cluster.hold("1P2D")
    cluster.feed(Tick())
    return cluster.recorded


def write(
    directory: Path, events: list[tuple[float, Event]], epoch: int = 1, **limits: int
) -> None:
    header = JournalHeader(FORMAT, epoch, 0, 100.0, time.time(), CONFIG)
    journal = Journal(directory, header, JournalLimits(flush_s=0.01, **limits))
    state = ClusterState(CONFIG)
    for now_s, event in events:
        journal.append(now_s, event, step(state, event, now_s).effects)
    journal.close()
    assert journal.problem == ""


def test_a_journal_replays_to_equal_effects_over_segments(tmp_path: Path) -> None:
    events = some_events(30)
    write(tmp_path, events, segment_bytes=2_000)
    assert len(segments(tmp_path)[1]) > 3
    report = replay(tmp_path)
    assert report.equal
    assert (report.steps, report.tail, report.epoch) == (len(events), "", 1)
    assert replay(segments(tmp_path)[1][2]).steps == len(events)
    assert all(path.stat().st_mode & 0o077 == 0 for path in segments(tmp_path)[1])


def test_plans_and_fetches_ahead_replay_too(tmp_path: Path) -> None:
    cluster = Recording(l2_blocks=100)
    cluster.beat()
    cluster.holds("n3", 2, *range(9))
    branch = BranchSignal("b", expect_resume_s=0.5)
    for index, fetched in enumerate((9, 4)):
        name = f"r{index}"
        cluster.arrive(name, 40, keys(*range(10)), branch)
        node = cluster.state.requests[name].prefill_node
        peers = (FetchSource("n3", fetched, 64 * fetched),)
        cluster.fact(node, FetchEnded(name, 0, 0, peers, 0.3, 0.1, 9 - fetched, "gone"))
        cluster.decode(name)
        cluster.done(name)
        cluster.beat()
        for ahead in of(cluster.feed(Tick()), FetchAhead):
            ended = FetchAheadEnded(ahead.ticket, peers, 0.2, 0)  # type: ignore[union-attr]
            cluster.fact(ahead.node, ended)  # type: ignore[union-attr]
    plans = [e.fetch for e in of(cluster.log, Dispatch)]  # type: ignore[union-attr]
    assert plans == [(FetchPiece(0, 9, ("n3",)),)] * 2
    assert len(of(cluster.log, FetchAhead)) == 2
    write(tmp_path, cluster.recorded)
    report = replay(tmp_path)
    assert report.equal
    assert report.steps == len(cluster.recorded)
    changed = replay(tmp_path, msgspec.structs.replace(CONFIG, fetch_ahead=False))
    assert not changed.equal, "the switch makes a difference"


def test_another_configuration_shows_as_differences(tmp_path: Path) -> None:
    write(tmp_path, some_events(3))
    report = replay(tmp_path, msgspec.structs.replace(CONFIG, split="1P2D"))
    assert not report.equal
    assert "RequestArrived" in " ".join(report.differences)


@pytest.mark.parametrize("cut_bytes", [1, 5, 30])
def test_a_torn_tail_is_told_and_the_rest_is_equal(tmp_path: Path, cut_bytes: int) -> None:
    events = some_events(5)
    write(tmp_path, events)
    (path,) = segments(tmp_path)[1]
    path.write_bytes(path.read_bytes()[: -cut_bytes - len(frame(encode(JournalEnd(None))))])
    report = replay(tmp_path)
    assert report.equal
    assert 0 < report.steps < len(events)
    assert "ends inside a frame" in report.tail


def test_without_its_last_frame_a_journal_does_not_pass_for_whole(tmp_path: Path) -> None:
    """A crash leaves it so; that more is missing cannot be known then."""
    events = some_events(5)
    write(tmp_path, events)
    (path,) = segments(tmp_path)[1]
    path.write_bytes(path.read_bytes()[: -len(frame(encode(JournalEnd(None))))])
    report = replay(tmp_path)
    assert (report.steps, report.equal, report.missing) == (len(events), True, False)
    assert report.tail == f"{path.name} has no end"


@pytest.mark.parametrize("which", [1, 2, -1, "last two", "header", "swapped"])
def test_a_missing_segment_is_told(tmp_path: Path, which: object) -> None:
    events = some_events(30)
    write(tmp_path, events, segment_bytes=2_000)
    paths = segments(tmp_path)[1]
    if isinstance(which, int):
        paths[which].unlink()
        named = f"segment {which if which > 0 else len(paths) - 1} is missing"
    elif which == "last two":
        paths[-1].unlink()
        paths[-2].unlink()
        named = f"segment {len(paths) - 2} is missing"
    elif which == "header":
        paths[2].write_bytes(b"\0" * 100)
        named = "header"
    else:
        paths[2].rename(tmp_path / "x")
        paths[1].rename(paths[2])
        (tmp_path / "x").rename(paths[1])
        named = "holds segment 2"
    report = replay(tmp_path)
    assert named in report.tail
    assert 0 < report.steps < len(events)
    assert report.differences == (), "what was read is what happened"
    assert report.missing
    assert not report.equal


@pytest.mark.parametrize("name", ["99999999999999999999-000000", "²²²²²²-000000", "1-1", "x"])
def test_a_file_that_is_no_segment_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.evj").write_bytes(b"?")
    events = some_events(2)
    write(tmp_path, events)
    assert list(segments(tmp_path)) == [1]
    assert [path.stem for path in strays(tmp_path)] == [name]
    assert replay(tmp_path).steps == len(events)


def test_a_flipped_bit_ends_the_reading(tmp_path: Path) -> None:
    write(tmp_path, some_events(5))
    (path,) = segments(tmp_path)[1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "damaged" in replay(tmp_path).tail or "ends inside" in replay(tmp_path).tail


def test_old_lives_go(tmp_path: Path) -> None:
    for epoch in range(1, 6):
        write(tmp_path, some_events(1), epoch, keep_lives=2)
    assert sorted(segments(tmp_path)) == [3, 4, 5]
    assert replay(tmp_path).epoch == 5


def test_without_a_beginning_there_is_no_replay(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        replay(tmp_path)
    write(tmp_path, some_events(30), segment_bytes=2_000)
    segments(tmp_path)[1][0].unlink()
    with pytest.raises(IntegrityError):
        replay(tmp_path)


def test_events_come_back_as_they_were(tmp_path: Path) -> None:
    events: list[tuple[float, Event]] = [
        (1.0, RequestArrived("r", "t", BranchSignal("b"), 3, 4, b"root", b"keys")),
        (2.0, FromNode("n1", "b", PrefillStarted("r", 1, 2))),
        (3.0, Override("hold", "1P2D", "me", "why")),
    ]
    write(tmp_path, events)
    reader = JournalReader(segments(tmp_path)[1])
    assert [(e.now_s, e.event) for e in reader.entries()] == events
    assert reader.header.config == CONFIG


def test_a_full_disk_ends_the_journal_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    header = JournalHeader(FORMAT, 1, 0, 0.0, 0.0, CONFIG)
    journal = Journal(tmp_path, header, JournalLimits(flush_s=0.01))

    def refuse(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refuse)
    journal.append(1.0, Tick(), ())
    deadline_s = time.monotonic() + 5
    while not journal.problem and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert "No space" in journal.problem
    journal.append(2.0, Tick(), ())
    journal.close()
