"""What the blocks of a tier are, as a bar of shapes: one shape for each kind, whatever the colour.

Kinds, in this order: live, suspect, nobody (by who needs the KV), quarantined, and empty: the
rest, which holds no KV or none yet.
"""

from __future__ import annotations

from typing import Final

from rich.text import Text

from evctl.core.pool_status import NodePool, TierOccupancy
from evctl.tui.look import Look
from evctl.tui.views.figures import ABSENT, count
from evctl.tui.views.scene import cut, safe

KINDS: Final = ("live", "suspect", "nobody", "quarantined", "empty")
MOST_NAME = 10
"""Cells for the name of a node in front of its bars."""
LEAST_CELLS = 4


def kinds(tier: TierOccupancy) -> tuple[int, ...] | None:
    """Blocks by KINDS; None where the engine does not tell its classes."""
    if len(tier.classes) != 3:
        return None
    nobody, suspect, live = (max(0, number) for number in tier.classes)
    known = (live, suspect, nobody, max(0, tier.quarantined_blocks))
    return (*known, max(0, tier.total_blocks - sum(known)))


def stacked(tier: TierOccupancy, cells: int, look: Look) -> Text:
    """A bar of `cells` characters. What is there has a cell of its own as long as there are
    enough. Without classes, `?` for what is used; `-` where that is not known either."""
    if cells < 1:
        return Text()
    parts = kinds(tier)
    if parts is None or not tier.total_blocks:
        return _used(tier, cells, look)
    text = Text()
    for number, width in enumerate(_apportioned(parts, cells)):
        text.append(look.glyphs.stack[number] * width, style_of(number, look))
    return text


def _used(tier: TierOccupancy, cells: int, look: Look) -> Text:
    if not tier.used_blocks or not tier.total_blocks:
        return Text(ABSENT.ljust(cells), look.colours.faint)
    filled = round(min(1.0, tier.used_blocks / tier.total_blocks) * cells)
    text = Text(look.glyphs.unknown * filled, look.colours.text)
    return text.append(look.glyphs.empty * (cells - filled), look.colours.faint)


def _apportioned(parts: tuple[int, ...], cells: int) -> list[int]:
    """Cells for each part: by its size, at least one for what is not 0."""
    total = sum(parts)
    if not total:
        return [0] * (len(parts) - 1) + [cells]
    wanted = [part * cells / total for part in parts]
    given = [max(1, int(want)) if part else 0 for part, want in zip(parts, wanted, strict=True)]
    places = range(len(parts))
    while sum(given) > cells:  # from the longest; among equals, from the smallest part
        given[max(places, key=lambda at: (given[at], -parts[at]))] -= 1
    while sum(given) < cells:
        given[max(places, key=lambda at: wanted[at] - given[at])] += 1
    return given


def style_of(number: int, look: Look) -> str:
    colours = look.colours
    return (colours.ok, colours.warn, colours.spark, colours.fail, colours.faint)[number]


def legend(look: Look, width: int) -> Text:
    """The shapes and their names, as far as there is room."""
    short = ("live", "susp", "nobody", "quar")
    for names, before, between in (
        (KINDS, " ", "  "),
        (KINDS, "", " "),
        (KINDS[:-1], "", " "),
        (short, "", " "),
    ):
        text = Text(no_wrap=True, end="")
        for number, name in enumerate(names):
            text.append(look.glyphs.stack[number], style_of(number, look))
            text.append(f"{before}{name}{between}", look.colours.faint)
        text.rstrip()
        if len(text) <= width:
            break
    return text


def figures_of(tier: TierOccupancy, look: Look, width: int) -> Text:
    """The kinds in blocks, by letter where there is no room for their names."""
    parts = kinds(tier)
    if parts is None:
        return Text("this engine does not tell classes", look.colours.faint)
    for long in (True, False):
        text = Text(no_wrap=True, end="")
        for number, name in enumerate(KINDS):
            style = look.colours.text if parts[number] else look.colours.faint
            text.append(f"{count(parts[number])} {name if long else name[0]}  ", style)
        text.rstrip()
        if len(text) <= width:
            break
    return text


def tiers_row(
    name: str, name_cells: int, pool: NodePool | None, look: Look, width: int, *, with_l2: bool
) -> Text:
    """Both tiers of a node, or of all of them, side by side; L1 alone where no node has an L2."""
    shown = cut(safe(name, look), name_cells, look)
    text = Text(f"{shown:<{name_cells}} ", look.colours.strong, no_wrap=True, end="")
    if pool is None:
        return text.append(ABSENT, look.colours.faint)
    tiers = [("L1", pool.l1), ("L2", pool.l2)][: 1 + with_l2]
    room = width - len(text) - 3 * len(tiers) - (len(tiers) - 1)
    cells = max(LEAST_CELLS, room // len(tiers))
    for number, (title, tier) in enumerate(tiers):
        text.append(f"{' ' if number else ''}{title} ", look.colours.faint)
        text.append_text(stacked(tier, cells, look))
    return text


def together(nodes: tuple[NodePool, ...]) -> NodePool:
    """All nodes as one. Classes as far as every node with such a tier tells them."""
    l1 = tuple(node.l1 for node in nodes)
    return NodePool("all", _added(l1), _added(tuple(node.l2 for node in nodes)))


def _added(tiers: tuple[TierOccupancy, ...]) -> TierOccupancy:
    there = [tier for tier in tiers if tier.total_blocks]
    told = bool(there) and all(len(tier.classes) == 3 for tier in there)
    classes = tuple(sum(tier.classes[number] for tier in there) for number in range(3) if told)
    return TierOccupancy(
        sum(tier.total_blocks for tier in there),
        sum(tier.used_blocks for tier in there),
        classes,
        sum(tier.quarantined_blocks for tier in there),
    )
