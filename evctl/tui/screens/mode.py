"""The modal that says who decides the split: the planner, nobody, or whoever holds it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar

import msgspec
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from evctl.core.status import ClusterStatus
from evctl.tui.change import Failure, failure_of
from evctl.tui.mode import ModeDraft, draft_of, looked_again, obstacle, stepped
from evctl.tui.screens.modals import CLOSE, INNER_WIDTH, Said
from evctl.tui.source import AdminSource
from evctl.tui.views.mode import mode_text, mode_title
from evctl.tui.views.scene import Scene
from evctl.tui.widgets import Choice

REASON = "evctl top"


class ModeScreen(ModalScreen[ClusterStatus]):
    """Gives the status after the change, or nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *CLOSE,
        Binding("y", "apply", show=False),
        Binding("e", "look", show=False),
        Binding("f", "lasts", show=False),
        Binding("up,k", "step(-1)", show=False),
        Binding("down,j", "step(1)", show=False),
        Binding("right", "app.focus_next", show=False),
        Binding("left", "app.focus_previous", show=False),
    ]
    AUTO_FOCUS = "#cancel"

    class Answered(Message):
        """The call ended."""

        def __init__(self, answer: ClusterStatus | Failure) -> None:
            super().__init__()
            self.answer = answer

    def __init__(self, source: AdminSource, by: str, scene: Callable[[], Scene]) -> None:
        super().__init__()
        self._source = source
        self._by = by
        self._scene = scene
        status = scene().live.status
        self._draft = draft_of(status) if status is not None else ModeDraft("auto", -1)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Said()
            with Horizontal(classes="field", id="lasting"):
                yield Static("hold for", classes="name")
                yield Input(id="lasts", max_length=10, placeholder="30m; nothing: without an end")
            with Horizontal(classes="field", id="confirm"):
                yield Static("cluster name", classes="name")
                yield Input(id="name")
            with Horizontal(classes="buttons"):
                yield Choice("Cancel", id="cancel")
                yield Choice("Apply (y)", id="apply")

    def on_mount(self) -> None:
        self.query_one("#confirm").display = self._scene().ui.protected
        self.paint(self._scene())

    def paint(self, scene: Scene) -> None:
        self.query_one(".box").border_title = mode_title(scene)
        self.query_one("#lasting").display = self._draft.mode == "hold"
        said = self.query_one(Said)
        said.say(mode_text(self._draft, scene, said.size.width or INNER_WIDTH))
        self.query_one("#apply").set_class(bool(self._obstacle(scene)), "-off")

    def _obstacle(self, scene: Scene) -> str:
        return obstacle(self._draft, scene.live, scene.now_s, scene.ui.protected)

    def _change(self, draft: ModeDraft) -> None:
        self._draft = draft
        self.paint(self._scene())

    # ------------------------------------------------------------------------------ choosing

    def action_step(self, by: int) -> None:
        if not self._draft.sending:
            self._change(stepped(self._draft, by))

    def action_look(self) -> None:
        """Go by what is there now, although somebody else wrote it."""
        status = self._scene().live.status
        if status is not None and not self._draft.sending:
            self._change(looked_again(self._draft, status))

    def action_lasts(self) -> None:
        if self._draft.mode == "hold":
            self.query_one("#lasts").focus()

    @on(Input.Changed, "#lasts")
    def _lasting(self, event: Input.Changed) -> None:
        self._change(msgspec.structs.replace(self._draft, lasts=event.value.strip()))

    @on(Input.Submitted, "#lasts")
    def _lasting_kept(self) -> None:
        self.query_one("#cancel").focus()

    @on(Input.Changed, "#name")
    def _named(self, event: Input.Changed) -> None:
        self._change(msgspec.structs.replace(self._draft, typed=event.value.strip()))

    # --------------------------------------------------------------------------------- calls

    @on(Input.Submitted, "#name")
    @on(Choice.Pressed, "#apply")
    def action_apply(self) -> None:
        scene = self._scene()
        if self._obstacle(scene):
            if scene.ui.protected and not self._draft.typed:
                self.query_one("#name").focus()
            self.paint(scene)
            return
        self._change(msgspec.structs.replace(self._draft, sending=True, failure=None))
        # A daemon: leaving does not wait for a control plane that does not answer.
        threading.Thread(
            target=self._ask, args=(self._draft,), name="evctl-top-mode", daemon=True
        ).start()

    def _ask(self, draft: ModeDraft) -> None:
        answer: ClusterStatus | Failure
        try:
            answer = self._source.set_mode(
                draft.mode,
                by=self._by,
                reason=REASON,
                generation=draft.generation,
                for_s=draft.for_s,
            )
        except Exception as error:  # told in the modal
            answer = failure_of(error)
        self.post_message(self.Answered(answer))

    @on(Answered)
    def _answered(self, event: Answered) -> None:
        if isinstance(event.answer, Failure):
            self._change(msgspec.structs.replace(self._draft, sending=False, failure=event.answer))
            return
        self.dismiss(event.answer)

    @on(Choice.Pressed, "#cancel")
    def action_close(self) -> None:
        self.dismiss()
