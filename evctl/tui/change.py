"""A change of the split while a person makes it: typed, planned, reviewed, sent.

Pure: the modal shows a Draft and asks here what may be done with it.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from evctl.core.errors import EvctlError
from evctl.core.split import Split, example, parse_split
from evctl.core.status import ClusterStatus, SplitChange
from evctl.tui.actions import why_no_change
from evctl.tui.model import Model

_RELATIVE = re.compile(r"([+-])(\d{1,3})([pPdD])", re.ASCII)
COOLDOWN_HINT = "f passes the rule with --force"


class Stage(StrEnum):
    EDIT = "edit"
    REVIEW = "review"
    SENDING = "sending"


class Failure(msgspec.Struct, frozen=True):
    """What a call said instead of a result. refused: a safety rule, which force passes."""

    what: str
    why: str
    next_step: str = ""
    refused: bool = False


class Draft(msgspec.Struct, frozen=True):
    """text: as typed. split: what that means, "" for nothing yet; wrong: why it means nothing.

    plan: the answer of the plan call for `split`; generation: what it was asked with, and what
    the write will carry. typed: the cluster's name, where that is asked for. hold: the split is
    the one in force, and only its hold is asked for.
    """

    text: str = ""
    split: str = ""
    wrong: str = ""
    stage: Stage = Stage.EDIT
    plan: SplitChange | None = None
    failure: Failure | None = None
    generation: int | None = None
    force: bool = False
    typed: str = ""
    hold: bool = False


def failure_of(error: Exception) -> Failure:
    """An error of a call, as the modal shows it."""
    if isinstance(error, EvctlError):
        return Failure(error.what, error.why, error.next_step, error.exit_code == 8)
    return Failure("the call failed", f"{type(error).__name__}: {error}")


def resolve(text: str, current: str) -> Split:
    """The split that `text` means: 4P5D, or +1P and -1D from `current`.

    Raises UsageError, or RefusedError where a phase is left empty.
    """
    match = _RELATIVE.fullmatch(text.strip())
    if match is None:
        return parse_split(text)
    by = int(match[2]) * (1 if match[1] == "+" else -1)
    if match[3].upper() == "D":
        by = -by
    now = parse_split(current)
    return Split(now.prefill_nodes + by, now.decode_nodes - by)


def typed(draft: Draft, text: str, status: ClusterStatus) -> Draft:
    """The draft after its text changed; whatever was planned for another split is dropped."""
    base = msgspec.structs.replace(
        draft, text=text, split="", wrong="", plan=None, failure=None, generation=None,
        force=False, hold=False,
    )  # fmt: skip
    if not text.strip():
        return base
    try:
        split = resolve(text, status.target_split)
    except EvctlError as error:
        return msgspec.structs.replace(base, wrong=error.why)
    if split.nodes != len(status.nodes):
        wrong = f"{split} is {split.nodes} nodes and the cluster has {len(status.nodes)}"
        return msgspec.structs.replace(base, wrong=wrong)
    return msgspec.structs.replace(base, split=str(split))


def asked(draft: Draft, status: ClusterStatus) -> Draft:
    """The draft as a plan for it is requested, bound to the generation on screen."""
    return msgspec.structs.replace(draft, plan=None, failure=None, generation=status.generation)


def forced(draft: Draft) -> Draft:
    return msgspec.structs.replace(draft, force=not draft.force)


def answered(draft: Draft, answer: SplitChange | Failure) -> Draft:
    if isinstance(answer, Failure):
        stage = Stage.REVIEW if draft.stage is Stage.SENDING else draft.stage
        return msgspec.structs.replace(draft, failure=answer, stage=stage)
    return msgspec.structs.replace(draft, plan=answer, failure=None)


def cli_line(draft: Draft, flag: str = "") -> str:
    """The command that does the same. flag: that names the cluster, where it has to be."""
    if draft.hold:
        return f"evctl split hold{flag}"
    return f"evctl split set {draft.split or 'SPLIT'}{flag}" + (" --force" if draft.force else "")


def obstacle(draft: Draft, model: Model, now_s: float, protected: bool) -> str:
    """Why the change cannot be sent now, or "": asked when it is shown and again when sent."""
    if reason := why_no_change(model, now_s):
        return reason
    status = model.status
    assert status is not None  # why_no_change says so
    if not draft.split:
        return draft.wrong or f"type a split such as {example(len(status.nodes))}, or +1P"
    if draft.failure is not None:
        return draft.failure.why
    if draft.plan is None:
        return "planning"
    if draft.plan.refused_until_s is not None and not draft.force:
        return f"in the cooldown: wait, or {COOLDOWN_HINT}"
    if draft.generation != status.generation:
        who = f" by {status.held_by}" if status.held_by else ""
        return f"generation moved {draft.generation} to {status.generation}{who}: e plans again"
    if protected and draft.typed != status.cluster:
        return f"protected: type {status.cluster} to confirm"
    return ""
