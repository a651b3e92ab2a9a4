"""The modal that changes the split: type, review the plan, confirm with another key."""

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
from textual.timer import Timer
from textual.widgets import Input, Static

from evctl.core.split import example
from evctl.core.status import SplitChange
from evctl.tui.change import (
    Draft,
    Failure,
    Stage,
    answered,
    asked,
    failure_of,
    forced,
    obstacle,
    typed,
)
from evctl.tui.screens.modals import CLOSE, INNER_WIDTH, Said
from evctl.tui.source import AdminSource
from evctl.tui.views.change import change_text, change_title
from evctl.tui.views.scene import Scene
from evctl.tui.widgets import Choice

PLAN_DELAY_S = 0.15
"""After the last key, so that typing asks once."""
PLAN_AGAIN_S = 1.0
"""Between two plans of one split: what would move changes while a person reads."""
REASON = "evctl top"


class SplitScreen(ModalScreen[SplitChange]):
    """Gives the change that was applied, or nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *CLOSE,
        Binding("y", "apply", show=False),
        Binding("e", "edit", show=False),
        Binding("f", "force", show=False),
        Binding("right,down", "app.focus_next", show=False),
        Binding("left,up", "app.focus_previous", show=False),
    ]
    AUTO_FOCUS = ""

    class Answered(Message):
        """A call ended; `draft` is what it was made for."""

        def __init__(self, draft: Draft, answer: SplitChange | Failure, applied: bool) -> None:
            super().__init__()
            self.draft = draft
            self.answer = answer
            self.applied = applied

    def __init__(
        self, source: AdminSource, by: str, scene: Callable[[], Scene], split: str = ""
    ) -> None:
        """split: review this one at once; "" asks for one."""
        super().__init__()
        self._source = source
        self._by = by
        self._scene = scene
        self._preset = split
        self._draft = Draft()
        self._timer: Timer | None = None
        self._asking = False
        self._planned_s = 0.0
        """Of the interface's clock, when the plan was asked for."""

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            with Horizontal(classes="field"):
                yield Static("split", classes="name")
                yield Input(id="wanted", max_length=20, placeholder=self._example())
            yield Said()
            with Horizontal(classes="field", id="confirm"):
                yield Static("cluster name", classes="name")
                yield Input(id="name")
            with Horizontal(classes="buttons"):
                yield Choice("Cancel", id="cancel")
                yield Choice("Apply (y)", id="apply")

    def _example(self) -> str:
        status = self._scene().live.status
        return f"{example(0 if status is None else len(status.nodes))}, or +1P"

    def on_mount(self) -> None:
        self._to_stage(Stage.EDIT)
        if self._preset:
            self.query_one("#wanted", Input).value = self._preset

    # -------------------------------------------------------------------------- what is shown

    def paint(self, scene: Scene) -> None:
        self._plan_again(scene)
        box, said = self.query_one(".box"), self.query_one(Said)
        box.border_title = change_title(self._draft, scene)
        said.say(change_text(self._draft, scene, said.size.width or INNER_WIDTH))
        self.query_one("#apply").set_class(bool(self._obstacle(scene)), "-off")

    def _repaint(self) -> None:
        self.paint(self._scene())

    def _obstacle(self, scene: Scene) -> str:
        return obstacle(self._draft, scene.live, scene.now_s, scene.ui.protected)

    def _to_stage(self, stage: Stage) -> None:
        self._draft = msgspec.structs.replace(self._draft, stage=stage)
        reviewing, protected = stage is not Stage.EDIT, self._scene().ui.protected
        self.query_one("#wanted", Input).disabled = reviewing
        self.query_one("#confirm").display = reviewing and protected
        self.query_one(".buttons").display = reviewing
        self.query_one("#cancel" if reviewing else "#wanted").focus()
        self._repaint()

    # -------------------------------------------------------------------------------- typing

    @on(Input.Changed, "#wanted")
    def _wanted(self, event: Input.Changed) -> None:
        status = self._scene().live.status
        if status is None:
            return
        self._draft = typed(self._draft, event.value, status)
        self._repaint()
        if self._timer is not None:
            self._timer.stop()
        if self._draft.split:
            self._timer = self.set_timer(PLAN_DELAY_S, self._plan)
        if self._preset and event.value == self._preset and self._draft.split:
            self._preset = ""
            self._draft = msgspec.structs.replace(self._draft, hold=True)
            self._to_stage(Stage.REVIEW)

    @on(Input.Submitted, "#wanted")
    def _review(self) -> None:
        if self._draft.split:
            self._to_stage(Stage.REVIEW)

    @on(Input.Changed, "#name")
    def _named(self, event: Input.Changed) -> None:
        self._draft = msgspec.structs.replace(self._draft, typed=event.value.strip())
        self._repaint()

    @on(Input.Submitted, "#name")
    def _confirmed(self) -> None:
        self.action_apply()

    # --------------------------------------------------------------------------------- calls

    def _plan(self) -> None:
        status = self._scene().live.status
        if status is not None and self._draft.split:
            self._draft = asked(self._draft, status)
            self._call(plan=True)
            self._repaint()

    def _plan_again(self, scene: Scene) -> None:
        """Have the plan that is shown follow the cluster. Another generation is told instead."""
        draft, live = self._draft, scene.live
        current = draft.stage is not Stage.SENDING and draft.failure is None
        if draft.plan is None or not current or self._asking or live.status is None:
            return
        newer = live.status_s > self._planned_s and scene.now_s >= self._planned_s + PLAN_AGAIN_S
        if newer and draft.generation == live.status.generation and not live.lost:
            self._call(plan=True)

    def _call(self, *, plan: bool) -> None:
        draft = self._draft
        if plan:
            self._asking, self._planned_s = True, self._scene().now_s
        name = "evctl-top-plan" if plan else "evctl-top-split"
        # A daemon: leaving does not wait for a control plane that does not answer.
        threading.Thread(target=self._ask, args=(draft, plan), name=name, daemon=True).start()

    def _ask(self, draft: Draft, plan: bool) -> None:
        answer: SplitChange | Failure
        try:
            answer = self._source.set_split(
                draft.split,
                by=self._by,
                reason=REASON,
                generation=draft.generation,
                plan=plan,
                force=draft.force,
            )
        except Exception as error:  # told in the modal
            answer = failure_of(error)
        self.post_message(self.Answered(draft, answer, not plan))

    @on(Answered)
    def _answered(self, event: Answered) -> None:
        draft = self._draft
        if not event.applied:
            self._asking = False
            if draft.stage is Stage.SENDING:
                return  # a plan that came late says nothing of the change under way
        if (event.draft.split, event.draft.force) != (draft.split, draft.force):
            return  # typed over meanwhile
        if event.applied and isinstance(event.answer, SplitChange):
            self.dismiss(event.answer)
            return
        self._draft = answered(draft, event.answer)
        self._repaint()

    # ------------------------------------------------------------------------------- choices

    @on(Choice.Pressed, "#apply")
    def action_apply(self) -> None:
        if self._draft.stage is not Stage.REVIEW:
            return
        scene = self._scene()
        if self._obstacle(scene):
            if scene.ui.protected and not self._draft.typed:
                self.query_one("#name").focus()
            self._repaint()
            return
        self._to_stage(Stage.SENDING)
        self._call(plan=False)

    def action_edit(self) -> None:
        if self._draft.stage is Stage.REVIEW:
            self._to_stage(Stage.EDIT)
            self._plan()

    def action_force(self) -> None:
        failure, plan = self._draft.failure, self._draft.plan
        refused = failure is not None and failure.refused
        cooling = plan is not None and plan.refused_until_s is not None
        if self._draft.force or refused or cooling:
            self._draft = forced(self._draft)
            self._plan()

    @on(Choice.Pressed, "#cancel")
    def action_close(self) -> None:
        self.dismiss()
