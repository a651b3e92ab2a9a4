"""The overview. Its keys are the action table and nothing else."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Input

from evctl.tui.actions import ACTIONS
from evctl.tui.nodes_table import NodesTable
from evctl.tui.state import Layout
from evctl.tui.views import events, footer, header, panels, pool, references
from evctl.tui.views.scene import Scene
from evctl.tui.widgets import Panel

TOP_PANELS = ("split", "queues", "latency")
SIDE_PANELS = ("refs", "pool")
BOTTOM_PANELS = ("events", *SIDE_PANELS)
LEAST_BOTTOM_ROWS = 18
"""Below this, references and pool take turns at the bottom."""


class OverviewScreen(Screen[None], inherit_bindings=False):
    """Panels of the first screen."""

    AUTO_FOCUS = "#nodes"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(",".join(action.keys), f"app.do('{action.id}')", action.text, id=action.id)
        for action in ACTIONS
    ]

    def compose(self) -> ComposeResult:
        yield Panel(lambda scene, width, _: header.header(scene, width), id="header")
        yield Panel(lambda scene, width, _: footer.tabs(scene, width), id="tabs")
        with Container(id="top"):
            yield Panel(panels.split_panel, id="split", title="split")
            yield Panel(panels.queues_panel, id="queues", title="queues")
            yield Panel(panels.latency_panel, id="latency", title="latency")
        yield NodesTable(id="nodes")
        with Container(id="bottom"):
            yield Panel(events.event_lines, id="events", title="events", focusable=True)
            with Container(id="side"):
                yield Panel(references.references_panel, id="refs", title="references, branches")
                yield Panel(pool.pool_panel, id="pool", title="pool", focusable=True)
        yield Panel(lambda scene, width, _: panels.summary(scene, width), id="summary")
        yield Input(placeholder="filter: part of a name, role or event", id="filter")
        yield Panel(lambda scene, width, _: footer.footer(scene, width), id="footer")

    def lay_out(self, layout: Layout, panel: str, height: int) -> None:
        """Show what `layout` shows; `panel` is the one of the tabs."""
        for each in Layout:
            self.set_class(each is layout, f"-{each.value}")
        self.set_class(height < 30, "-short")
        for name in ("nodes", *BOTTOM_PANELS, *TOP_PANELS):
            self.query_one(f"#{name}").set_class(name == panel, "-shown")
        self.query_one("#top").set_class(panel in TOP_PANELS, "-shown")
        self.query_one("#bottom").set_class(panel in BOTTOM_PANELS, "-shown")
        self.query_one("#side").set_class(panel in SIDE_PANELS, "-shown")
        self.set_class(panel == "pool", "-pool")

    @property
    def takes_turns(self) -> bool:
        """Whether the pool is shown only while it is the chosen panel, though others are."""
        return self.has_class("-turns")

    def _make_room(self, scene: Scene) -> None:
        """The table of nodes leaves more or less of the screen to what is below it."""
        side_by_side = scene.ui.layout in (Layout.FULL, Layout.STACK)
        turns = side_by_side and self.query_one("#bottom").size.height < LEAST_BOTTOM_ROWS
        if turns != self.takes_turns:
            self.set_class(turns, "-turns")
            self.query_one("#refs").border_subtitle = "tab: pool" if turns else ""
            self.call_after_refresh(self.paint, scene)

    def paint(self, scene: Scene) -> None:
        self._make_room(scene)
        with self.app.batch_update():
            for panel in self.query(Panel):
                panel.paint(scene)
            self.query_one(NodesTable).paint(scene)
