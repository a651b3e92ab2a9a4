"""Widgets: they place what the views say, and repaint only what changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from evctl.tui.views.scene import Scene

View = Callable[[Scene, int, int], Text]


class Panel(Widget):
    """A text that a view computes for the size at hand."""

    def __init__(self, view: View, *, id: str, title: str = "", focusable: bool = False) -> None:
        super().__init__(id=id, classes="panel" if title else None)
        self._view = view
        self._said = Text()
        self.can_focus = focusable
        if title:
            self.border_title = title

    def paint(self, scene: Scene) -> None:
        if not self.display or not self.size.width:
            return
        said = self._view(scene, self.size.width, self.size.height)
        if said != self._said or said.spans != self._said.spans:
            self._said = said
            self.refresh()

    def render(self) -> Text:
        return self._said


class Choice(Static, can_focus=True):
    """A button one line high whose focus shows without colour."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter,space", "press", show=False)]

    class Pressed(Message):
        """The choice was taken, by key or mouse."""

        def __init__(self, choice: Choice) -> None:
            super().__init__()
            self.choice = choice

        @property
        def control(self) -> Choice:
            return self.choice

    def __init__(self, label: str, *, id: str) -> None:
        super().__init__(Text(f"[ {label} ]"), id=id)

    def action_press(self) -> None:
        self.post_message(self.Pressed(self))

    def on_click(self) -> None:
        self.action_press()
