"""The modal that releases a split which somebody holds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from evctl.tui.actions import why_no_change
from evctl.tui.change import Failure, failure_of
from evctl.tui.screens.modals import CLOSE, INNER_WIDTH, Said
from evctl.tui.source import AdminSource
from evctl.tui.views.change import release_text
from evctl.tui.views.scene import Scene, safe
from evctl.tui.widgets import Choice

REASON = "evctl top"


class ReleaseScreen(ModalScreen[int]):
    """Gives the generation after the release, or nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *CLOSE,
        Binding("y", "apply", show=False),
        Binding("right,down", "app.focus_next", show=False),
        Binding("left,up", "app.focus_previous", show=False),
    ]
    AUTO_FOCUS = "#cancel"

    class Answered(Message):
        """The call ended. answer: the generation after it."""

        def __init__(self, answer: int | Failure) -> None:
            super().__init__()
            self.answer = answer

    def __init__(self, source: AdminSource, by: str, scene: Callable[[], Scene]) -> None:
        super().__init__()
        self._source = source
        self._by = by
        self._scene = scene
        self._sending = False
        self._failure: Failure | None = None

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Said()
            with Horizontal(classes="field", id="confirm"):
                yield Static("cluster name", classes="name")
                yield Input(id="name")
            with Horizontal(classes="buttons"):
                yield Choice("Cancel", id="cancel")
                yield Choice("Release (y)", id="apply")

    def on_mount(self) -> None:
        self.query_one("#confirm").display = self._scene().ui.protected
        self.paint(self._scene())

    def paint(self, scene: Scene) -> None:
        status = scene.live.status
        name = "" if status is None else safe(status.cluster, scene.look)
        self.query_one(".box").border_title = f"Release the split of {name}"
        said, obstacle = self.query_one(Said), self._obstacle(scene)
        said.say(release_text(scene, obstacle, self._failure, said.size.width or INNER_WIDTH))
        self.query_one("#apply").set_class(bool(obstacle), "-off")

    def _obstacle(self, scene: Scene) -> str:
        if reason := why_no_change(scene.live, scene.now_s):
            return reason
        status = scene.live.status
        assert status is not None  # why_no_change says so
        if status.mode != "hold":
            return "nobody holds it any more"
        if scene.ui.protected and self.query_one("#name", Input).value.strip() != status.cluster:
            return f"protected: type {status.cluster} to confirm"
        return "sending" if self._sending else ""

    @on(Input.Changed, "#name")
    def _named(self) -> None:
        self.paint(self._scene())

    @on(Input.Submitted, "#name")
    @on(Choice.Pressed, "#apply")
    def action_apply(self) -> None:
        if self._obstacle(self._scene()):
            if self._scene().ui.protected:
                self.query_one("#name").focus()
            return
        self._sending, self._failure = True, None
        self.paint(self._scene())
        # A daemon: leaving does not wait for a control plane that does not answer.
        threading.Thread(target=self._ask, name="evctl-top-release", daemon=True).start()

    def _ask(self) -> None:
        answer: int | Failure
        try:
            answer = self._source.set_mode("auto", by=self._by, reason=REASON).generation
        except Exception as error:  # told in the modal
            answer = failure_of(error)
        self.post_message(self.Answered(answer))

    @on(Answered)
    def _answered(self, event: Answered) -> None:
        self._sending = False
        if isinstance(event.answer, Failure):
            self._failure = event.answer
            self.paint(self._scene())
            return
        self.dismiss(event.answer)

    @on(Choice.Pressed, "#cancel")
    def action_close(self) -> None:
        self.dismiss()
