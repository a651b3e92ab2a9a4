"""KV memory: what the nodes want, what there is, and what the dead have left."""

from __future__ import annotations

from typing import Final

from evctl.provision.doctor.facts import Segment, Subject
from evctl.provision.doctor.geometry import node_bytes
from evctl.provision.doctor.report import Check, Level, told_bytes

HEADROOM_BYTES: Final = 256 << 20
"""An engine leaves as much of MemAvailable."""
TIGHT: Final = 0.9
"""Of what there is: above it, a little more load of others would be too much."""
MOST_LINES: Final = 8


def wanted_bytes(subject: Subject) -> tuple[int, int] | None:
    """A node's L1 and L2; None while the model's KV is not known."""
    layout, config = subject.facts.layout, subject.config
    if layout is None:
        return None
    return node_bytes(layout, config.l1_blocks, config.l2_blocks, config.ranks)


def shared_memory(subject: Subject) -> Check:
    """/dev/shm: engines refuse to start beyond it (EV-4101)."""
    free_bytes = subject.facts.memory.shm_free_bytes
    why = "L1 and L2 of a node are one file there; an engine without room does not start"
    return _room("shared-memory", subject, free_bytes, "/dev/shm", why)


def main_memory(subject: Subject) -> Check:
    """What can be had without swapping: engines refuse to start beyond it (EV-4102)."""
    memory = subject.facts.memory
    why = "that file is in RAM; weights and the engines' own memory come on top"
    if memory.available_bytes is None:
        return Check("main-memory", Level.INFO, "unknown: no MemAvailable here", why)
    free_bytes, source = memory.available_bytes - HEADROOM_BYTES, "MemAvailable less 256 MiB"
    if memory.group_free_bytes is not None and memory.group_free_bytes < free_bytes:
        free_bytes, source = memory.group_free_bytes, "the control group's limit"
    return _room("main-memory", subject, free_bytes, source, why)


def _room(name: str, subject: Subject, free_bytes: int, source: str, why: str) -> Check:
    sizes, stale_bytes = wanted_bytes(subject), _total(stale(subject))
    free_bytes = max(0, free_bytes) + stale_bytes
    free = f"{told_bytes(free_bytes)} free in {source}"
    if stale_bytes:
        free += f", {told_bytes(stale_bytes)} of dead engines counted as free"
    if sizes is None:
        next_step = f"evctl up {subject.config.name} fetches it"
        found = f"unknown: model {subject.config.model} is not on this machine yet; {free}"
        return Check(name, Level.INFO, found, why, next_step)
    running = {engine.unit for engine in subject.facts.engines if engine.segment}
    missing = [node for node in subject.nodes if node not in running]
    needed_bytes = len(missing) * sum(sizes)
    nodes = f"{len(missing)} node{'s' * (len(missing) != 1)}"
    to_come = f"{told_bytes(needed_bytes)} for {nodes} to come" if missing else "all have theirs"
    found = f"{_told_sizes(sizes)} a node, {to_come}; {free}"
    if needed_bytes > free_bytes:
        next_step = "lower l1_tokens or l2_tokens, have fewer nodes here, or free memory"
        return Check(name, Level.FAIL, found, why, next_step)
    if needed_bytes > TIGHT * free_bytes:
        next_step = "leave more: lower l2_tokens, or free memory"
        return Check(name, Level.WARN, found, why, next_step)
    return Check(name, Level.OK, found, why)


def _told_sizes(sizes: tuple[int, int]) -> str:
    l1_bytes, l2_bytes = sizes
    return f"{told_bytes(l1_bytes)} of L1 and {told_bytes(l2_bytes)} of L2"


def pool(subject: Subject) -> Check:
    """L2 against L1, whatever their bytes are."""
    l1, l2 = subject.config.l1_blocks, subject.config.l2_blocks
    block_tokens = subject.config.block_tokens
    found = f"L1 {l1} blocks, L2 {l2} blocks, of {block_tokens} tokens"
    l1_tokens = l1 * block_tokens
    if not subject.config.prefix_cache:
        return Check("pool", Level.OK, found, "without prefix_cache nothing is reused")
    if not l2:
        why = "without L2 what leaves L1 is computed anew, and no node reads what another computed"
        next_step = f"set l2_tokens, to {l1_tokens} or more"
        return Check("pool", Level.WARN, found, why, next_step)
    if l2 < l1:
        why = "each block finished in L1 is kept in L2 as well: a smaller one loses it first"
        return Check("pool", Level.WARN, found, why, f"set l2_tokens to {l1_tokens} or more")
    why = "L2 keeps what L1 has no room for, and gives it to other nodes"
    return Check("pool", Level.OK, found, why)


def stale(subject: Subject) -> tuple[Segment, ...]:
    """Segments of this user whose owner is dead."""
    return tuple(s for s in subject.facts.segments if s.mine and s.alive is False)


def stale_segments(subject: Subject) -> Check:
    dead, name = stale(subject), "stale-segments"
    others = tuple(s for s in subject.facts.segments if not s.mine)
    beside = f"; {len(others)} of other users, {told_bytes(_total(others))}" if others else ""
    why = "an engine that was killed leaves its memory in /dev/shm, where it stays taken"
    if not dead:
        return Check(name, Level.OK, f"none{beside}", why)
    count = len(dead)
    found = f"{count} segment{'s' * (count != 1)} of dead engines, {told_bytes(_total(dead))}"
    next_step = "the next engine that starts removes them; or by hand:"
    lines = [f"rm /dev/shm/{segment.name}" for segment in dead[:MOST_LINES]]
    if count > MOST_LINES:
        lines.append(f"# and {count - MOST_LINES} more")
    return Check(name, Level.WARN, found + beside, why, next_step, tuple(lines))


def _total(segments: tuple[Segment, ...]) -> int:
    return sum(segment.size_bytes for segment in segments)
