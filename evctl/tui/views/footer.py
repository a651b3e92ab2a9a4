"""What can be done: footer, tabs, help and the list of the palette, all from the action table."""

from __future__ import annotations

import msgspec
from rich.text import Text

from evctl.tui.actions import ACTIONS, BY_ID, Action, Scope, key_name, why_not
from evctl.tui.state import PANELS, Layout
from evctl.tui.views import occupancy
from evctl.tui.views.scene import Scene, cut, lines, safe

HEADINGS = {
    Scope.CLUSTER: "changes",
    Scope.NODES: "nodes",
    Scope.VIEW: "what is shown",
    Scope.GENERAL: "moving about",
}


class Entry(msgspec.Struct, frozen=True):
    """One line of the palette. reason: why it is not possible now, or ""."""

    action: Action
    reason: str


def reason_against(action: Action, scene: Scene) -> str:
    return why_not(action, scene.model, scene.ui, scene.now_s)


def footer(scene: Scene, width: int) -> Text:
    """Keys and titles as far as they fit, or the notice of the moment."""
    look, notice = scene.look, scene.ui.notice
    if notice is not None and notice.until_s > scene.now_s:
        style = {"ok": look.colours.ok, "warn": look.colours.warn}.get(
            notice.level, look.colours.fail
        )
        return Text(" " + cut(safe(notice.text, look), width - 2, look), style, no_wrap=True)
    if scene.live.lost and scene.live.status is not None:
        return _no_answer(scene, scene.live.status.cluster, width)
    *parts, way_out = [_key_and_title(action, scene) for action in footer_actions(scene)]
    room = width - len(way_out)  # how to leave always fits
    line = Text(no_wrap=True, end="")
    for part in parts:
        if len(line) + len(part) > room:
            break
        line.append_text(part)
    return line.append_text(way_out)


def _no_answer(scene: Scene, cluster: str, width: int) -> Text:
    """What to do when the control plane is gone; no change is possible meanwhile."""
    way_out = _key_and_title(BY_ID["quit"], scene)
    flag = scene.ui.flag
    name = safe(cluster, scene.look)
    said = f"control plane does not answer: evctl status{flag}, evctl up {name}"
    room = width - len(way_out) - 2
    line = Text(" " + cut(said, room, scene.look), scene.look.colours.warn, no_wrap=True, end="")
    return line.append_text(way_out)


def footer_actions(scene: Scene) -> tuple[Action, ...]:
    """In order; in read-only mode the way out of it comes before what it forbids."""
    shown = sorted((a for a in ACTIONS if a.footer), key=lambda action: action.footer)
    if not scene.ui.locked:
        return tuple(shown)
    rest = [action for action in shown if not action.changes_cluster]
    return (*rest[:2], BY_ID["unlock"], *rest[2:])


def _key_and_title(action: Action, scene: Scene) -> Text:
    colours = scene.look.colours
    allowed = not reason_against(action, scene)
    title = action.title
    if action.id == "pause" and scene.ui.paused_s is not None:
        title = "resume"
    return Text.assemble(
        " ",
        (key_name(action.keys[0]), colours.key if allowed else colours.faint),
        (f" {title} ", colours.text if allowed else f"{colours.faint} strike"),
    )


def tabs(scene: Scene, width: int) -> Text:
    """The panels by name, the shown one marked; only where one is shown at a time."""
    look = scene.look
    line = Text(" ", no_wrap=True, end="")
    panels = PANELS if scene.ui.layout is Layout.TABS else ()
    roomy = sum(len(panel) + 2 for panel in panels) + 5 <= width
    for panel in panels:
        chosen = panel == scene.ui.panel
        after = " " if roomy else ""
        line.append(f"[{panel}]" if chosen else f" {panel}{after}", _tab_style(chosen, scene))
    hint = "tab next " if len(line) + 9 <= width else "tab "
    line.append(f"{hint:>{max(len(hint), width - len(line))}}", look.colours.faint)
    return line


def _tab_style(chosen: bool, scene: Scene) -> str:
    return scene.look.colours.strong if chosen else scene.look.colours.faint


def help_text(scene: Scene) -> Text:
    """Every action with all of its keys and the command that does the same."""
    colours = scene.look.colours
    rows: list[Text] = []
    for scope, heading in HEADINGS.items():
        rows.append(Text(heading, colours.strong))
        for action in (action for action in ACTIONS if action.scope is scope):
            keys = " ".join(key_name(key) for key in action.keys)
            rows.append(Text.assemble((f"  {keys:<14}", colours.key), (action.text, colours.text)))
            if action.cli:
                rows.append(Text(f"  {'':<14}as {action.cli}{scene.ui.flag}", colours.faint))
            if reason := reason_against(action, scene):
                rows.append(Text(f"  {'':<14}not now: {reason}", colours.warn))
        rows.append(Text(""))
    rows += [legend(scene), Text.assemble("pool: ", occupancy.legend(scene.look, 60))]
    return lines(*rows)


def legend(scene: Scene) -> Text:
    look = scene.look
    (p_shape, p_style), (d_shape, d_style) = look.role("P"), look.role("D")
    return Text.assemble(
        (f"{p_shape} P", p_style),
        " prefill   ",
        (f"{d_shape} D", d_style),
        " decode   ",
        (look.glyphs.switching, look.colours.switching),
        " changing role   ",
        ("late", look.colours.warn),
        " no heartbeat   ",
        ("LOST", look.colours.fail),
        " gone",
    )


def entries(scene: Scene, needle: str) -> tuple[Entry, ...]:
    """The actions that the palette offers for `needle`: all of its words, in any order."""
    words = needle.casefold().split()
    return tuple(
        Entry(action, reason_against(action, scene))
        for action in ACTIONS
        if action.id != "palette"
        and all(word in f"{action.id} {action.title} {action.text}".casefold() for word in words)
    )


def entry_text(entry: Entry, scene: Scene, width: int) -> Text:
    colours, action = scene.look.colours, entry.action
    keys = " ".join(key_name(key) for key in action.keys)
    line = Text.assemble(
        (f"{keys:<14}", colours.key if not entry.reason else colours.faint),
        (action.text, colours.text if not entry.reason else colours.faint),
        no_wrap=True,
    )
    if entry.reason:
        line.append("  not now", colours.warn)
    line.truncate(width)
    return line
