"""The three figures on top of the overview: split, queues, latency."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from evctl.core.status import ClusterStatus, NodeStatus, QueueStatus
from evctl.tui.look import Look
from evctl.tui.model import BUCKET_S, Bucket
from evctl.tui.views.events import event_lines
from evctl.tui.views.figures import ABSENT, age, count, number_of, rate, seconds
from evctl.tui.views.header import link_text
from evctl.tui.views.scene import Scene, cut, lines, safe, waiting
from evctl.tui.views.spark import series, sparkline

MOST_SHAPES = 9
STATES = ("ok", "late", "starting", "absent", "lost")


def split_panel(scene: Scene, width: int, height: int) -> Text:
    """Nodes of each phase, what is changing, throughput."""
    status, look = scene.model.status, scene.value_look
    if status is None:
        return waiting(look)
    faint = look.colours.faint
    rows = [
        _phase_row("P", status, status.prefill, look),
        _phase_row("D", status, status.decode, look),
        _change_row(status, look, width),
        Text.assemble(
            (rate(status.throughput_rps), look.colours.strong),
            (" req/s   ", faint),
            (count(status.in_flight), look.colours.strong),
            (" in flight", faint),
        ),
    ]
    return lines(*rows[: max(1, height)])


def _phase_row(role: str, status: ClusterStatus, queue: QueueStatus, look: Look) -> Text:
    shape, style = look.role(role)
    states = [node.state for node in status.nodes if node.role == role]
    nodes, lost = len(states), sum(state not in ("ok", "late") for state in states)
    faint = look.colours.faint
    here = Text(f"{number_of(nodes, 'node'):<9}", look.colours.text)
    if lost:
        here = Text(f"{nodes - lost} of {nodes}".ljust(9), look.colours.fail)
    return Text.assemble(
        (f"{role} ", f"{style} bold".strip()),
        _shapes(shape, nodes - lost, lost, style, look),
        " ",
        here,
        ("run ", faint),
        (f"{count(queue.running):<4}", look.colours.strong),
        ("wait ", faint),
        (count(queue.waiting), look.colours.strong),
    )


def _shapes(shape: str, alive: int, lost: int, style: str, look: Look) -> Text:
    """A shape a node, those that are lost last; beyond MOST_SHAPES, their number."""
    if alive + lost > MOST_SHAPES:
        return Text(f"{shape}{look.glyphs.times}{alive + lost}".ljust(MOST_SHAPES), style)
    text = Text(shape * alive, style)
    text.append(look.glyphs.unknown * lost, look.colours.fail)
    return text.append(" " * (MOST_SHAPES - alive - lost))


def _change_row(status: ClusterStatus, look: Look, width: int) -> Text:
    moving = [node for node in status.nodes if node.target_role != node.role]
    if not moving:
        if status.mode == "hold" and status.hold_reason:
            said = f"held: {safe(status.hold_reason, look)}"
            return Text(cut(said, width, look), look.colours.faint)
        return Text("no node is changing role", look.colours.faint)
    names = ", ".join(_moving(node, look) for node in moving[:4])
    more = f" +{len(moving) - 4}" if len(moving) > 4 else ""
    said = f"{look.glyphs.switching} {names}{more}"
    return Text(cut(said, width, look), look.colours.switching)


def _moving(node: NodeStatus, look: Look) -> str:
    return f"{safe(node.name, look)} {node.role}{look.glyphs.into}{node.target_role}"


def queues_panel(scene: Scene, width: int, height: int) -> Text:
    """Waits of the last minute by phase, and how they went over the last minutes."""
    status, look = scene.model.status, scene.value_look
    if status is None:
        return waiting(look)
    cells = max(4, width - 21)
    waits: tuple[tuple[str, QueueStatus, Callable[[Bucket], float | None]], ...] = (
        ("P", status.prefill, lambda bucket: bucket.prefill_wait_s),
        ("D", status.decode, lambda bucket: bucket.decode_wait_s),
    )
    waves = [series(scene.model.history, value, cells, scene.shown_s) for _, _, value in waits]
    # One scale for both, so that they can be compared; the head says what a full cell is.
    top = max((value for wave in waves for value in wave if value is not None), default=0.0)
    head = Text(f"{'wait s':<6}{'p50':>5} {'p95':>6}   ", look.colours.faint)
    head.append(_wave_title(top, cells, look))
    rows = [head]
    for (role, queue, _), wave in zip(waits, waves, strict=True):
        shape, style = look.role(role)
        row = Text.assemble(
            (f"{role} {shape}  ", f"{style} bold".strip()),
            (f"{seconds(queue.wait_p50_s):>6} ", look.colours.text),
            (f"{seconds(queue.wait_p95_s):>6}   ", look.colours.strong),
        )
        rows.append(row.append_text(sparkline(wave, look, style, top)))
    total = Text.assemble(
        ("waiting ", look.colours.faint),
        (f"P {status.prefill.waiting}  D {status.decode.waiting}", look.colours.text),
        ("   running ", look.colours.faint),
        (f"P {status.prefill.running}  D {status.decode.running}", look.colours.text),
    )
    return lines(*[*rows, total][: max(1, height)])


def _wave_title(top: float, cells: int, look: Look) -> str:
    """What the waves show, as far as there is room: which figure, how far back, up to what."""
    scale = f"{look.glyphs.spark[-1]} {seconds(top)}" if top else ""
    span = f"last {age(cells * BUCKET_S)}"
    for said in (f"p95, {span}  {scale}", f"p95 {span} {scale}", f"{span} {scale}", span):
        if len(said.strip()) <= cells:
            return said.strip().rjust(cells)
    return span[:cells].rjust(cells)


def latency_panel(scene: Scene, width: int, height: int) -> Text:
    """Time to the first token, throughput, and what went wrong. One line if that is all."""
    status, look = scene.model.status, scene.value_look
    if status is None:
        return waiting(look)
    colours = look.colours
    ttft = _ttft(status, look)
    ended = _ended(status, look)
    if height < 3:
        line = Text.assemble(ttft, "   ", ended, "   ", no_wrap=True, end="")
        wave = series(
            scene.model.history,
            lambda bucket: bucket.ttft_s,
            max(0, width - len(line)),
            scene.shown_s,
        )
        return line.append_text(sparkline(wave, look, colours.spark))
    cells = max(4, width - 16)
    waves: tuple[tuple[str, Callable[[Bucket], float | None]], ...] = (
        (f"{rate(status.throughput_rps):>5} req/s", lambda bucket: bucket.throughput_rps),
        (f"{count(status.in_flight):>5} in flight", lambda bucket: float(bucket.in_flight)),
    )
    rows = [ttft]
    for said, value in waves:
        wave = series(scene.model.history, value, cells, scene.shown_s)
        row = Text(f"{said:<16}"[:16], colours.text)
        rows.append(row.append_text(sparkline(wave, look, colours.spark)))
    return lines(*[*rows, ended][: max(1, height)])


def _ttft(status: ClusterStatus, look: Look) -> Text:
    faint = look.colours.faint
    return Text.assemble(
        ("TTFT p50 ", faint),
        (seconds(status.ttft_p50_s), look.colours.text),
        ("  p95 ", faint),
        (seconds(status.ttft_p95_s), look.colours.strong),
        ("" if status.ttft_p95_s is None else " s", faint),
    )


def _ended(status: ClusterStatus, look: Look) -> Text:
    colours = look.colours
    return Text.assemble(
        ("done ", colours.faint),
        (count(status.requests_done), colours.text),
        ("  failed ", colours.faint),
        (
            count(status.requests_failed),
            colours.fail if status.requests_failed else colours.text,
        ),
        ("  rejected ", colours.faint),
        (
            count(status.requests_rejected),
            colours.warn if status.requests_rejected else colours.text,
        ),
    )


def summary(scene: Scene, width: int) -> Text:
    """Five lines for a terminal where no panel fits; the link is on the first."""
    status, look = scene.model.status, scene.value_look
    link = link_text(scene)
    if status is None:
        return lines(link, waiting(look))
    arrow = f"{look.glyphs.arrow}{status.target_split}"
    moving = "" if status.split == status.target_split else arrow
    head = Text(f"{safe(status.cluster, look)} {status.split}{moving} ", look.colours.strong)
    head.append(f"{status.mode} gen {status.generation}  ", look.colours.text)
    head.truncate(max(0, width - len(link) - 1))
    states = [node.state for node in status.nodes]
    known = [f"{states.count(s)} {s}" for s in STATES if s in states]
    health = Text(", ".join(known) or ABSENT)
    health.stylize(
        look.state("lost" if "lost" in states else "late" if "late" in states else "ok")
    )
    return lines(
        Text.assemble(head, " " * max(1, width - len(head) - len(link)), link),
        Text.assemble(
            _queue_words("P", status.prefill, look), "  ", _queue_words("D", status.decode, look)
        ),
        Text.assemble(
            _ttft(status, look),
            f"  {rate(status.throughput_rps)} req/s  {count(status.in_flight)} in flight",
        ),
        Text.assemble(
            f"{number_of(len(states), 'node')}: ", health, f"  failed {status.requests_failed}"
        ),
        event_lines(scene, width, 1),
    )


def _queue_words(role: str, queue: QueueStatus, look: Look) -> Text:
    shape, style = look.role(role)
    said = f" run {queue.running} wait {queue.waiting} p95 {seconds(queue.wait_p95_s)}"
    return Text.assemble((f"{role}{shape}", f"{style} bold".strip()), (said, look.colours.text))
