"""The journal replays to equal effects; a torn tail is told, not hidden."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from evctl.control.journal import FORMAT, Journal, JournalHeader, JournalLimits, segments
from evctl.control.replay import JournalReader, replay
from evctl.core.branches import BranchSignal
from evctl.core.errors import IntegrityError, NotFoundError
from evctl.core.events import Event, FromNode, Override, PrefillStarted, RequestArrived, Tick
from evctl.policy.state import ClusterState, PolicyConfig, step
from tests.policy.cluster import Cluster, keys

CONFIG = PolicyConfig(("n1", "n2", "n3"), "2P1D")


def some_events(count: int) -> list[tuple[float, Event]]:
    """What a run of requests feeds, taken from a cluster of the policy tests."""
    recorded: list[tuple[float, Event]] = []

    class Recording(Cluster):
        def feed(self, event: Event) -> list:  # type: ignore[type-arg]
            self.now_s += 0.01
            recorded.append((self.now_s, event))
            return super().feed(event)

    cluster = Recording()
    for index in range(count):
        name = f"r{index}"
        cluster.arrive(name, 40, keys(*range(10)))
        cluster.decode(name)
        cluster.done(name)
    cluster.hold("1P2D")
    cluster.feed(Tick())
    return recorded


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
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    report = replay(tmp_path)
    assert report.equal
    assert 0 < report.steps < len(events)
    assert "ends inside a frame" in report.tail


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
