"""Who decides the split, while a person changes that: chosen, looked at, sent.

Pure: the modal shows a ModeDraft and asks here what may be done with it.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from evctl.core.status import ClusterStatus
from evctl.tui.actions import why_no_change
from evctl.tui.change import Failure
from evctl.tui.model import Model

MODES: Final = {
    "auto": "the planner moves nodes once it is sure",
    "advise": "the planner only says what it would do",
    "hold": "the split stays",
}
_UNITS_S: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_PART: Final = r"(\d{1,6}(?:\.\d{1,3})?)([smhd])"


class ModeDraft(msgspec.Struct, frozen=True):
    """generation: what was on the screen when the person looked, and what the write will carry.
    lasts: of a hold, as typed: 30m, or "" for one without an end. typed: the cluster's name, where
    that is asked for."""

    mode: str
    generation: int
    lasts: str = ""
    typed: str = ""
    sending: bool = False
    failure: Failure | None = None

    @property
    def for_s(self) -> float | None:
        """Seconds of a hold with an end, else None."""
        return span_s(self.lasts) if self.mode == "hold" and self.lasts else None


def span_s(text: str) -> float | None:
    """Seconds of 90s, 30m, 2h or 1h30m; None for anything else, and for none at all."""
    if not re.fullmatch(f"({_PART})+", text.strip(), re.ASCII):
        return None
    parts = re.findall(_PART, text, re.ASCII)
    return sum(float(number) * _UNITS_S[unit] for number, unit in parts) or None


def draft_of(status: ClusterStatus) -> ModeDraft:
    """What is offered first: the planner's turn, or where it has that, to take it away."""
    return ModeDraft("hold" if status.mode == "auto" else "auto", status.generation)


def looked_again(draft: ModeDraft, status: ClusterStatus) -> ModeDraft:
    return msgspec.structs.replace(draft, generation=status.generation, failure=None)


def stepped(draft: ModeDraft, by: int) -> ModeDraft:
    """The mode next to it."""
    names = list(MODES)
    mode = names[(names.index(draft.mode) + by) % len(names)]
    return msgspec.structs.replace(draft, mode=mode, failure=None)


def cli_line(draft: ModeDraft, flag: str = "") -> str:
    """The command that does the same."""
    lasts = f" --for {draft.lasts}" if draft.for_s is not None else ""
    return f"evctl split {draft.mode}{flag}{lasts}"


def obstacle(draft: ModeDraft, model: Model, now_s: float, protected: bool) -> str:
    """Why it cannot be sent now, or ""."""
    if reason := why_no_change(model, now_s):
        return reason
    status = model.status
    assert status is not None  # why_no_change says so
    if draft.sending:
        return "sending"
    if draft.mode == "hold" and draft.lasts and draft.for_s is None:
        return f"{draft.lasts} is no time: write 90s, 30m, 2h or 1h30m, or nothing"
    if draft.generation != status.generation:
        who = f" by {status.held_by}" if status.held_by else ""
        return f"generation moved {draft.generation} to {status.generation}{who}: e looks again"
    if draft.mode == status.mode and draft.for_s is None and status.held_until_s is None:
        return f"the mode is {status.mode} already"
    if protected and draft.typed != status.cluster:
        return f"protected: type {status.cluster} to confirm"
    return ""
