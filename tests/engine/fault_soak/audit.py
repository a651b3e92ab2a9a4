"""What has to hold on each node once all is quiet: nothing leaks, and no lie was believed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable

from evctl.wire.messages import Inspection
from evengine.transfer.faulty import Note
from tests.engine.fault_soak.cluster import QUARANTINE_S, Cluster

SETTLES_S = QUARANTINE_S + 5.5
"""What a dead peer left has to be gone by then; less than `idle_s`, which ends all the rest."""
GAUGES = (
    "l2_pins",
    "loans",
    "l1_quarantined_blocks",
    "l2_quarantined_blocks",
    "l2_write_queue_blocks",
    "fetch_bytes_in_flight",
)


def left_over(found: Inspection) -> list[str]:
    """What a quiet node still holds or does."""
    load = found.load
    left = {
        "requests": load.waiting_prefill
        + load.running_prefill
        + load.waiting_decode
        + load.running_decode,
        "L1 blocks used": load.l1_used_blocks,
        **{name: found.counters.get(name, 0) for name in GAUGES},
    }
    return [f"{found.node}: {value:g} {name}" for name, value in left.items() if value]


class Auditor:
    """Follows counters and notes from one quiet moment to the next."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before: dict[str, Inspection] = {}
        self.faults: Counter[str] = Counter()
        """Of each kind, those that took place since the last audit."""
        self._bad_reads: Counter[str] = Counter()
        self._bad_writes = 0
        self.refused = 0
        """Blocks that lied and were refused, in all audits."""

    def hear(self, notes: Iterable[tuple[str, Note]]) -> None:
        for node, note in notes:
            if not note.took_place:
                continue
            self.faults[note.kind.value] += 1
            if note.push:
                self._bad_writes += note.bad_blocks
            else:
                self._bad_reads[node] += note.bad_blocks

    def start(self) -> None:
        """Count from here on."""
        self._before = {name: self._cluster.inspect(name) for name in self._up}
        self.hear_all()
        self.faults.clear()
        self._bad_reads.clear()
        self._bad_writes = 0

    def hear_all(self) -> None:
        self.hear((name, timed.note) for name, timed in self._cluster.fresh_notes())

    def leaks(self, *, exact: bool = True) -> list[str]:
        """Violations, once each node had time to become quiet. exact: no peer broke its word
        meanwhile by dying or standing still, so that each refused block is one that lied."""
        cluster = self._cluster
        end_s = time.monotonic() + SETTLES_S
        while True:
            found = {name: cluster.inspect(name) for name in self._up}
            left = [line for one in found.values() for line in left_over(one)]
            if not left or time.monotonic() > end_s:
                break
            cluster.pump(0.05)
        left += [f"{name}: {line}" for name, one in found.items() for line in one.problems]
        self.hear_all()
        if exact:
            left += self._believed(found)
        for name, one in found.items():
            if errors := self._grown(one, "handler_errors"):
                left.append(f"{name}: {errors:g} handlers raised")
            self.refused += int(
                self._grown(one, "fetch_blocks_corrupt") + self._grown(one, "kv_blocks_refused")
            )
        return left

    @property
    def _up(self) -> list[str]:
        return [name for name in self._cluster.nodes if name not in self._cluster.down]

    def _grown(self, now: Inspection, counter: str) -> float:
        before = self._before.get(now.node)
        same = before is not None and before.boot_id == now.boot_id
        start = before.counters.get(counter, 0) if same and before is not None else 0
        return now.counters.get(counter, 0) - start

    def _believed(self, found: dict[str, Inspection]) -> list[str]:
        """A block that lied is refused, and no other is. Of pushes some are given up before
        anybody looks at what they wrote."""
        lines = []
        for name, one in found.items():
            refused = self._grown(one, "fetch_blocks_corrupt")
            if refused != self._bad_reads[name]:
                lines.append(
                    f"{name}: {self._bad_reads[name]} blocks that it read lied, {refused:g} were "
                    "refused"
                )
            if corrupt := self._grown(one, "l2_dropped_corrupt"):
                lines.append(f"{name}: {corrupt:g} blocks of its own L2 were corrupt")
        refused = sum(self._grown(one, "kv_blocks_refused") for one in found.values())
        if refused > self._bad_writes:
            lines.append(f"{self._bad_writes} pushed blocks lied, {refused:g} were refused")
        return lines
