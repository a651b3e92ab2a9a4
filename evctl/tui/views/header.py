"""The first line: which cluster, in what state, and how old that is."""

from __future__ import annotations

import msgspec
from rich.text import Text

from evctl.tui.model import Link
from evctl.tui.views.figures import age
from evctl.tui.views.scene import Scene, cut, safe


class Part(msgspec.Struct, frozen=True):
    """A piece of the line; the largest `drop` goes first when room is short, 0 stays."""

    text: Text
    drop: int = 0


def header(scene: Scene, width: int) -> Text:
    """The line, exactly `width` wide."""
    right = link_text(scene)
    parts = _parts(scene)
    while len(_joined(parts, scene)) + len(right) + 3 > width and any(p.drop for p in parts):
        parts.remove(max(parts, key=lambda part: part.drop))
    left = _joined(parts, scene)
    left.truncate(max(0, width - len(right) - 3))
    gap = max(1, width - len(left) - len(right) - 2)
    return Text.assemble(" ", left, " " * gap, right, " ", no_wrap=True, end="")


def _joined(parts: list[Part], scene: Scene) -> Text:
    dot = Text(f" {scene.look.glyphs.dot} ", scene.look.colours.faint)
    return dot.join([part.text for part in parts])


def _parts(scene: Scene) -> list[Part]:
    look, colours, status = scene.look, scene.look.colours, scene.model.status
    name = Text.assemble(("evctl", colours.faint), "  ")
    if status is None:
        return [Part(name.append("top", colours.strong))]
    name.append(cut(safe(status.cluster, look), 24, look), colours.strong)
    if scene.ui.protected:
        name.append(" (protected)", colours.warn)
    if scene.ui.locked:
        name.append(" ").append(" READ-ONLY ", colours.badge)
    values = scene.value_look.colours
    split = Text(status.split, values.strong)
    if status.target_split != status.split:
        split.append(f" {look.glyphs.arrow} {status.target_split}", values.switching)
    parts = [
        Part(name),
        Part(Text(_mode(scene), values.text), 2),
        Part(split),
        Part(Text(f"gen {status.generation}", values.text), 4),
    ]
    if move := scene.model.last_move:
        ago = age(max(0.0, scene.now_s - move.at_s))
        change = f"{move.before}{look.glyphs.arrow}{move.after}"
        parts.append(Part(Text(f"last move {ago} ago ({change})", values.text), 6))
    return parts


def _mode(scene: Scene) -> str:
    status = scene.model.status
    assert status is not None
    mode = status.mode.upper()
    # The person; from which machine, the events tell.
    person = safe(status.held_by, scene.look).partition("@")[0]
    return f"{mode} by {cut(person, 16, scene.look)}" if person else mode


def link_text(scene: Scene) -> Text:
    """How fresh the data are; a stale stream says for how long and which retry is under way."""
    text = _stream_text(scene)
    if scene.ui.paused_s is None:
        return text
    glyphs, colours = scene.look.glyphs, scene.look.colours
    paused = Text(f"{glyphs.paused} paused {age(scene.now_s - scene.ui.paused_s)}", colours.warn)
    return Text.assemble(paused, "  ", text)


def _stream_text(scene: Scene) -> Text:
    glyphs, colours, live = scene.look.glyphs, scene.look.colours, scene.live
    age_s = live.age_s(scene.now_s)
    tries = f" ({live.attempt})" if live.attempt else ""
    if age_s is None:
        return Text(f"{glyphs.stale} connecting{tries}{glyphs.cut}", colours.warn)
    if live.link(scene.now_s) is not Link.STALE:
        return Text(f"{glyphs.live} live {age(age_s)}", colours.ok)
    doing = "retrying" if live.lost else "silent"
    return Text(f"{glyphs.stale} stale {age(age_s)} {glyphs.dash} {doing}{tries}", colours.warn)
