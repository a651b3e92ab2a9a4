"""The event log, newest at the bottom."""

from __future__ import annotations

import msgspec
from rich.text import Text

from evctl.core.status import EventRecord
from evctl.tui.look import Look
from evctl.tui.views.scene import Scene, cut, lines, safe, time_of_day

LEVELS = {"error": "FAIL", "warning": "warn", "warn": "warn", "info": ""}


def shown_events(scene: Scene, rows: int) -> tuple[EventRecord, ...]:
    """The last `rows` that match the filter, up to the one scrolled to."""
    until, needle = scene.ui.events_until, scene.ui.needle.casefold()
    found: list[EventRecord] = []
    for event in reversed(scene.model.events):
        if until is not None and event.sequence > until:
            continue
        if needle and needle not in f"{event.what} {event.node} {event.request_id}".casefold():
            continue
        found.append(event)
        if len(found) >= rows:
            break
    return tuple(reversed(found))


def event_lines(scene: Scene, width: int, height: int) -> Text:
    """One line an event."""
    look = scene.value_look
    events = shown_events(scene, max(1, height))
    if not events:
        said = "no event matches the filter" if scene.ui.needle else "no events yet"
        return Text(said, look.colours.faint)
    return lines(*(event_line(event, scene, width) for event in events))


def event_line(event: EventRecord, scene: Scene, width: int) -> Text:
    look = scene.value_look
    word = LEVELS.get(event.level.lower(), event.level)
    what = safe(event.what, look)
    if event.node and event.node not in event.what:
        what = f"{safe(event.node, look)}: {what}"
    line = Text(time_of_day(event.time_s, scene.zone) + " ", look.colours.faint, no_wrap=True)
    if word:
        line.append(f"{word} ", _style(word, look))
    line.append(cut(what, max(0, width - len(line)), look), look.colours.text)
    return line


def _style(word: str, look: Look) -> str:
    return look.colours.fail if word == "FAIL" else look.colours.warn


def scrolled(scene: Scene, by: int) -> int | None:
    """The event to show last after scrolling `by` lines (negative: back); None follows the log."""
    numbers = [
        event.sequence for event in shown_events(_following(scene), len(scene.model.events))
    ]
    if not numbers:
        return None
    until = scene.ui.events_until
    at = len(numbers) - 1 if until is None else sum(number <= until for number in numbers) - 1
    at += by
    return None if at >= len(numbers) - 1 else numbers[max(0, at)]


def _following(scene: Scene) -> Scene:
    replace = msgspec.structs.replace
    return replace(scene, ui=replace(scene.ui, events_until=None))
