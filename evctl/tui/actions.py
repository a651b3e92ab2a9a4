"""Every action of the interface, in one table.

Key bindings, footer, help, command palette, the read-only filter and the equivalent commands
derive from it: a key that is not here does nothing, and what is here is told everywhere.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from evctl.tui.model import STALE_AFTER_S, Model
from evctl.tui.state import Ui
from evctl.tui.views.figures import age


class Danger(StrEnum):
    """What an action can do to the cluster. Anything but NONE is confirmed, and locked at need."""

    NONE = "none"
    DISRUPTIVE = "disruptive"


class Scope(StrEnum):
    """Where an action has a meaning; the heading of the help that it stands under."""

    CLUSTER = "cluster"
    NODES = "nodes"
    VIEW = "view"
    GENERAL = "general"


class Action(msgspec.Struct, frozen=True):
    """keys: names as the terminal layer has them, the first is shown. cli: what does the same.

    footer: order in the footer, 0 for not there; the highest goes first when room is short.
    """

    id: str
    keys: tuple[str, ...]
    title: str
    text: str
    scope: Scope
    danger: Danger = Danger.NONE
    cli: str = ""
    footer: int = 0

    @property
    def changes_cluster(self) -> bool:
        return self.danger is not Danger.NONE


ACTIONS = (
    Action("help", ("question_mark",), "help", "Keys and what they do", Scope.GENERAL, footer=1),
    Action(
        "palette",
        ("colon", "ctrl+p"),
        "palette",
        "Find an action by name",
        Scope.GENERAL,
        footer=2,
    ),
    Action(
        "split",
        ("s",),
        "split",
        "How many nodes prefill and how many decode",
        Scope.CLUSTER,
        Danger.DISRUPTIVE,
        "evctl split set SPLIT",
        footer=3,
    ),
    Action(
        "hold",
        ("h",),
        "hold",
        "Hold the split as it is",
        Scope.CLUSTER,
        Danger.DISRUPTIVE,
        "evctl split hold",
        footer=4,
    ),
    Action(
        "mode",
        ("a",),
        "mode",
        "Who decides the split: auto, advise or hold",
        Scope.CLUSTER,
        Danger.DISRUPTIVE,
        "evctl split auto",
        footer=5,
    ),
    Action(
        "unlock",
        ("ctrl+o",),
        "unlock",
        "Allow changes, or forbid them again",
        Scope.CLUSTER,
    ),
    Action(
        "open",
        ("enter",),
        "open",
        "All about the chosen node",
        Scope.NODES,
        cli="evctl status -o json",
        footer=6,
    ),
    Action("why", ("w",), "why", "Why it is so", Scope.NODES),
    Action(
        "planner",
        ("4",),
        "planner",
        "What the planner weighed and decided, and what it computes with",
        Scope.VIEW,
        cli="evctl plan",
        footer=7,
    ),
    Action("filter", ("slash",), "filter", "Only what contains a text", Scope.VIEW, footer=8),
    Action("sort", ("o",), "sort", "Turn the order of the nodes", Scope.VIEW, footer=9),
    Action("sort_left", ("less_than_sign",), "sort <", "Sort by the column before", Scope.VIEW),
    Action("sort_right", ("greater_than_sign",), "sort >", "Sort by the next column", Scope.VIEW),
    Action(
        "pause",
        ("p",),
        "pause",
        "Keep what is shown; data are still collected",
        Scope.VIEW,
        footer=10,
    ),
    Action("faster", ("plus",), "faster", "Paint more often", Scope.VIEW),
    Action("slower", ("minus",), "slower", "Paint less often", Scope.VIEW),
    Action("copy", ("y",), "copy", "Copy the chosen row as JSON", Scope.VIEW, footer=11),
    Action("theme", ("t",), "theme", "Next theme: dark, light, contrast, ansi, mono", Scope.VIEW),
    Action("overview", ("1",), "overview", "The overview", Scope.GENERAL, cli="evctl status"),
    Action("next", ("tab",), "panel", "Next panel", Scope.GENERAL),
    Action("previous", ("shift+tab",), "panel back", "Previous panel", Scope.GENERAL),
    Action("up", ("up", "k"), "up", "Up a line", Scope.GENERAL),
    Action("down", ("down", "j"), "down", "Down a line", Scope.GENERAL),
    Action("page_up", ("pageup",), "page up", "Up a page", Scope.GENERAL),
    Action("page_down", ("pagedown",), "page down", "Down a page", Scope.GENERAL),
    Action("first", ("home", "g"), "first", "To the first line", Scope.GENERAL),
    Action("last", ("end", "G"), "last", "To the last line", Scope.GENERAL),
    Action("left", ("left",), "left", "Scroll left", Scope.GENERAL),
    Action("right", ("right", "l"), "right", "Scroll right", Scope.GENERAL),
    Action("back", ("escape",), "back", "Close, or clear the filter; never quits", Scope.GENERAL),
    Action(
        "quit", ("q", "ctrl+c"), "quit", "Leave; the cluster goes on", Scope.GENERAL, footer=12
    ),
)
BY_ID = {action.id: action for action in ACTIONS}

FORBIDDEN_KEYS = frozenset({"ctrl+s", "ctrl+q", "ctrl+b", "ctrl+a"})
"""Flow control, VS Code, and the prefixes of tmux and screen."""

KEY_NAMES = {
    "question_mark": "?",
    "colon": ":",
    "slash": "/",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "plus": "+",
    "minus": "-",
    "escape": "esc",
}


def key_name(key: str) -> str:
    """A key as people write it."""
    return KEY_NAMES.get(key, key)


def why_not(action: Action, model: Model, ui: Ui, now_s: float) -> str:
    """Why the action is not possible now, or "". The read-only filter and the age check."""
    if not action.changes_cluster:
        return ""
    if ui.locked:
        return "read-only: ctrl+o unlocks"
    return why_no_change(model, now_s)


def why_no_change(model: Model, now_s: float) -> str:
    """Why nothing may be changed on the strength of what `model` shows, or ""."""
    age_s = model.age_s(now_s)
    if model.status is None or age_s is None:
        return "not connected yet"
    if age_s > STALE_AFTER_S:
        return f"data are {age(age_s)} old, changes need under {STALE_AFTER_S:.0f}s"
    if model.lost:
        return "the control plane is lost: no changes until it is back"
    return ""
