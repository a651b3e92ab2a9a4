"""Branches, and how many of them need each copy of a block."""

from __future__ import annotations

from rich.text import Text

from evctl.core.kv_status import REFERENCE_BUCKETS, KvStatus
from evctl.tui.look import Look
from evctl.tui.views.figures import age, count, share
from evctl.tui.views.scene import Scene, lines, waiting
from evctl.tui.views.spark import bar

BUCKET_ROWS = len(REFERENCE_BUCKETS)
OLD_AFTER_S = 5.0
"""Counting a large tree takes a while: from this age on, the figures say it."""
_LABEL, _SHARE = 4, 5


def references_panel(scene: Scene, width: int, height: int) -> Text:
    """Copies by number of live references, then branches by state. Low panels have two columns of
    figures without bars; the branches are always there."""
    status, look = scene.model.status, scene.value_look
    if status is None:
        return waiting(look)
    kv = status.kv
    if kv is None:
        return Text("this control plane does not tell", look.colours.faint)
    branches = _branches(kv, look, width)
    if height < 2:
        return lines(branches)
    if height > BUCKET_ROWS:
        rows = _bars(kv, look, width)
    elif height > BUCKET_ROWS // 2:
        rows = _pairs(kv, look)
    else:
        rows = []
    if height > len(rows) + 1:
        rows = [_head(kv, look, width), *rows]
    return lines(*rows, branches)


def _head(kv: KvStatus, look: Look, width: int) -> Text:
    if not kv.references:
        said = "counting" if kv.copies else "no blocks yet"
    else:
        old = f", {age(kv.references_age_s)} ago" if kv.references_age_s > OLD_AFTER_S else ""
        said = f"of {count(kv.copies)} copies{old}"
    return Text(f"refs {said}"[:width], look.colours.faint)


def _bars(kv: KvStatus, look: Look, width: int) -> list[Text]:
    cells = max(1, width - _LABEL - _SHARE - 7)
    rows = []
    for number, label in enumerate(REFERENCE_BUCKETS):
        part, said = _part(kv, number)
        text = Text(f"{label:<{_LABEL}}", look.colours.strong)
        text.append_text(bar(part, cells, look, _style(number, look)))
        text.append(f"{said:>{_SHARE}}", look.colours.text)
        if kv.references:
            text.append(f" {count(kv.references[number]):>6}", look.colours.faint)
        rows.append(text)
    return rows


def _pairs(kv: KvStatus, look: Look) -> list[Text]:
    half = BUCKET_ROWS // 2
    rows = []
    for number in range(half):
        row = Text()
        for each in (number, number + half):
            row.append(f"{REFERENCE_BUCKETS[each]:<{_LABEL}}", look.colours.strong)
            row.append(f"{_part(kv, each)[1]:>{_SHARE}}   ", look.colours.text)
        rows.append(row)
    return rows


def _part(kv: KvStatus, number: int) -> tuple[float, str]:
    """Share of the copies that were counted, and as text; nothing counted is absent, not 0."""
    total = sum(kv.references)
    if not total:
        return 0.0, "-"
    part = kv.references[number] / total
    said = share(part)
    return part, "<1%" if part and said == "0%" else said  # some are there


def _style(number: int, look: Look) -> str:
    return look.colours.faint if number == 0 else look.colours.spark


def _branches(kv: KvStatus, look: Look, width: int) -> Text:
    """The states by name, cut to letters where there is no room."""
    parts = (("live", kv.live), ("suspect", kv.suspect), ("ended", kv.ended))
    colours = {"live": look.colours.ok, "suspect": look.colours.warn, "ended": look.colours.faint}
    for long in (True, False):
        text = Text(no_wrap=True, end="")
        for name, number in parts:
            style = colours[name] if number else look.colours.faint
            text.append(f"{count(number)} {name if long else name[0]}  ", style)
        text.rstrip()
        if len(text) <= width:
            break
    return text
