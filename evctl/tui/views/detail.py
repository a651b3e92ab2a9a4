"""Everything about one node."""

from __future__ import annotations

from rich.text import Text

from evctl.core.status import NodeStatus
from evctl.tui.look import Look
from evctl.tui.views.events import event_line
from evctl.tui.views.figures import ABSENT, age, count, share
from evctl.tui.views.nodes import age_of, role_text, state_text, used
from evctl.tui.views.occupancy import figures_of, stacked
from evctl.tui.views.scene import Scene, lines, safe

MOST_EVENTS = 8
TITLE = 10
MOST_BAR = 60


def find_node(scene: Scene, name: str) -> NodeStatus | None:
    status = scene.model.status
    nodes = () if status is None else status.nodes
    return next((node for node in nodes if node.name == name), None)


def node_detail(scene: Scene, name: str, width: int) -> Text:
    """Figures of the node and the last events that name it."""
    look = scene.value_look
    node = find_node(scene, name)
    if node is None:
        return Text(f"{name} is not among the nodes any more", look.colours.warn)

    def row(title: str, value: Text | str) -> Text:
        return Text.assemble((f"{title:<{TITLE}}", look.colours.faint), value)

    gone = look.faded() if node.state == "lost" else look
    state = state_text(node, scene).append(
        f"   heartbeat {age(age_of(node, scene))} ago", look.colours.text
    )
    batch = (
        f"{node.running} running ({node.running_prefill} prefill, {node.running_decode} decode)"
    )
    pid = ABSENT if node.pid is None else str(node.pid)
    bar_width = min(40, max(10, width - 12))
    rows = [
        row("role", role_text(node, gone)),
        row("state", state),
        row("queue", Text(f"{node.queue} waiting", gone.colours.text)),
        row("batch", Text(batch, gone.colours.text)),
        row("L1", used(node.l1, bar_width, gone)),
        row("L2", used(node.l2, bar_width, gone)),
        row("cached", Text(_cached(node), gone.colours.text)),
        *(row(title, text) for title, text in pool_rows(scene, node, gone, width - TITLE)),
        row("boot", Text(safe(node.boot_id, look), gone.colours.text)),
        row("pid", Text(pid, gone.colours.text)),
        Text(""),
        Text("events", look.colours.faint),
    ]
    own = [event for event in scene.model.events if event.node == name][-MOST_EVENTS:]
    rows += [event_line(event, scene, width) for event in own]
    if not own:
        rows.append(Text("none yet", look.colours.faint))
    return lines(*rows)


def _cached(node: NodeStatus) -> str:
    if node.referenced is None:
        return "no blocks"
    return f"{count(node.blocks)} blocks, {share(node.referenced)} with a reference"


def pool_rows(
    scene: Scene, node: NodeStatus, look: Look, width: int
) -> list[tuple[str, Text | str]]:
    """What the node has of both tiers, by class, and what goes on in its L2. Titles and texts."""
    status = scene.model.status
    pool = None if status is None else status.pool
    own = next((each for each in pool.nodes if each.node == node.name), None) if pool else None
    if own is None:
        return [("pool", Text(ABSENT, look.colours.faint))]
    rows: list[tuple[str, Text | str]] = []
    for title, tier in (("L1 blocks", own.l1), ("L2 blocks", own.l2)):
        if tier is own.l2 and not tier.total_blocks:
            rows.append((title, Text("no pool: l2_tokens is 0", look.colours.text)))
            return rows
        total = f" of {count(tier.total_blocks)}"
        bar = stacked(tier, min(MOST_BAR, max(1, width - len(total))), look)
        rows.append((title, bar.append(total, look.colours.faint)))
        rows.append(("", figures_of(tier, look, width)))
    reads = f"pins {_known(own.pins)}, loans to peers {_known(own.loans)}"
    writes = f"blocks waiting {_known(own.write_queue_blocks)}"
    return [
        *rows,
        ("L2 reads", Text(reads, look.colours.text)),
        ("L2 writes", Text(writes, look.colours.text)),
    ]


def _known(number: int | None) -> str:
    return ABSENT if number is None else count(number)
