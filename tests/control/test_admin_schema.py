"""The admin API against its own OpenAPI: schemathesis sends what the schema allows and what it
forbids, and compares every answer with what the schema promises."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evctl.control.admin import BASE, create_admin_app
from evctl.control.serving import HttpServer, listen_tcp, url_of
from evctl.core.events import NodeJoined
from tests.control.test_engines import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

WATCH, STOP = f"{BASE}/watch", f"{BASE}/stop"
EXAMPLES = 10
"""Random ones an operation; those that cover the schema come on top."""


class Answers:
    """The app, with the statuses that each operation gave."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.seen: defaultdict[tuple[str, str], set[int]] = defaultdict(set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.seen[scope["method"], scope["path"]].add(message["status"])
            await send(message)

        await self._app(scope, receive, noting)


class Fuzzed:
    """A control plane with three nodes, its admin API on a port that schemathesis can reach."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stage = Stage(folder)
        self.plane = self.stage.plane
        self.answers = Answers(create_admin_app(self.plane))
        listener = listen_tcp("127.0.0.1", [0])
        self.url = url_of(listener)
        self._server = HttpServer(self.answers, listener, "admin")

    async def open(self) -> None:
        await self._server.start()
        for name in self.stage.settings.nodes:
            self.plane.writer.feed(NodeJoined(name, "b", 64, 16, 8, 4096))

    async def run(self, *options: str) -> str:
        """All checks of schemathesis; what it printed. The same requests each time."""
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("st")),
            *("run", f"{self.url}{BASE}/openapi.json", "--no-color", "--checks", "all"),
            *("--max-examples", str(EXAMPLES), "--generation-deterministic"),
            *("--request-timeout", "10", *options),
            cwd=self.folder,
            env={**os.environ, "COLUMNS": "99"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        text = output.decode()
        assert process.returncode == 0, text
        return text

    async def close(self) -> None:
        self.plane.stopping.set()
        await self._server.close()
        await self.stage.close()


@pytest_asyncio.fixture
async def fuzzed(tmp_path: Path) -> AsyncIterator[Fuzzed]:
    made = Fuzzed(tmp_path)
    await made.open()
    yield made
    await made.close()


async def test_every_answer_is_what_the_schema_promises(fuzzed: Fuzzed) -> None:
    # A watch has no end. After a stop /readyz is 503, as it should be: that comes last, alone.
    await fuzzed.run("--exclude-path", WATCH, "--exclude-path", STOP)
    # It is not enough that nothing was wrong: what is right must have been reached as well.
    seen = fuzzed.answers.seen
    for path in ("/healthz", "/readyz", "/metrics", f"{BASE}/status"):
        assert 200 in seen["GET", path], path
    assert seen["GET", f"{BASE}/events"] >= {200, 422}
    assert seen["PUT", f"{BASE}/split"] >= {200, 409, 422}
    assert seen["PUT", f"{BASE}/mode"] >= {200, 422}
    assert 405 in seen["DELETE", f"{BASE}/status"]
    assert not any(status >= 500 for statuses in seen.values() for status in statuses)
    assert fuzzed.plane.status().generation > 0, "something was written"
    assert fuzzed.plane.ready() == ""

    await fuzzed.run("--include-path", STOP)
    assert seen["POST", STOP] >= {202, 422}
    assert fuzzed.plane.stopping.is_set()
    assert fuzzed.plane.ready() != ""
