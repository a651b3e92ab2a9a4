"""A small admin server on a unix socket that does what a test tells it to."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route, Router

from evctl.core.pool_status import AheadStatus, NodePool, PoolStatus, TierOccupancy
from evctl.core.status import (
    ClusterStatus,
    ErrorBody,
    EventRecord,
    Move,
    NodeStatus,
    QueueStatus,
    SplitChange,
    WatchFrame,
)
from tests.client.fake_kv import KV, FakeKv
from tests.client.fake_why import FakeWhy

QUEUE = QueueStatus(waiting=0, running=0, wait_p50_s=None, wait_p95_s=None)

POOL = PoolStatus(
    fetches=40,
    fetched_blocks={"l1": 900, "own_l2": 300, "peer_l2": 600},
    fetched_bytes={"l1": 58_982_400, "own_l2": 19_660_800, "peer_l2": 39_321_600},
    fetch_s=8.0,
    exposed_s=0.5,
    fetch_queued_s=2.0,
    share_hidden=0.9375,
    recomputed_blocks={"deadline": 12, "gone": 3},
    ahead=AheadStatus({"sent": 9, "done": 8, "lost": 1}, 120, 7_864_320, 16),
    nodes=(
        NodePool(
            "n1",
            TierOccupancy(1024, 256, (100, 20, 500), 0),
            TierOccupancy(2048, 2000, (900, 100, 1000), 2),
        ),
    ),
)


def node(name: str, role: str, **changes: Any) -> NodeStatus:
    values = {
        "name": name,
        "role": role,
        "target_role": role,
        "state": "ok",
        "boot_id": f"boot-{name}",
        "age_s": 0.2,
        "queue": 0,
        "running": 0,
        "running_prefill": 0,
        "running_decode": 0,
        "l1": 0.25,
        "l2": 0.0,
        "pid": None,
        "blocks": 100,
        "referenced": 0.63,
    }
    return NodeStatus(**{**values, **changes})


def status(**changes: Any) -> ClusterStatus:
    values: dict[str, Any] = {
        "cluster": "local",
        "gateway": "http://127.0.0.1:8080",
        "admin": "unix:/state/admin.sock",
        "model": "random-4l256",
        "split": "2P1D",
        "target_split": "2P1D",
        "mode": "advise",
        "generation": 7,
        "epoch": 1,
        "sequence": 20,
        "in_flight": 3,
        "prefill": QueueStatus(waiting=2, running=1, wait_p50_s=0.12, wait_p95_s=1.5),
        "decode": QUEUE,
        "ttft_p50_s": 0.4,
        "ttft_p95_s": 2.0,
        "requests_done": 100,
        "requests_failed": 1,
        "requests_rejected": 0,
        "throughput_rps": 2.5,
        "nodes": (node("n1", "P", queue=2, running=1), node("n2", "P"), node("n3", "D")),
        "kv": KV,
        "pool": POOL,
    }
    return ClusterStatus(**{**values, **changes})


def body(error: Exception | None = None, **values: Any) -> bytes:
    return msgspec.json.encode(ErrorBody(**values))


Frames = list[WatchFrame | float]
"""Frames to send, and pauses in seconds between them."""


class FakeAdmin:
    """status, events, streams: what calls answer; refuse: (HTTP status, body) for any write.

    streams holds one list of frames a connection; the last one stays open when `hold` is set.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.reset()

    def reset(self) -> None:
        """As new; it goes on listening."""
        self.status = status()
        self.events: list[EventRecord] = []
        self.streams: list[Frames] = []
        self.hold = True
        self.refuse: tuple[int, bytes] | None = None
        self.unchanged = False
        self.refused_until_s: float | None = None
        self.settling = False
        self.delay_s = 0.0
        self.calls: list[tuple[str, Any]] = []
        self.kv = FakeKv()
        self.why = FakeWhy()
        self.on_stop: Callable[[], None] = lambda: None

    def start(self) -> FakeAdmin:
        routes = [
            Route("/admin/v1/status", self._status),
            Route("/admin/v1/events", self._events),
            Route("/admin/v1/watch", self._watch),
            Route("/admin/v1/split", self._split, methods=["PUT"]),
            Route("/admin/v1/mode", self._mode, methods=["PUT"]),
            Route("/admin/v1/stop", self._stop, methods=["POST"]),
            # `kv` and `why` are made anew for each test.
            Mount("/", app=lambda *message: Router(self.routes())(*message)),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes),
            uds=str(self.path),
            log_level="error",
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 10
        while not self._server.started:
            assert time.monotonic() < deadline, "the fake did not start"
            time.sleep(0.005)
        return self

    def routes(self) -> list[Route]:
        return [*self.kv.routes(), *self.why.routes()]

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self.hold = False
            self._thread.join(10)
            self.path.unlink(missing_ok=True)
            self._server = None

    async def _status(self, request: Request) -> Response:
        import anyio

        await anyio.sleep(self.delay_s)
        return Response(msgspec.json.encode(self.status), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        since = int(request.query_params["since"])
        limit = int(request.query_params["limit"])
        chosen = [event for event in self.events if event.sequence > since][:limit]
        return Response(msgspec.json.encode(chosen))

    async def _watch(self, request: Request) -> Response:
        frames: Frames = self.streams.pop(0) if self.streams else []

        async def lines() -> AsyncIterator[bytes]:
            import anyio

            for frame in frames:
                if isinstance(frame, float):
                    await anyio.sleep(frame)
                else:
                    yield msgspec.json.encode(frame) + b"\n"
            while self.hold and not self.streams:
                await anyio.sleep(0.02)

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def _split(self, request: Request) -> Response:
        asked = msgspec.json.decode(await request.body())
        self.calls.append(("split", asked))
        if self.refuse:
            return Response(self.refuse[1], self.refuse[0])
        before = self.status.target_split
        moves = (Move("n2", "P", "D", running=1, queued=2),) if before != asked["split"] else ()
        change = SplitChange(
            before=before,
            after=asked["split"],
            moves=moves,
            generation=self.status.generation + (not asked["plan"]),
            applied=not asked["plan"] and not self.unchanged,
            unchanged=self.unchanged,
            refused_until_s=self.refused_until_s if asked["plan"] else None,
            cooldown_s=120.0,
            settling=self.settling,
        )
        return Response(msgspec.json.encode(change))

    async def _mode(self, request: Request) -> Response:
        asked = msgspec.json.decode(await request.body())
        self.calls.append(("mode", asked))
        if self.refuse:
            return Response(self.refuse[1], self.refuse[0])
        self.status = msgspec.structs.replace(self.status, mode=asked["mode"])
        return Response(msgspec.json.encode(self.status))

    async def _stop(self, request: Request) -> Response:
        self.calls.append(("stop", msgspec.json.decode(await request.body())))
        self.on_stop()
        return Response(b"{}")
