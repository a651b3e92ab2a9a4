"""The modals that only show or ask for a word: help, a node, the planner, the palette, unlock."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from evctl.tui.views.detail import node_detail
from evctl.tui.views.footer import Entry, entries, entry_text, help_text
from evctl.tui.views.planner_detail import planner_detail
from evctl.tui.views.scene import Scene

CLOSE: tuple[BindingType, ...] = (Binding("escape,ctrl+c", "close", show=False),)
INNER_WIDTH = 78


class Said(Static):
    """A text that is replaced only when it differs."""

    def __init__(self) -> None:
        super().__init__(classes="said")
        self._text = Text()

    def say(self, text: Text) -> None:
        if text != self._text or text.spans != self._text.spans:
            self._text = text
            self.update(text)


class TextScreen(ModalScreen[None]):
    """A live text over the overview; esc, enter or q closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *CLOSE,
        Binding("enter,q,question_mark", "close", show=False),
        Binding("k", "scroll(-1)", show=False),
        Binding("j", "scroll(1)", show=False),
    ]
    AUTO_FOCUS = "VerticalScroll"

    def __init__(self, scene: Callable[[], Scene]) -> None:
        super().__init__()
        self._scene = scene

    def on_mount(self) -> None:
        self.paint(self._scene())

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box") as box:
            box.border_title = self.heading
            box.border_subtitle = "esc closes"
            yield Said()

    @property
    def heading(self) -> str:
        raise NotImplementedError

    def text(self, scene: Scene) -> Text:
        raise NotImplementedError

    @property
    def inner_width(self) -> int:
        return self.query_one(Said).size.width or INNER_WIDTH

    def paint(self, scene: Scene) -> None:
        self.query_one(Said).say(self.text(scene))

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    def action_close(self) -> None:
        self.dismiss()


class HelpScreen(TextScreen):
    """Every action."""

    heading = "keys"

    def text(self, scene: Scene) -> Text:
        return help_text(scene)


class NodeScreen(TextScreen):
    """One node, live."""

    def __init__(self, scene: Callable[[], Scene], node: str) -> None:
        super().__init__(scene)
        self._node = node

    @property
    def heading(self) -> str:
        return f"node {self._node}"

    def text(self, scene: Scene) -> Text:
        return node_detail(scene, self._node, self.inner_width)


class PlannerScreen(TextScreen):
    """The planner, live."""

    heading = "planner"

    def text(self, scene: Scene) -> Text:
        return planner_detail(scene, self.inner_width)


class PaletteScreen(ModalScreen[str]):
    """Actions by name; gives the id of the one to do."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *CLOSE,
        Binding("down", "move(1)", show=False),
        Binding("up", "move(-1)", show=False),
    ]

    def __init__(self, scene: Callable[[], Scene]) -> None:
        super().__init__()
        self._shown = scene()
        self._entries: tuple[Entry, ...] = ()

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "palette"
            with Horizontal(classes="field"):
                yield Static(":", classes="name")
                yield Input(placeholder="what to do")
            yield OptionList(id="entries")

    def on_mount(self) -> None:
        self._list("")

    def paint(self, scene: Scene) -> None:
        self._shown = scene

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        self._list(event.value)

    def _list(self, needle: str) -> None:
        self._entries = entries(self._shown, needle)
        width = min(INNER_WIDTH, self.app.size.width - 6)
        options = self.query_one(OptionList)
        options.clear_options()
        options.add_options(
            [
                Option(entry_text(entry, self._shown, width), id=entry.action.id)
                for entry in self._entries
            ]
        )
        options.highlighted = 0 if self._entries else None

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        if options.highlighted is not None:
            options.highlighted = (options.highlighted + by) % len(self._entries)

    @on(Input.Submitted)
    def _taken(self) -> None:
        at = self.query_one(OptionList).highlighted
        if at is not None:
            self.dismiss(self._entries[at].action.id)

    @on(OptionList.OptionSelected)
    def _clicked(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(str(event.option.id))

    def action_close(self) -> None:
        self.dismiss()


class UnlockScreen(ModalScreen[bool]):
    """Ends read-only mode once `unlock` is typed."""

    WORD = "unlock"
    BINDINGS: ClassVar[list[BindingType]] = [*CLOSE]

    def __init__(self, scene: Callable[[], Scene]) -> None:
        super().__init__()
        self._scene = scene

    def on_mount(self) -> None:
        self.paint(self._scene())

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = "read-only"
            box.border_subtitle = "enter unlocks, esc leaves"
            yield Said()
            with Horizontal(classes="field"):
                yield Static(f"type {self.WORD}:", classes="name")
                yield Input()
            yield Static("")

    def paint(self, _scene: Scene) -> None:
        self.query_one(Said).say(
            Text("Changes to the cluster are locked. Each is still confirmed once unlocked.")
        )

    @on(Input.Submitted)
    def _typed(self, event: Input.Submitted) -> None:
        if event.value.strip() == self.WORD:
            self.dismiss(True)
        else:
            event.input.value = ""

    def action_close(self) -> None:
        self.dismiss(False)
