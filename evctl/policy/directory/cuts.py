"""One run into two, and two into one: everything that runs hold goes along.

A cut keeps the lower part as the old object, and so does a join.
"""

from __future__ import annotations

from evctl.core.blocks import KEY_BYTES
from evctl.policy.directory import spans
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.spans import Steps


def cut(index: dict[bytes, Run], run: Run, position: int) -> Run:
    """Cut a run in two and return the upper part; `run` stays the lower one."""
    assert run.parent is not None
    at = (position - run.start) * KEY_BYTES
    start = run.start
    upper = Run(run.parent, start, bytes(run.keys[:at]))
    kids = run.parent.kids
    assert kids is not None
    kids[bytes(run.keys[:KEY_BYTES])] = upper
    run.keys = run.keys[at:]
    run.start = upper.end = position
    run.whole, upper.whole = (position, run.end), (start, position)
    run.parent = upper
    upper.kids = {bytes(run.keys[:KEY_BYTES]): run}
    index[upper.key(position)] = upper
    _split_ends(index, run, upper)
    for node in run.holders():
        _split_copies(run, upper, node, start)
    run.refs, upper.refs = _split_steps(run.refs, position)
    run.promised, upper.promised = _split_steps(run.promised, position)
    run.full = run.part = run.expect = upper.full = upper.part = upper.expect = 0
    for half in (upper, run):
        for node in _told(half):
            half.tell(node)
    moved = [tip for tip in run.tips or () if tip.end <= position]
    for tip in moved:
        run.leave(tip)
        tip.run = upper
        upper.settle(tip)
    return upper


def join(index: dict[bytes, Run], upper: Run, lower: Run) -> None:
    """Make one run of a parent and its only child, which stays as the object."""
    assert upper.parent is not None
    assert upper.parent.kids is not None
    at = upper.end
    ends = dict(upper.ends or {})
    inside = _joined_ends(upper, lower)
    tail = upper.key(at)
    if inside:
        ends[at] = inside
    else:
        index.pop(tail, None)
    for position in ends:
        index[upper.key(position)] = lower
    ends.update(lower.ends or {})
    lower.ends = ends or None
    lower.whole = (upper.start, lower.end)
    for tier, table in enumerate(upper.tiers, 1):
        for node, held in table.items():
            lower.hold(node, tier, spans.union(held, lower.held(node, tier)))
            node.runs.pop(upper, None)
            node.runs[lower] = None
    lower.refs = _joined_steps(upper.refs, lower.refs, at)
    lower.promised = _joined_steps(upper.promised, lower.promised, at)
    lower.keys = bytearray(upper.keys) + lower.keys
    lower.start = upper.start
    lower.parent = upper.parent
    lower.parent.kids[bytes(lower.keys[:KEY_BYTES])] = lower  # type: ignore[index]
    lower.full = lower.part = lower.expect = 0
    for node in _told(lower):
        lower.tell(node)
    for tip in list(upper.tips or ()):
        tip.run = lower
        lower.settle(tip)
    upper.parent = upper.tips = None


def _told(run: Run) -> dict[Node, object]:
    """Nodes that may be in its masks."""
    return {**(run.l1 or {}), **(run.l2 or {}), **(run.promised or {})}


def _joined_ends(upper: Run, lower: Run) -> int:
    """Copies that end where the two meet, and do not go on below."""
    count = 0
    for above, below in zip(upper.tiers, lower.tiers, strict=True):
        for node, held in above.items():
            if held[-1] == upper.end:
                goes_on = below.get(node)
                count += not (goes_on and goes_on[0] == upper.end)
    return count


def _split_ends(index: dict[bytes, Run], run: Run, upper: Run) -> None:
    if not run.ends:
        return
    at = upper.end
    above = {p: n for p, n in run.ends.items() if p < at}
    below = {p: n for p, n in run.ends.items() if p > at}
    for position in above:
        index[upper.key(position)] = upper
    upper.ends, run.ends = above or None, below or None


def _split_copies(run: Run, upper: Run, node: Node, start: int) -> None:
    at = upper.end
    for tier in (1, 2):
        held = run.held(node, tier)
        if not held:
            continue
        above, below = spans.clip(held, start, at), spans.clip(held, at, run.end)
        if above:
            upper.hold(node, tier, above)
            node.runs[upper] = None
        run.hold(node, tier, below)
    if not run.held(node, 1) and not run.held(node, 2):
        del node.runs[run]


def _split_steps(
    table: dict[Node, Steps] | None, at: int
) -> tuple[dict[Node, Steps] | None, dict[Node, Steps] | None]:
    """Tables of the lower and the upper half."""
    if not table:
        return None, None
    upper: dict[Node, Steps] = {}
    lower: dict[Node, Steps] = {}
    for node, steps in table.items():
        above, below = spans.cut(steps, at)
        if above:
            upper[node] = above
        if below:
            lower[node] = below
    return lower or None, upper or None


def _joined_steps(
    upper: dict[Node, Steps] | None, lower: dict[Node, Steps] | None, at: int
) -> dict[Node, Steps] | None:
    if not upper:
        upper = {}
    table = {
        node: spans.joined(upper.get(node, ()), (lower or {}).get(node, ()), at)
        for node in {**upper, **(lower or {})}
    }
    return table or None
