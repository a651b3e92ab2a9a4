"""Driving the app in a test, and reading its screen as text."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rich.console import Console
from textual.pilot import Pilot

from evctl.tui.application import TopApp
from evctl.tui.source import Stale
from evctl.tui.terminal import Terminal
from tests.tui.fakes import FakeClock, FakeSource

SIZES = [(120, 36), (80, 24), (60, 20)]
DEADLINE_S = 10.0


class Stage:
    """The app, its source and its clock."""

    def __init__(self, app: TopApp, pilot: Pilot[None], source: FakeSource, clock: FakeClock):
        self.app, self.pilot, self.source, self.clock = app, pilot, source, clock

    async def until(self, true: Callable[[], object], what: str = "") -> None:
        """Paint until `true`, or fail with the screen."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            self.app.paint()
            await self.pilot.pause()
            if true():
                return
            assert time.monotonic() < deadline, f"never {what}:\n{self.text()}"
            await asyncio.sleep(0.01)

    async def sees(self, *wanted: str) -> str:
        """Wait for all of the texts; returns the screen."""
        await self.until(lambda: all(each in self.text() for each in wanted), f"saw {wanted}")
        return self.text()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        self.app.paint()
        await self.pilot.pause()

    async def pass_time(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.app.paint()
        await self.pilot.pause()

    def text(self) -> str:
        return screen_text(self.app)


def screen_text(app: TopApp) -> str:
    """What the terminal shows, without its colours."""
    width, height = app.size
    console = Console(
        width=width,
        height=height,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        record=True,
        legacy_windows=False,
    )
    console.print(app.screen._compositor.render_update(full=True))
    return console.export_text(styles=False)


@asynccontextmanager
async def staged(
    source: FakeSource | None = None,
    *,
    size: tuple[int, int] = (120, 36),
    terminal: Terminal | None = None,
    read_only: bool = False,
    protected: bool = False,
) -> AsyncIterator[Stage]:
    """The app over `source`, once its first snapshot is on the screen."""
    source, clock = source or FakeSource(), FakeClock()
    app = TopApp(
        source,
        clock=clock,
        terminal=terminal or Terminal(),
        read_only=read_only,
        protected=protected,
        by="alice",
    )
    async with app.run_test(size=size) as pilot:
        stage = Stage(app, pilot, source, clock)
        await stage.until(lambda: app.feed.model.status is not None, "connected")
        yield stage
    source.tell(Stale(1, "the test is over"))  # lets the feed's thread end
