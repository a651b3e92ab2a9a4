"""The modal of the mode: who decides now, what each mode means, the same as a command."""

from __future__ import annotations

from rich.text import Text

from evctl.core.status import ClusterStatus
from evctl.tui.mode import MODES, ModeDraft, cli_line, obstacle
from evctl.tui.views.change import failure_rows, same_as
from evctl.tui.views.planner import next_words, verdict_line
from evctl.tui.views.scene import Scene, cut, lines, safe, shortened, time_of_day


def mode_title(scene: Scene) -> str:
    status = scene.live.status
    name = "" if status is None else safe(status.cluster, scene.look)
    return f"Who decides the split of {name}"


def mode_text(draft: ModeDraft | None, scene: Scene, width: int) -> Text:
    """All between the top and the fields."""
    look, status = scene.look, scene.live.status
    if status is None or draft is None:
        return Text("not connected yet", look.colours.warn)
    rows = [
        Text.assemble(("now ", look.colours.faint), (_now(status, scene), look.colours.strong)),
        *_planner(status, scene),
        Text(""),
        *(_choice(mode, draft, scene) for mode in MODES),
        Text(""),
        *([] if draft.failure is None else failure_rows(draft.failure, look, width)),
        same_as(cli_line(draft, scene.ui.flag), look),
        _last(draft, scene, width),
    ]
    return lines(*(shortened(row, width, look) for row in rows))


def _now(status: ClusterStatus, scene: Scene) -> str:
    said = f"{status.target_split}, {status.mode}"
    if status.held_by:
        said += f" by {status.held_by}"
    if status.held_until_s is not None:
        until = time_of_day(status.held_until_s, scene.zone)
        said += f" until {until}, then {status.mode_after}"
    if status.held_by and status.hold_reason:
        said += f": {status.hold_reason}"
    return safe(said, scene.look)


def _planner(status: ClusterStatus, scene: Scene) -> list[Text]:
    """What it would be left to."""
    if status.brain is None:
        return []
    faint = scene.look.colours.faint
    last = Text("planner ", faint).append_text(verdict_line(status, status.brain, scene))
    return [last, Text(f"        {next_words(status.brain, scene)}", faint)]


def _choice(mode: str, draft: ModeDraft, scene: Scene) -> Text:
    look = scene.look
    chosen = mode == draft.mode
    said = MODES[mode]
    if mode == "hold":
        said += f", {'for ' + draft.lasts if draft.for_s else 'until somebody releases it'}"
    return Text.assemble(
        (f"{look.glyphs.focus if chosen else ' '} ", look.colours.key),
        (f"{mode:<8}", look.colours.strong if chosen else look.colours.text),
        (said, look.colours.text if chosen else look.colours.faint),
    )


def _last(draft: ModeDraft, scene: Scene, width: int) -> Text:
    look = scene.look
    if blocked := obstacle(draft, scene.live, scene.now_s, scene.ui.protected):
        return Text(cut(safe(blocked, look), width, look), look.colours.warn)
    lasts = ", f: how long" if draft.mode == "hold" else ""
    return Text(f"y applies, up/down choose{lasts}, esc leaves", look.colours.faint)
