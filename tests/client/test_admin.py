"""AdminClient against a server that answers, refuses, loses frames, stalls and goes away."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import httpx
import msgspec
import pytest

from evctl.client import AdminClient, Stale
from evctl.client.admin import segment
from evctl.core.errors import (
    ConflictError,
    EvctlError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from evctl.core.status import EventRecord, WatchFrame
from tests.client.fake_admin import FakeAdmin, body, status
from tests.client.fake_kv import KEY


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAdmin]:
    server = FakeAdmin(tmp_path / "admin.sock").start()
    yield server
    server.stop()


@pytest.fixture
def client(fake: FakeAdmin) -> Iterator[AdminClient]:
    with AdminClient(fake.path, timeout_s=2.0, pause=lambda _: None, silence_s=0.3) as client:
        yield client


def snapshot(sequence: int = 0, **changes: object) -> WatchFrame:
    return WatchFrame("snapshot", sequence, status(**changes))


def test_status_and_events_are_typed(fake: FakeAdmin, client: AdminClient) -> None:
    fake.events = [EventRecord(i, 1.5 * i, "info", f"event {i}") for i in range(1, 6)]
    assert client.status() == fake.status
    assert client.events(since=2, limit=2) == tuple(fake.events[2:4])


def test_writes_carry_all_that_was_asked(fake: FakeAdmin, client: AdminClient) -> None:
    change = client.set_split("1P2D", by="ada", reason="test", generation=7, force=True)
    assert (change.before, change.after, change.applied) == ("2P1D", "1P2D", True)
    assert client.set_mode("hold", by="ada").mode == "hold"
    client.stop(drain=True)
    split, mode, stop = fake.calls
    assert split[1] == {
        "split": "1P2D",
        "by": "ada",
        "reason": "test",
        "generation": 7,
        "plan": False,
        "force": True,
    }
    assert mode[1]["mode"] == "hold"
    assert stop[1] == {"drain": True}


@pytest.mark.parametrize(
    ("http", "exit_code", "kind"),
    [(409, 7, ConflictError), (409, 8, RefusedError), (422, 2, UsageError), (500, 1, EvctlError)],
)
def test_a_refusal_keeps_its_four_parts(
    fake: FakeAdmin, client: AdminClient, http: int, exit_code: int, kind: type[EvctlError]
) -> None:
    fake.refuse = http, body(code="EV-1199", what="w", why="y", next="n", exit_code=exit_code)
    with pytest.raises(kind) as raised:
        client.set_split("1P2D", by="ada")
    error = raised.value
    assert type(error) is kind
    assert (error.code, error.what, error.why, error.next_step) == ("EV-1199", "w", "y", "n")
    assert error.exit_code == exit_code


@pytest.mark.parametrize(
    ("http", "code", "exit_code"), [(500, "EV-1402", 1), (422, "EV-1404", 2), (409, "EV-1404", 7)]
)
def test_a_refusal_in_another_form_still_says_what_came(
    fake: FakeAdmin, client: AdminClient, http: int, code: str, exit_code: int
) -> None:
    fake.refuse = http, b"<html>oops</html>"
    with pytest.raises(EvctlError) as raised:
        client.set_split("1P2D", by="ada")
    assert (raised.value.code, raised.value.exit_code) == (code, exit_code)
    assert "oops" in raised.value.why


def test_nobody_listens(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("absent.sock", "file"):
        with pytest.raises(UnreachableError) as raised:
            AdminClient(tmp_path / name).status()
        assert (raised.value.code, raised.value.exit_code) == ("EV-1401", 4)


def test_an_answer_that_takes_too_long(fake: FakeAdmin) -> None:
    fake.delay_s = 1.0
    with AdminClient(fake.path, timeout_s=0.1) as hasty, pytest.raises(UnreachableError) as raised:
        hasty.status()
    assert raised.value.code == "EV-1403"


def test_watch_gives_frames_in_order(fake: FakeAdmin, client: AdminClient) -> None:
    event = EventRecord(21, 1.0, "info", "moved", node="n2")
    sent = [
        snapshot(5),
        WatchFrame("status", 6, status(in_flight=9)),
        WatchFrame("events", 7, events=(event,)),
    ]
    fake.streams = [list(sent)]
    assert list(itertools.islice(client.watch(), 3)) == sent


def test_watch_resumes_with_a_snapshot_after_a_gap(fake: FakeAdmin, client: AdminClient) -> None:
    fake.streams = [
        [snapshot(0), WatchFrame("status", 2, status())],
        [snapshot(0, generation=8), WatchFrame("status", 1, status(generation=8))],
    ]
    got = list(itertools.islice(client.watch(), 4))
    assert [type(one).__name__ for one in got] == [
        "WatchFrame",
        "Stale",
        "WatchFrame",
        "WatchFrame",
    ]
    assert isinstance(got[1], Stale)
    assert "missing" in got[1].reason
    assert isinstance(got[2], WatchFrame)
    assert got[2].kind == "snapshot"


def test_watch_that_does_not_begin_with_a_snapshot_is_lost(
    fake: FakeAdmin, client: AdminClient
) -> None:
    fake.streams = [[WatchFrame("status", 0, status())], [snapshot()]]
    lost, found = itertools.islice(client.watch(), 2)
    assert isinstance(lost, Stale)
    assert isinstance(found, WatchFrame)


def test_silence_is_loss(fake: FakeAdmin, client: AdminClient) -> None:
    fake.streams = [[snapshot()], [snapshot(0, generation=9)]]
    fake.streams[0].append(5.0)
    _, lost, back = itertools.islice(client.watch(), 3)
    assert isinstance(lost, Stale)
    assert lost.attempt == 1
    assert isinstance(back, WatchFrame)
    assert back.status is not None
    assert back.status.generation == 9


def test_watch_outlives_the_control_plane(fake: FakeAdmin, client: AdminClient) -> None:
    fake.streams = [[snapshot()]]
    fake.hold = False
    watching = client.watch()
    next(watching)
    fake.stop()
    stale = [next(watching) for _ in range(4)]
    assert [one.attempt for one in stale if isinstance(one, Stale)] == [1, 2, 3, 4]
    fake.hold = True
    fake.streams = [[snapshot(0, epoch=2)]]
    fake.start()
    frame = next(one for one in watching if isinstance(one, WatchFrame))
    assert frame.status is not None
    assert frame.status.epoch == 2
    watching.close()  # type: ignore[attr-defined]


def test_pauses_double_up_to_ten_seconds(tmp_path: Path) -> None:
    pauses: list[float] = []
    client = AdminClient(tmp_path / "absent.sock", pause=pauses.append, jitter=lambda: 0.0)
    list(itertools.islice(client.watch(), 8))
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    pauses.clear()
    client = AdminClient(tmp_path / "absent.sock", pause=pauses.append, jitter=lambda: 0.5)
    list(itertools.islice(client.watch(), 4))
    assert pauses == [0.625, 1.25, 2.5]


def test_unknown_fields_of_a_newer_control_plane_are_ignored() -> None:
    from evctl.client.answers import decoded

    text = msgspec.json.encode({**msgspec.to_builtins(snapshot()), "new": 1})
    assert decoded(text, WatchFrame, "watch") == snapshot()


def test_branches_and_blocks_are_typed(fake: FakeAdmin, client: AdminClient) -> None:
    assert client.kv_check() == fake.kv.check
    assert client.kv_summary() == fake.kv.summary
    assert client.kv_block(KEY[:9]) == fake.kv.block
    page = client.branches(tenant="default", sort="blocks", limit=2)
    assert page.next is not None
    rest = client.branches(tenant="default", sort="blocks", after=page.next)
    assert sorted((*page.branches, *rest.branches), key=lambda r: r.branch) == fake.kv.rows
    assert [what for _, what in fake.kv.calls][1] == {
        "tenant": "default",
        "sort": "blocks",
        "limit": "100",
        "after_figure": str(page.next.figure),
        "after_tenant": "default",
        "after_branch": page.next.branch,
    }
    assert client.branch("default", "agent-7/main").row == fake.kv.rows[0]
    assert client.branch_tree("default", "agent-7/main").rows[1].row == fake.kv.rows[0]
    assert client.end_branch("default", "agent-7/try", by="ada", reason="r").applied
    assert fake.kv.calls[-1] == ("end", ("agent-7/try", {"by": "ada", "reason": "r"}))
    with pytest.raises(NotFoundError) as caught:
        client.branch("default", "nobody")
    assert caught.value.code == "EV-1354"


@pytest.mark.parametrize("name", ["a/b", "..", ".", "%2F", "a%", "?x#y", "é 漢", "a//b/"])
def test_a_name_is_one_segment_of_a_path(name: str) -> None:
    path = segment(name)
    assert unquote(path) == name
    assert not set(path) & set("/?#. ")
    url = httpx.URL(f"http://evctl/{path}/end")
    assert url.raw_path == f"/{path}/end".encode()
