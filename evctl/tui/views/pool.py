"""The pool of all nodes' host memory: what was fetched, what that cost, and what lies where."""

from __future__ import annotations

from rich.text import Text

from evctl.core.pool_status import AheadStatus, PoolStatus
from evctl.tui.look import Look
from evctl.tui.views.figures import ABSENT, count, duration, number_of, share, size
from evctl.tui.views.nodes import ordered
from evctl.tui.views.occupancy import MOST_NAME, tiers_row, together
from evctl.tui.views.scene import Scene, lines, safe, shortened, waiting

NO_POOL = "no pool: l2_tokens is 0"
PATHS = (("l1", "own L1"), ("own_l2", "own L2"), ("peer_l2", "peers' L2"))
"""Where blocks of prompts were found, of prompts that were not whole in L1."""
OUTCOMES = ("done", "short", "lost", "no_room", "nothing_to_fetch", "sent")
SEPARATOR = "  "
ALL = "all"
WIDE = 60
"""From this many cells on, there is room for bytes beside blocks on one line."""


def pool_panel(scene: Scene, width: int, height: int) -> Text:
    """Figures on top, then what each node holds; where room is short, figures share lines and
    all nodes share a bar."""
    status, look = scene.model.status, scene.value_look
    if status is None:
        return waiting(look)
    pool = status.pool
    if pool is None:
        return Text("this control plane does not tell", look.colours.faint)
    if pool.is_absent:
        rows = [Text(NO_POOL, look.colours.text)]
    else:
        rows = _figures(pool, look, width, height)
    rows += _occupancy(scene, pool, width, max(0, height - len(rows)))
    return lines(*(shortened(row, width, look) for row in rows[: max(1, height)]))


# ------------------------------------------------------------------------------- figures


def _figures(pool: PoolStatus, look: Look, width: int, height: int) -> list[Text]:
    head, ahead = _head(pool, look), _ahead(pool.ahead, look)
    recomputed = [_recomputed(pool, look)] if any(pool.recomputed_blocks.values()) else []
    table = _table(pool, look, width)
    below = [*_flowed(recomputed, width), *_flowed(ahead, width)]
    high = [*_flowed(head, width), *table, *below]
    if len(high) < height:
        return high
    paths = _paths(pool, look, sizes=width >= WIDE)
    groups = ([*head, *recomputed], paths, ahead)
    rows = [row for group in groups for row in _flowed(group, width)]
    # One is left for what lies where, unless there are two or fewer.
    return rows[: height - 1] if height > 2 else rows[: max(1, height)]


def _head(pool: PoolStatus, look: Look) -> list[Text]:
    hidden = ABSENT if pool.share_hidden is None else share(pool.share_hidden)
    return [
        _item(_fetches(pool.fetches), "", look),
        _item("mean", duration(pool.mean_fetch_s), look),
        _item("hidden", hidden, look),
    ]


def _fetches(number: int) -> str:
    return "1 fetch" if number == 1 else f"{count(number)} fetches"


def _item(title: str, value: str, look: Look) -> Text:
    """Words that stay on one line."""
    text = Text(title, look.colours.faint if value else look.colours.text)
    return text.append(f" {value}", look.colours.strong) if value else text


def _table(pool: PoolStatus, look: Look, width: int) -> list[Text]:
    """A row for each path."""
    unit = " blocks" if width >= 34 else ""
    rows = []
    for path, title in PATHS:
        blocks, held = _path(pool, path)
        row = Text(f"{title:<10}", look.colours.faint)
        row.append(f"{blocks:>7}", look.colours.strong)
        row.append(f"{unit}{held:>10}", look.colours.text)
        rows.append(row)
    return rows


def _paths(pool: PoolStatus, look: Look, *, sizes: bool) -> list[Text]:
    """The same as items of a line."""
    items = []
    for path, title in PATHS:
        blocks, held = _path(pool, path)
        item = _item(title, blocks, look)
        items.append(item.append(f" ({held})", look.colours.text) if sizes else item)
    return items


def _path(pool: PoolStatus, path: str) -> tuple[str, str]:
    """Blocks and their bytes. No engine being there, the size of blocks is not known."""
    blocks, held = pool.fetched_blocks.get(path), pool.fetched_bytes.get(path)
    known = held is not None and (held or not blocks)
    return ABSENT if blocks is None else count(blocks), size(held or 0) if known else ABSENT


def _recomputed(pool: PoolStatus, look: Look) -> Text:
    """By cause, the most first."""
    causes = sorted(pool.recomputed_blocks.items(), key=lambda each: (-each[1], each[0]))
    told = ", ".join(f"{count(blocks)} {_words(name, look)}" for name, blocks in causes if blocks)
    return Text.assemble(("recomputed ", look.colours.faint), (told, look.colours.warn))


def _ahead(ahead: AheadStatus, look: Look) -> list[Text]:
    """Fetches for waiting branches: what came, what became of them, what may still come."""
    seen = [(name, ahead.outcomes.get(name, 0)) for name in (*OUTCOMES, *_others(ahead))]
    items = [
        _item("ahead", f"{count(ahead.blocks)} blocks", look).append(
            f" ({size(ahead.bytes)})", look.colours.text
        )
    ]
    items += [
        Text(f"{count(number)} {_words(name, look)}", look.colours.text)
        for name, number in seen
        if number
    ]
    if ahead.under_way_blocks:
        items.append(Text(f"{count(ahead.under_way_blocks)} under way", look.colours.text))
    if len(items) == 1 and not ahead.blocks:
        return [_item("ahead", "none yet", look)]
    return items


def _others(ahead: AheadStatus) -> list[str]:
    return sorted(set(ahead.outcomes) - set(OUTCOMES))


def _words(name: str, look: Look) -> str:
    return safe(name, look).replace("_", " ")


def _flowed(items: list[Text], width: int) -> list[Text]:
    """Items on as few lines as hold them; one that is too long has a line of its own."""
    rows: list[Text] = []
    for item in items:
        if rows and len(rows[-1]) + len(SEPARATOR) + len(item) <= width:
            rows[-1] = Text.assemble(rows[-1], SEPARATOR, item)
        else:
            rows.append(item)
    return rows


# ----------------------------------------------------------------------------- occupancy


def _occupancy(scene: Scene, pool: PoolStatus, width: int, height: int) -> list[Text]:
    """Nodes in the order of their table, as many as fit; else first all of them in one. What the
    shapes are, the frame of the panel says."""
    look = scene.value_look
    by_name = {node.node: node for node in pool.nodes}
    names = [node.name for node in ordered(scene)]
    if height < 1 or not names:
        return []
    whole = len(names) <= height
    cells = min(MOST_NAME, max(map(len, names if whole else [ALL, *names])))
    with_l2 = any(node.l2.total_blocks for node in pool.nodes)

    def row(name: str) -> Text:
        return tiers_row(name, cells, by_name.get(name), look, width, with_l2=with_l2)

    if whole:
        return [row(name) for name in names]
    rows = [tiers_row(ALL, cells, together(pool.nodes), look, width, with_l2=with_l2)]
    if height > 2:
        shown = names[: height - 2]
        left = number_of(len(names) - len(shown), "node")
        rows += [*map(row, shown), Text(f"and {left} more", look.colours.faint)]
    return rows
