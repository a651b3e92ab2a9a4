"""The table of nodes, updated in place: cursor and scroll stay where they are."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.binding import BindingType
from textual.coordinate import Coordinate
from textual.widgets import DataTable

from evctl.core.status import NodeStatus
from evctl.tui.views.nodes import (
    Column,
    cells,
    column_title,
    columns_for,
    next_sort,
    ordered,
)
from evctl.tui.views.scene import Scene

MARGIN_ROWS = 2
"""Rows beyond the edges that are kept fresh too."""


class NodesTable(DataTable[Text], inherit_bindings=False):
    """Rows by name. Only those on screen are computed, so a large cluster costs no more.

    It has no keys of its own: they are in the action table.
    """

    BINDINGS: ClassVar[list[BindingType]] = []

    def __init__(self, *, id: str) -> None:
        super().__init__(
            id=id,
            classes="panel",
            cursor_type="row",
            show_row_labels=False,
            # What is lost or stale must look so under the cursor too.
            cursor_foreground_priority="renderable",
        )
        self.border_title = "nodes"
        self._columns_shown: tuple[Column, ...] = ()
        self._titles: tuple[str, ...] = ()
        self._order: tuple[str, ...] = ()
        self._ordered: tuple[NodeStatus, ...] = ()
        self._shown: dict[str, tuple[Text, ...]] = {}
        self._scene: Scene | None = None

    @property
    def chosen(self) -> str | None:
        """Name of the node under the cursor."""
        return self._order[self.cursor_row] if self.cursor_row < len(self._order) else None

    def sort_key(self, current: str, by: int) -> str:
        return next_sort(current, self._columns_shown, by)

    def paint(self, scene: Scene) -> None:
        """Bring the table to `scene`."""
        if not self.display or not self.size.width:
            return
        self._scene = scene
        self._ordered = ordered(scene)
        status = scene.model.status
        every = () if status is None else status.nodes
        self._lay_out(columns_for(self.scrollable_content_region.width, every), scene)
        self._sync_rows(scene)
        self._paint_visible()
        self.border_subtitle = self._count(len(every), scene)

    @staticmethod
    def _count(total: int, scene: Scene) -> str:
        needle = scene.ui.needle
        return f"filter: {needle}" if needle else (f"{total} nodes" if total > 9 else "")

    def _lay_out(self, columns: tuple[Column, ...], scene: Scene) -> None:
        """Make the columns anew if others fit now, or their titles changed."""
        titles = tuple(column_title(column, scene).plain for column in columns)
        if columns == self._columns_shown:
            if titles != self._titles:
                self._titles = titles
                for shown, column in zip(self.ordered_columns, columns, strict=True):
                    shown.label = column_title(column, scene)
                self._update_count += 1
                self.refresh()
            return
        chosen, scroll_y = self.chosen, self.scroll_y
        self.clear(columns=True)
        for column in columns:
            self.add_column(column_title(column, scene), key=column.key, width=column.width)
        self._columns_shown, self._titles = columns, titles
        self._order, self._shown = (), {}
        self._sync_rows(scene)
        self._choose(chosen)
        self.scroll_to(y=scroll_y, animate=False)

    def _sync_rows(self, scene: Scene) -> None:
        """Rows that came, went or changed place."""
        names = tuple(node.name for node in self._ordered)
        if names == self._order:
            return
        chosen = self.chosen
        wanted = set(names)
        for name in self._order:
            if name not in wanted:
                self.remove_row(name)
                self._shown.pop(name, None)
        for node in self._ordered:
            if node.name not in self._shown:
                row = cells(node, self._columns_shown, scene)
                self.add_row(*row, key=node.name)
                self._shown[node.name] = row
        rank = {name: at for at, name in enumerate(names)}
        self._order = names
        self._rank_rows(rank)
        self._choose(chosen)

    def _rank_rows(self, rank: dict[str, int]) -> None:
        # sort() hands over cells, not keys; the first cell is the node's name.
        plain = {self._shown[name][0].plain: at for name, at in rank.items()}
        self.sort("name", key=lambda cell: plain[cell.plain])

    def _choose(self, name: str | None) -> None:
        """Keep the cursor on its node, wherever that is now."""
        if name in self._order:
            at = self._order.index(name)
            if at != self.cursor_row:
                self.cursor_coordinate = Coordinate(at, 0)

    def _paint_visible(self) -> None:
        scene = self._scene
        if scene is None:
            return
        first = max(0, int(self.scroll_offset.y) - MARGIN_ROWS)
        last = first + self.size.height + 2 * MARGIN_ROWS
        for node in self._ordered[first:last]:
            row = cells(node, self._columns_shown, scene)
            before = self._shown[node.name]
            for column, old, new in zip(self._columns_shown, before, row, strict=True):
                if old.plain != new.plain or old.style != new.style or old.spans != new.spans:
                    self.update_cell(node.name, column.key, new, update_width=False)
            self._shown[node.name] = row

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if int(old_value) != int(new_value):
            self._paint_visible()
