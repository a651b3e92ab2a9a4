"""The overview. Its keys are the action table and nothing else."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Span, Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.screen import Screen
from textual.widgets import Input

from evctl.tui.actions import ACTIONS
from evctl.tui.nodes_table import NodesTable
from evctl.tui.state import Layout
from evctl.tui.views import events, footer, header, occupancy, panels, planner, pool, references
from evctl.tui.views.scene import Scene
from evctl.tui.widgets import Panel

TOP_PANELS = ("split", "queues", "latency")
SIDE_PANELS = ("refs", "pool")
MAIN_PANELS = ("planner", "events")
BOTTOM_PANELS = (*MAIN_PANELS, *SIDE_PANELS)
LEAST_BOTTOM_ROWS = 18
"""Below this, references and pool take turns at the bottom."""
LEAST_MAIN_ROWS = 13
"""Below this, so do events and planner."""


TURNS = {"planner": (LEAST_MAIN_ROWS, "events"), "pool": (LEAST_BOTTOM_ROWS, "refs")}
"""Panel -> below how many rows it is shown only in its turn, and what tells so meanwhile."""


class OverviewScreen(Screen[None], inherit_bindings=False):
    """Panels of the first screen."""

    AUTO_FOCUS = "#nodes"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(",".join(action.keys), f"app.do('{action.id}')", action.text, id=action.id)
        for action in ACTIONS
    ]

    def __init__(self) -> None:
        super().__init__()
        self._shapes: tuple[str, list[Span]] = ("", [])

    def compose(self) -> ComposeResult:
        yield Panel(lambda scene, width, _: header.header(scene, width), id="header")
        yield Panel(lambda scene, width, _: footer.tabs(scene, width), id="tabs")
        with Container(id="top"):
            yield Panel(panels.split_panel, id="split", title="split")
            yield Panel(panels.queues_panel, id="queues", title="queues")
            yield Panel(panels.latency_panel, id="latency", title="latency")
        yield NodesTable(id="nodes")
        with Container(id="bottom"):
            with Container(id="main"):
                yield Panel(planner.planner_panel, id="planner", title="planner", focusable=True)
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
        self.query_one("#main").set_class(panel in MAIN_PANELS, "-shown")
        for name in TURNS:
            self.set_class(panel == name, f"-{name}")

    @property
    def in_turn(self) -> tuple[str, ...]:
        """Panels that are shown only while they are chosen, though others are shown as well."""
        return tuple(name for name in TURNS if self.has_class(f"-{name}-turns"))

    def _make_room(self, scene: Scene) -> None:
        """The table of nodes leaves more or less of the screen to what is below it."""
        side_by_side = scene.ui.layout in (Layout.FULL, Layout.STACK)
        rows = self.query_one("#bottom").size.height
        in_turn = tuple(n for n, (least, _) in TURNS.items() if side_by_side and rows < least)
        if in_turn != self.in_turn:
            for name, (_, beside) in TURNS.items():
                self.set_class(name in in_turn, f"-{name}-turns")
                said = f"tab: {name}" if name in in_turn else ""
                self.query_one(f"#{beside}").border_subtitle = said
            self.call_after_refresh(self.paint, scene)

    def _name_shapes(self, scene: Scene) -> None:
        """In the frame of the pool, where no row of it is lost; while there are any."""
        panel, status = self.query_one("#pool", Panel), scene.model.status
        shapes = Text()
        if status is not None and status.pool is not None:
            shapes = occupancy.legend(scene.value_look, max(1, panel.size.width))
        if panel.size.width and (shapes.plain, shapes.spans) != self._shapes:
            self._shapes = shapes.plain, shapes.spans
            panel.border_subtitle = shapes

    def paint(self, scene: Scene) -> None:
        self._make_room(scene)
        self._name_shapes(scene)
        with self.app.batch_update():
            for panel in self.query(Panel):
                panel.paint(scene)
            self.query_one(NodesTable).paint(scene)
