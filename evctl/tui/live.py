"""The application without its actions: model, clock, layout and painting in one place."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import msgspec
from textual import events
from textual.app import App, ScreenStackError
from textual.binding import BindingType
from textual.css.query import NoMatches
from textual.timer import Timer

from evctl.tui import themes
from evctl.tui.feed import Feed
from evctl.tui.model import Model
from evctl.tui.nodes_table import NodesTable
from evctl.tui.screens.modals import PaletteScreen, TextScreen, UnlockScreen
from evctl.tui.screens.mode import ModeScreen
from evctl.tui.screens.overview import OverviewScreen
from evctl.tui.screens.split import SplitScreen
from evctl.tui.source import AdminSource
from evctl.tui.state import Notice, Ui, layout_for
from evctl.tui.terminal import Terminal
from evctl.tui.views.scene import Scene

NOTICE_S = 5.0


class LiveApp(App[None], inherit_bindings=False):
    """Keeps the screen in step with the feed, whatever lies over it."""

    CSS_PATH = "top.tcss"
    TITLE = "evctl top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(
        self,
        source: AdminSource,
        *,
        clock: Callable[[], float],
        terminal: Terminal,
        read_only: bool = False,
        protected: bool = False,
        flag: str = "",
        by: str,
    ) -> None:
        super().__init__(ansi_color=True if terminal.mono else None)
        self._source = source
        self._clock = clock
        self._terminal = terminal
        self._by = by
        self._frozen: Model | None = None
        self._timer: Timer | None = None
        self._laid_out = False
        self.feed = Feed(source, clock)
        self.ui = Ui(
            locked=read_only,
            read_only=read_only,
            protected=protected,
            flag=flag,
            period_s=terminal.paint_period_s,
            theme="mono" if terminal.mono else "dark",
        )
        self.overview = OverviewScreen()
        # Before the first screen is styled: its sheet names the themes' variables.
        for theme in themes.ALL:
            self.register_theme(theme)
        self.set_class(terminal.ascii, "-ascii")
        self._wear(self.ui.theme)

    def get_default_screen(self) -> OverviewScreen:
        return self.overview

    def on_ready(self) -> None:
        # Not on mount: the first screen has its widgets only now.
        self._laid_out = True
        self.feed.start()
        self._arrange(self.size.width, self.size.height)
        self._tick_every(self.ui.period_s)
        self.call_after_refresh(self.paint)

    def on_unmount(self) -> None:
        self.feed.stop()

    # ------------------------------------------------------------------------------ painting

    def scene(self) -> Scene:
        live = self.feed.model
        return Scene(
            model=self._frozen or live,
            live=live,
            ui=self.ui,
            look=themes.look_for(self.ui.theme, self._terminal),
            now_s=self._clock(),
        )

    def paint(self) -> None:
        """Bring the overview and what lies over it up to date."""
        if not self._laid_out:
            return
        scene = self.scene()
        modals = TextScreen | PaletteScreen | UnlockScreen | SplitScreen | ModeScreen
        # The clock may tick while a screen is being composed or taken down, when only some of its
        # widgets are there; it paints itself when it is done. On the way out there is none at all.
        with suppress(NoMatches, ScreenStackError):
            top = self.screen
            self.overview.paint(scene)
            if isinstance(top, modals) and top.is_mounted:
                top.paint(scene)

    def _tick_every(self, period_s: float) -> None:
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_interval(period_s, self.paint)

    def choose(self, **changes: object) -> None:
        """Change what the person chose, and show it at once."""
        self.ui = msgspec.structs.replace(self.ui, **changes)
        self.paint()

    def say(self, text: str, level: str = "ok") -> None:
        self.choose(notice=Notice(text, level, self._clock() + NOTICE_S))

    def on_resize(self, event: events.Resize) -> None:
        self._arrange(event.size.width, event.size.height)

    def _arrange(self, width: int, height: int) -> None:
        layout = layout_for(width, height)
        self.ui = msgspec.structs.replace(self.ui, layout=layout)
        if not self._laid_out:
            return
        self.overview.lay_out(layout, self.ui.panel, height)
        self.call_after_refresh(self.paint)

    def _wear(self, name: str) -> None:
        self.theme = themes.theme_name(name)
        self.set_class(themes.is_native(name), "-native")

    @property
    def table(self) -> NodesTable:
        return self.overview.query_one(NodesTable)

    def _show_panel(self, panel: str) -> None:
        self.ui = msgspec.structs.replace(self.ui, panel=panel)
        self._arrange(self.size.width, self.size.height)
        self._focus_panel()

    def _focus_panel(self) -> None:
        panel = self.overview.query_one(f"#{self.ui.panel}")
        self.overview.set_focus(panel if panel.can_focus else None)
