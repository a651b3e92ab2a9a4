"""The admin API over a real unix socket, as the client uses it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil
import pytest
import pytest_asyncio

from evctl.client.admin import AdminClient
from evctl.control.admin import create_admin_app
from evctl.control.eventlog import EventLog
from evctl.control.frontdoor import InferenceRequest
from evctl.control.process import _JsonLines
from evctl.control.serving import HttpServer, listen_unix
from evctl.core.errors import ConflictError, EvctlError, RefusedError, UsageError
from evctl.core.events import NodeJoined, NodeLost
from evctl.core.sampling import SamplingParams
from evctl.core.status import WatchFrame
from tests.control.fake_engine import write_model
from tests.control.state import make_state, until
from tests.control.test_engines import Stage

pytestmark = pytest.mark.slow

T = TypeVar("T")


class Office(Stage):
    """A control plane with its admin API served."""

    client: AdminClient
    server: HttpServer

    async def open(self) -> None:
        path = self.plane.directory.admin_socket()
        self.server = HttpServer(create_admin_app(self.plane), listen_unix(path), "admin")
        await self.server.start()
        assert path.stat().st_mode & 0o077 == 0
        self.client = AdminClient(path)
        self.http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://evctl"
        )
        for name in self.settings.nodes:
            self.plane.writer.feed(NodeJoined(name, "b", 64, 16, 8, 4096))

    async def ask(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call)

    async def close(self) -> None:
        self.plane.stopping.set()
        self.client.close()
        await self.http.aclose()
        await self.server.close()
        await super().close()


@pytest_asyncio.fixture
async def office(tmp_path: Path) -> AsyncIterator[Office]:
    made = Office(tmp_path)
    await made.open()
    yield made
    await made.close()


async def test_status_and_events(office: Office) -> None:
    status = await office.ask(office.client.status)
    assert (status.cluster, status.split, status.mode) == ("test", "2P1D", "auto")
    assert [node.role for node in status.nodes] == ["P", "P", "D"]
    assert status.admin.startswith("unix:")
    events = await office.ask(lambda: office.client.events(since=2, limit=2))
    assert [event.sequence for event in events] == [3, 4]
    assert events[0].what == "joined as P"


async def test_a_split_is_planned_set_and_held(office: Office) -> None:
    client = office.client
    plan = await office.ask(lambda: client.set_split("1p2d", by="ann", plan=True))
    assert (plan.before, plan.after, plan.applied, plan.generation) == ("2P1D", "1P2D", False, 0)
    assert [move.node for move in plan.moves] == ["n1"]
    change = await office.ask(
        lambda: client.set_split("1P2D", by="ann", reason="test", generation=0)
    )
    assert (change.applied, change.generation, change.moves) == (True, 1, plan.moves)
    status = await office.ask(client.status)
    assert (status.split, status.mode, status.held_by) == ("1P2D", "hold", "ann")
    with pytest.raises(ConflictError) as conflict:
        await office.ask(lambda: client.set_split("2P1D", by="bob", generation=0))
    assert conflict.value.code == "EV-1351"
    assert "ann" in conflict.value.why
    with pytest.raises(RefusedError) as refused:
        await office.ask(lambda: client.set_split("2P1D", by="bob"))
    assert (refused.value.code, refused.value.exit_code) == ("EV-1352", 8)
    again = await office.ask(lambda: client.set_split("1P2D", by="bob"))
    assert again.moves == (), "what moves nothing needs no cooldown"
    planned = await office.ask(lambda: client.set_split("2P1D", by="bob", plan=True))
    assert planned.cooldown_s == 120.0
    assert planned.refused_until_s is not None, "a plan says what would refuse it"
    assert 60 < planned.refused_until_s - time.time() <= 120
    forced = await office.ask(lambda: client.set_split("2P1D", by="bob", force=True))
    assert (forced.generation, forced.refused_until_s) == (3, None)
    events = await office.ask(lambda: client.events(since=0, limit=1000))
    last = next(event for event in reversed(events) if event.write is not None)
    assert last.write is not None
    assert last.write.forced
    assert last.what.endswith("(hold, generation 3, forced within the cooldown)")
    status = await office.ask(lambda: client.set_mode("advise", by="bob"))
    assert (status.mode, status.held_by) == ("advise", "")


async def test_what_is_so_already_is_not_written_again(office: Office) -> None:
    client = office.client
    first = await office.ask(lambda: client.set_split("2P1D", by="ann", reason="load"))
    assert (first.applied, first.unchanged) == (True, False), "auto became hold"
    for plan in (True, False):
        again = await office.ask(
            lambda plan=plan: client.set_split("2P1D", by="bob", reason="load", plan=plan)
        )
        assert (again.applied, again.unchanged, again.generation) == (False, True, 1)
    status = await office.ask(lambda: client.set_mode("hold", by="bob", reason="load"))
    assert (status.generation, status.held_by) == (1, "ann")
    other = await office.ask(lambda: client.set_split("2P1D", by="bob", reason="tests"))
    assert (other.applied, other.generation) == (True, 2), "another reason is news"
    for _ in range(2):
        status = await office.ask(lambda: client.set_mode("advise", by="bob"))
    assert status.generation == 3
    events = await office.ask(lambda: client.events(since=0, limit=1000))
    assert sum(event.write is not None for event in events) == 3


async def test_the_event_log_says_who_wrote_and_why_also_in_a_later_life(office: Office) -> None:
    client = office.client
    await office.ask(lambda: client.set_split("1P2D", by="ann@desk", reason="evening load"))
    await office.ask(lambda: client.set_mode("advise", by="bob"))
    events = await office.ask(lambda: client.events(since=0, limit=1000))
    first, second = (event for event in events if event.write is not None)
    assert first.write is not None
    assert (first.write.by, first.write.reason) == ("ann@desk", "evening load")
    assert (first.write.before, first.write.after, first.write.generation) == ("2P1D", "1P2D", 1)
    assert [(m.node, m.before, m.after) for m in first.write.moves] == [("n1", "P", "D")]
    assert first.what == "split 2P1D -> 1P2D by ann@desk: evening load (hold, generation 1)"
    assert second.what == "split stays 1P2D by bob (advise, generation 2)"

    kept = office.plane.directory.root / "splits.jsonl"
    assert kept.stat().st_mode & 0o077 == 0
    with kept.open("ab") as file:
        file.write(b'{"sequence": 3, "ti')  # a life that ended in the middle of a line
    earlier = office.plane.directory.split_writes()
    (change,) = (event for event in events if event.transition is not None)
    assert [(one.time_s, one.write, one.transition) for one in earlier] == [
        (one.time_s, one.write, one.transition) for one in (first, change, second)
    ]
    later = EventLog(lambda: 9.0, earlier)
    later.add("info", "control plane up, epoch 2")
    assert [(e.sequence, e.what) for e in later.since(0)] == [
        (1, first.what),
        (2, change.what),
        (3, second.what),
        (4, "control plane up, epoch 2"),
    ]


@pytest.mark.parametrize(("split", "code"), [("4P5D", "EV-1103"), ("nonsense", "EV-1102")])
async def test_a_bad_split_is_the_callers_mistake(office: Office, split: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        await office.ask(lambda: office.client.set_split(split, by="ann"))
    assert (caught.value.code, caught.value.exit_code) == (code, 2)


async def test_a_split_that_empties_a_phase_is_refused(office: Office) -> None:
    for split in ("3P0D", "0p3d"):
        with pytest.raises(RefusedError, match="each phase needs at least one node") as caught:
            await office.ask(lambda split=split: office.client.set_split(split, by="ann"))
        assert (caught.value.code, caught.value.exit_code) == ("EV-1101", 8)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "/admin/v1/split", b"{", 422),
        ("PUT", "/admin/v1/split", b'{"split": "1P2D"}', 422),
        ("PUT", "/admin/v1/split", b'{"split": "1P2D", "by": "a", "colour": 1}', 422),
        ("PUT", "/admin/v1/mode", b'{"mode": "dance", "by": "a"}', 422),
        ("GET", "/admin/v1/events?since=-1", b"", 422),
        ("GET", "/admin/v1/nothing", b"", 404),
        ("DELETE", "/admin/v1/status", b"", 405),
    ],
)
async def test_every_error_has_the_one_form(
    office: Office, method: str, path: str, body: bytes, status: int
) -> None:
    answer = await office.http.request(method, path, content=body)
    assert answer.status_code == status
    assert set(answer.json()) == {"code", "what", "why", "next", "exit_code"}


async def test_openapi_names_the_values(office: Office) -> None:
    schema = (await office.http.get("/admin/v1/openapi.json")).json()
    text = json.dumps(schema)
    names = set(schema["components"]["schemas"])
    assert {"ClusterStatus", "NodeStatus", "SplitChange", "ErrorBody"} <= names
    for reference in set(_references(schema)):
        assert reference.removeprefix("#/components/schemas/") in names, text


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [r for child in value.values() for r in _references(child)]
    if isinstance(value, list):
        return [r for child in value for r in _references(child)]
    return []


async def test_health_and_metrics(office: Office) -> None:
    assert (await office.http.get("/healthz")).status_code == 200
    assert (await office.http.get("/readyz")).status_code == 200
    text = (await office.http.get("/metrics")).text
    assert 'evctl_requests_total{outcome="done"} 0.0' in text
    assert 'evctl_node_up{node="n1",role="P"} 1.0' in text
    office.plane.refuse("stopping")
    answer = await office.http.get("/readyz")
    assert (answer.status_code, answer.text) == (503, "stopping\n")


async def test_watching_starts_with_a_snapshot_and_tells_what_changes(office: Office) -> None:
    frames: list[WatchFrame] = []
    done = threading.Event()

    def follow() -> None:
        for frame in office.client.watch():
            if isinstance(frame, WatchFrame):
                frames.append(frame)
            if done.is_set():
                return

    task = asyncio.create_task(asyncio.to_thread(follow))
    await until(lambda: len(frames) >= 2, 5, "a snapshot and a status")
    assert frames[0].kind == "snapshot"
    assert frames[0].status is not None
    assert frames[0].events, "with what happened lately"
    office.plane.overrides.set_split("1P2D", by="ann")
    await until(lambda: any(f.kind == "events" for f in frames), 1, "events")
    await until(
        lambda: frames[-1].status is not None and frames[-1].status.split == "1P2D", 3, "status"
    )
    assert [frame.sequence for frame in frames] == list(range(1, len(frames) + 1))
    done.set()
    await task


async def test_stop_refuses_new_requests_and_ends_when_idle(office: Office) -> None:
    await office.ask(lambda: office.client.stop(drain=True))
    await until(office.plane.stopping.is_set, 3, "the end")
    assert "stopping" in office.plane.ready()


async def test_a_stop_that_waits_can_be_called_off(office: Office) -> None:
    plane = office.plane
    plane.streams.open(asked())
    await office.ask(lambda: office.client.stop(drain=True))
    assert "stopping" in plane.ready()
    assert await office.ask(office.client.call_off_stop)
    assert plane.ready() == ""
    plane.streams.close("r1")
    await asyncio.sleep(0.3)
    assert not plane.stopping.is_set(), "nothing is in flight any more, and it serves on"
    await office.ask(lambda: office.client.stop(drain=True))
    await until(plane.stopping.is_set, 3, "the end")
    assert not await office.ask(office.client.call_off_stop), "too late"
    assert "stopping" in plane.ready()


def asked() -> InferenceRequest:
    return InferenceRequest(
        request_id="r1",
        tenant="t",
        prompt=(1, 2, 3),
        root_key=bytes(16),
        block_keys=b"",
        sampling=SamplingParams(max_tokens=4),
    )


async def test_a_node_is_starting_while_its_process_lives_and_else_absent(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    try:
        folder = stage.plane.directory.root / "nodes"
        folder.mkdir(exist_ok=True)
        me = {"pid": os.getpid(), "start_time": psutil.Process().create_time()}
        (folder / "n1.json").write_text(json.dumps(me))
        (folder / "n2.json").write_text(json.dumps({**me, "start_time": 1.0}))
        assert states(stage) == ["starting", "absent", "absent"]
        for name in ("n1", "n2"):
            stage.plane.writer.feed(NodeJoined(name, "b", 64, 16, 8, 4096))
        assert states(stage) == ["ok", "ok", "absent"]
        for name in ("n1", "n2"):
            stage.plane.writer.feed(NodeLost(name, "b", "gone"))
        assert states(stage) == ["starting", "lost", "absent"], "n1 was started again"
    finally:
        await stage.close()


def states(stage: Stage) -> list[str]:
    return [node.state for node in stage.plane.status().nodes]


def test_a_line_of_the_log_has_no_colours() -> None:
    record = logging.LogRecord("uvicorn", logging.INFO, "", 0, "up", (), None)
    record.color_message = "\x1b[36mup\x1b[0m"
    record.node = "n1"
    line = json.loads(_JsonLines().format(record))
    assert (line["message"], line["node"]) == ("up", "n1")
    assert "color_message" not in line


async def test_a_long_path_gets_a_short_socket(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    root = tmp_path / ("long-" * 20)
    stage_root = make_state(root, model_directory=write_model(tmp_path / "model"))
    from evctl.control.statedir import StateDirectory

    path = StateDirectory(stage_root.directory).admin_socket()
    assert len(str(path)) < 108
    assert path.parent == tmp_path / "r" / "evctl"
    path.parent.chmod(0o755)
    with pytest.raises(EvctlError) as caught:
        StateDirectory(stage_root.directory).admin_socket()
    assert caught.value.code == "EV-1313"
