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
from evctl.tui.views import events, footer, header, panels, references
from evctl.tui.views.scene import Scene
from evctl.tui.widgets import Panel

TOP_PANELS = ("split", "queues", "latency")
BOTTOM_PANELS = ("events", "refs")


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
            yield Panel(references.references_panel, id="refs", title="references, branches")
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

    def paint(self, scene: Scene) -> None:
        with self.app.batch_update():
            for panel in self.query(Panel):
                panel.paint(scene)
            self.query_one(NodesTable).paint(scene)
