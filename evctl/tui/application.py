"""What the interface does: one method for each action of the table, and what they need."""

from __future__ import annotations

import os
import tempfile

import msgspec
from textual import on
from textual.widgets import DataTable, Input

from evctl.core.status import ClusterStatus, SplitChange
from evctl.tui import themes
from evctl.tui.actions import BY_ID, why_not
from evctl.tui.live import LiveApp
from evctl.tui.screens.modals import (
    HelpScreen,
    NodeScreen,
    PaletteScreen,
    PlannerScreen,
    UnlockScreen,
)
from evctl.tui.screens.mode import ModeScreen
from evctl.tui.screens.split import SplitScreen
from evctl.tui.state import PANELS, PERIODS_S, Layout
from evctl.tui.views.events import scrolled, shown_events

EVERYTHING = 1_000_000
"""Lines; more than any panel has."""
MOST_CLIPBOARD_BYTES = 48_000
"""Terminals drop longer OSC 52 sequences without a word; what is longer goes to a file."""


class TopApp(LiveApp, inherit_bindings=False):
    """`evctl top`."""

    def action_do(self, name: str) -> None:
        """Do an action of the table, unless it is not possible now; then say why."""
        action = BY_ID[name]
        reason = why_not(action, self.scene().model, self.ui, self._clock())
        if reason:
            self.say(f"{action.title}: {reason}", "warn")
            return
        getattr(self, f"do_{name}")()

    def do_help(self) -> None:
        self.push_screen(HelpScreen(self.scene))

    def do_palette(self) -> None:
        def chosen(name: str | None) -> None:
            if name is not None:
                self.action_do(name)

        self.push_screen(PaletteScreen(self.scene), chosen)

    def do_split(self, split: str = "") -> None:
        def done(change: SplitChange | None) -> None:
            if change is None:
                return
            if change.unchanged:
                self.say(f"split {change.after} was held so already: nothing was changed")
                return
            arrow = themes.look_for(self.ui.theme, self._terminal).glyphs.arrow
            moved = f"{change.before} {arrow} {change.after}"
            self.say(f"split {moved} accepted and held, generation {change.generation}")

        self.push_screen(SplitScreen(self._source, self._by, self.scene, split), done)

    def do_hold(self) -> None:
        status = self.scene().model.status
        assert status is not None  # action_do refused otherwise
        self.do_split(status.target_split)

    def do_mode(self) -> None:
        def done(status: ClusterStatus | None) -> None:
            if status is not None:
                self.say(f"the mode is {status.mode}, generation {status.generation}")

        self.push_screen(ModeScreen(self._source, self._by, self.scene), done)

    def do_unlock(self) -> None:
        if not self.ui.locked:
            self.choose(locked=True)
            return

        def typed(unlocked: bool | None) -> None:
            if unlocked:
                self.choose(locked=False)

        self.push_screen(UnlockScreen(self.scene), typed)

    def do_planner(self) -> None:
        self.push_screen(PlannerScreen(self.scene))

    def do_open(self) -> None:
        if self.ui.panel == "planner":
            self.do_planner()
        else:
            self._open_node()

    @on(DataTable.RowSelected)
    def _open_node(self) -> None:
        if (name := self.table.chosen) is not None:
            self.push_screen(NodeScreen(self.scene, name))

    def do_why(self) -> None:
        node = self.table.chosen
        if self.ui.panel == "planner":
            self.do_planner()
            return
        asked = f"node {node}" if node is not None else "split"
        self.say(f"the reasons: evctl why {asked}{self.ui.flag}")

    def do_filter(self) -> None:
        field = self.overview.query_one("#filter", Input)
        field.add_class("-open")
        field.focus()

    @on(Input.Changed, "#filter")
    def _filtered(self, event: Input.Changed) -> None:
        self.choose(needle=event.value.strip(), events_until=None)

    @on(Input.Submitted, "#filter")
    def _filter_kept(self) -> None:
        self.overview.query_one("#filter").remove_class("-open")
        self._focus_panel()

    def do_back(self) -> None:
        field = self.overview.query_one("#filter", Input)
        field.value = ""
        field.remove_class("-open")
        self._focus_panel()
        self.choose(needle="", events_until=None)

    def do_sort(self) -> None:
        self.choose(descending=not self.ui.descending)

    def do_sort_left(self) -> None:
        self.choose(sort=self.table.sort_key(self.ui.sort, -1))

    def do_sort_right(self) -> None:
        self.choose(sort=self.table.sort_key(self.ui.sort, 1))

    def do_pause(self) -> None:
        if self._frozen is not None:
            self._frozen = None
            self.choose(paused_s=None)
        else:
            self._frozen = self.feed.model
            self.choose(paused_s=self._clock())

    def do_faster(self) -> None:
        self._change_period(-1)

    def do_slower(self) -> None:
        self._change_period(1)

    def _change_period(self, by: int) -> None:
        at = PERIODS_S.index(self.ui.period_s) + by
        period_s = PERIODS_S[min(len(PERIODS_S) - 1, max(0, at))]
        self._tick_every(period_s)
        self.ui = msgspec.structs.replace(self.ui, period_s=period_s)
        self.say(f"painted every {period_s:g} s")

    def do_theme(self) -> None:
        if self._terminal.mono:
            self.say("NO_COLOR is set: no other theme", "warn")
            return
        names = themes.NAMES
        name = names[(names.index(self.ui.theme) + 1) % len(names)]
        self._wear(name)
        self.ui = msgspec.structs.replace(self.ui, theme=name)
        self.say(f"theme {name}")

    def do_copy(self) -> None:
        what, text = self._copied()
        if not text:
            self.say("nothing to copy yet", "warn")
        elif len(text.encode()) <= MOST_CLIPBOARD_BYTES:
            self.copy_to_clipboard(text)
            self.say(f"copied {what}")
        else:
            handle, path = tempfile.mkstemp(prefix="evctl-top-", suffix=".json")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            self.say(f"too long for the clipboard: {what} written to {path}", "warn")

    def _copied(self) -> tuple[str, str]:
        """What is chosen, as words and as text."""
        if selected := self.overview.get_selected_text():
            return "the selection", selected
        scene = self.scene()
        status = scene.model.status
        if status is None:
            return "", ""
        if self.ui.panel == "events" and (found := shown_events(scene, 1)):
            return f"event {found[0].sequence}", msgspec.json.encode(found[0]).decode()
        if self.ui.panel == "nodes":
            chosen = self.table.chosen
            for node in status.nodes:
                if node.name == chosen:
                    return f"node {node.name}", msgspec.json.encode(node).decode()
        if self.ui.panel == "pool" and status.pool is not None:
            return "the pool", msgspec.json.encode(status.pool).decode()
        if self.ui.panel == "planner" and status.brain is not None:
            return "the planner", msgspec.json.encode(status.brain).decode()
        return "the status", msgspec.json.encode(status).decode()

    # ------------------------------------------------------------------------------- moving

    def do_overview(self) -> None:
        self._show_panel("nodes")

    def do_next(self) -> None:
        self._step_panel(1)

    def do_previous(self) -> None:
        self._step_panel(-1)

    def _step_panel(self, by: int) -> None:
        names = PANELS if self.ui.layout is Layout.TABS else ("nodes", "events")
        if self.ui.layout is not Layout.TABS:
            names = (*names, *self.overview.in_turn)
        at = names.index(self.ui.panel) if self.ui.panel in names else 0
        self._show_panel(names[(at + by) % len(names)])

    def do_up(self) -> None:
        self._move(-1)

    def do_down(self) -> None:
        self._move(1)

    def _move(self, by: int) -> None:
        if self.ui.panel == "events":
            self.choose(events_until=scrolled(self.scene(), by))
        elif self.ui.panel == "nodes":
            last = self.table.row_count - 1
            row = min(last, max(0, self.table.cursor_row + by))
            self.table.move_cursor(row=row, animate=False)

    def do_page_up(self) -> None:
        self._move(-self._page_rows())

    def do_page_down(self) -> None:
        self._move(self._page_rows())

    def do_first(self) -> None:
        self._move(-EVERYTHING)

    def do_last(self) -> None:
        self._move(EVERYTHING)

    def _page_rows(self) -> int:
        return max(1, self.overview.query_one(f"#{self.ui.panel}").size.height - 2)

    def do_left(self) -> None:
        self.table.scroll_relative(x=-8, animate=False)

    def do_right(self) -> None:
        self.table.scroll_relative(x=8, animate=False)

    def do_quit(self) -> None:
        self.exit()
