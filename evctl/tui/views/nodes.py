"""The table of nodes: which columns fit, in which order, and each cell.

Order and cells are apart because a large cluster computes only the cells that are on screen.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from rich.text import Text

from evctl.core.status import NodeStatus
from evctl.tui.look import Look
from evctl.tui.views.figures import ABSENT, age, share
from evctl.tui.views.scene import Scene, safe
from evctl.tui.views.spark import bar


class Column(msgspec.Struct, frozen=True):
    """width: of the content, in cells. drop: 0 stays, else the largest goes first."""

    key: str
    title: str
    width: int
    drop: int = 0
    right: bool = False


COLUMNS = (
    Column("name", "node", 10),
    Column("role", "role", 6),
    Column("state", "state", 5),
    Column("queue", "queue", 5, right=True),
    Column("running", "run", 4, right=True),
    Column("phases", "as P / D", 9, drop=4, right=True),
    Column("l1", "L1 used", 14, drop=2),
    Column("l2", "L2 used", 14, drop=5),
    Column("ref", "ref", 5, drop=3, right=True),
    Column("boot", "boot", 8, drop=7),
    Column("pid", "pid", 7, drop=6, right=True),
    Column("age", "age", 6, right=True),
)
PADDING = 2
"""Cells of blank around each column."""
STATE_ORDER = {"lost": 0, "late": 1}

SORT_KEYS: dict[str, Callable[[NodeStatus], tuple[object, ...]]] = {
    "name": lambda node: (_natural(node.name),),
    "role": lambda node: (node.role != "P", node.target_role != "P"),
    "state": lambda node: (STATE_ORDER.get(node.state, 2),),
    "queue": lambda node: (node.queue,),
    "running": lambda node: (node.running,),
    "phases": lambda node: (node.running_prefill, node.running_decode),
    "l1": lambda node: (node.l1,),
    "l2": lambda node: (node.l2,),
    "ref": lambda node: (-1.0 if node.referenced is None else node.referenced,),
    "boot": lambda node: (node.boot_id,),
    "pid": lambda node: (node.pid or 0,),
    "age": lambda node: (node.age_s,),
}


def _natural(name: str) -> tuple[str, int, str]:
    """n2 before n10."""
    digits = len(name) - len(name.rstrip("0123456789"))
    head = name[: len(name) - digits]
    return (head, int(name[-digits:][:18]) if digits else -1, name)


def columns_for(width: int, nodes: tuple[NodeStatus, ...]) -> tuple[Column, ...]:
    """The columns that fit `width`; the name takes what its longest needs, up to 24."""
    longest = max((len(node.name) for node in nodes), default=0)
    name = msgspec.structs.replace(COLUMNS[0], width=min(24, max(10, longest)))
    chosen = [name, *COLUMNS[1:]]
    while sum(column.width + PADDING for column in chosen) > width:
        droppable = [column for column in chosen if column.drop]
        if not droppable:
            break
        chosen.remove(max(droppable, key=lambda column: column.drop))
    spare = width - sum(column.width + PADDING for column in chosen)
    bars = [column for column in chosen if column.key in {"l1", "l2"}]
    extra = min(8, spare // len(bars)) if bars and spare > 0 else 0
    return tuple(
        msgspec.structs.replace(column, width=column.width + extra) if column in bars else column
        for column in chosen
    )


def column_title(column: Column, scene: Scene) -> Text:
    """The title, marked if the table is sorted by it."""
    title = column.title
    if column.key == scene.ui.sort:
        glyphs = scene.look.glyphs
        title += glyphs.down if scene.ui.descending else glyphs.up
    return Text(title, justify="right" if column.right else "left")


def ordered(scene: Scene) -> tuple[NodeStatus, ...]:
    """The nodes to show, filtered and sorted; ties by name, so that nothing jumps."""
    status, needle = scene.model.status, scene.ui.needle.casefold()
    if status is None:
        return ()
    nodes = [node for node in status.nodes if needle in _searchable(node)]
    nodes.sort(key=SORT_KEYS["name"])
    if scene.ui.sort != "name" or scene.ui.descending:
        nodes.sort(key=SORT_KEYS[scene.ui.sort], reverse=scene.ui.descending)
    return tuple(nodes)


def _searchable(node: NodeStatus) -> str:
    role = {"P": "prefill", "D": "decode"}.get(node.role, "")
    moving = "switching" if node.role != node.target_role else ""
    return f"{node.name} {node.role} {role} {node.state} {moving}".casefold()


def cells(node: NodeStatus, columns: tuple[Column, ...], scene: Scene) -> tuple[Text, ...]:
    """The row of a node, one text a column."""
    look = scene.value_look
    # What a lost node said last is shown as such: faded.
    values = look.faded() if node.state == "lost" else look
    return tuple(_cell(node, column, scene, look, values) for column in columns)


def _cell(node: NodeStatus, column: Column, scene: Scene, look: Look, values: Look) -> Text:
    colours = values.colours
    key = column.key
    if key == "name":
        return Text(safe(node.name, look), look.colours.strong)
    if key == "role":
        return role_text(node, values)
    if key == "state":
        return state_text(node, scene)
    if key in {"l1", "l2"}:
        return used(node.l1 if key == "l1" else node.l2, column.width, values)
    said = {
        "queue": str(node.queue),
        "running": str(node.running),
        "phases": f"{node.running_prefill} / {node.running_decode}",
        "ref": ABSENT if node.referenced is None else share(node.referenced),
        "boot": safe(node.boot_id, look)[:8],
        "pid": ABSENT if node.pid is None else str(node.pid),
        "age": age(age_of(node, scene)),
    }[key]
    style = colours.faint if said == "0" or key in {"boot", "pid"} else colours.text
    if key == "age" and node.state != "ok":
        style = look.state(node.state)
    return Text(said, style, justify="right" if column.right else "left")


def role_text(node: NodeStatus, look: Look) -> Text:
    """Shape and letter; while it changes, the half-filled shape and where it goes."""
    if node.role != node.target_role:
        said = f"{look.glyphs.switching} {node.role}{look.glyphs.into}{node.target_role}"
        return Text(said, look.colours.switching)
    shape, style = look.role(node.role)
    return Text(f"{shape} {node.role}", style)


def state_text(node: NodeStatus, scene: Scene) -> Text:
    """In doubt while the stream is silent: nobody says what it is now."""
    word = {"lost": "LOST"}.get(node.state, node.state) + ("?" if scene.stale else "")
    return Text(word, scene.value_look.state(node.state))


def used(value: float, width: int, look: Look) -> Text:
    """A bar and its figure; over nine tenths it is worth a look."""
    style = look.colours.warn if value > 0.9 else look.colours.text
    return bar(value, max(1, width - 5), look, style).append(f"{share(value):>5}", style)


def age_of(node: NodeStatus, scene: Scene) -> float:
    """Seconds since its heartbeat: counts on also while the stream is silent."""
    return node.age_s + max(0.0, scene.shown_s - scene.model.status_s)


def next_sort(current: str, columns: tuple[Column, ...], by: int) -> str:
    keys = [column.key for column in columns]
    at = keys.index(current) if current in keys else 0
    return keys[(at + by) % len(keys)]
