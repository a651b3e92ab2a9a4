"""One round: faults of one kind under load, or a peer that is killed or stopped in the middle of
a copy; then quiet, and the audit."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from evengine.transfer.faults import FaultKind
from tests.engine.fault_orders import Orders, TimedNote
from tests.engine.fault_soak.audit import Auditor
from tests.engine.fault_soak.cluster import NAMES, QUIET, Cluster
from tests.engine.fault_soak.corpus import Turn
from tests.engine.fault_soak.load import Load, Tally

READS, WRITES = 0.4, 0.25
"""Of the calls that go wrong: some requests have to come through."""
MAX_POLLS = 40
"""An engine of ours polls every 20 ms at the latest: what comes late does so after a second at
most, well within its slots' quarantine, and long after they would be in other use without one."""
WINDOW_POLLS = 80
"""How long a copy stands half way, at about 5 ms each."""
ROUND_LIMIT_S = 60.0
REJOIN_S = 30.0
STOPPED_S = (0.1, 0.3, 1.0, 2.5, 4.5)
"""Below and above what others wait for an answer, for a ping, for the end of a loan."""
ANNOUNCED_AFTER_S = (0.0, 0.1, 0.6)
AFTERWARDS = 6
"""Requests that end after a fault before the round does."""


@dataclass
class Round:
    """What one round did. faults: that took place; peer_blocks: fetched; moves: hand-overs."""

    kind: str
    tally: Tally
    faults: int = 0
    peer_blocks: int = 0
    moves: int = 0
    refused: int = 0
    note: str = ""
    violations: list[str] = field(default_factory=list)


class Rounds:
    def __init__(self, cluster: Cluster, corpus: list[Turn], seed: int) -> None:
        self._cluster = cluster
        self._load = Load(cluster, corpus, seed)
        self._auditor = Auditor(cluster)
        self._rng = random.Random(seed + 1)
        self._turn = 0

    def transfers(self, kind: FaultKind, burst: int) -> Round:
        """Until `burst` faults of a kind took place, in reads and writes of all three nodes."""
        seed = self._rng.randrange(1 << 30)
        orders = Orders(seed, (kind,), reads=READS, writes=WRITES, max_polls=MAX_POLLS)

        def faults() -> int:
            self._auditor.hear_all()
            return self._auditor.faults[kind.value]

        def body(this: Round) -> None:
            for number, name in enumerate(NAMES):
                self._cluster.order(Orders(**{**_fields(orders), "seed": seed + number}), name)
            self._until(lambda: faults() >= burst, ROUND_LIMIT_S, f"{burst} faults")
            self._cluster.order(QUIET)

        this = self._round(kind.value, body)
        this.faults = self._auditor.faults[kind.value]
        return this

    def killed(self) -> Round:
        return self._round("sigkill", self._kill, exact=False)

    def stopped(self) -> Round:
        return self._round("sigstop", self._pause, exact=False)

    # ------------------------------------------------------------ a peer dies or stands still

    def _kill(self, this: Round) -> None:
        cluster, load = self._cluster, self._load
        victim, gone_s, mid = self._strike(cluster.kill, this)
        load.killed(victim)
        self._until_s(time.monotonic() + self._rng.choice(ANNOUNCED_AFTER_S))
        for name in NAMES:
            if name != victim:
                cluster.announce(without=[victim])
        this.faults += mid(gone_s)
        cluster.revive(victim)
        self._until(lambda: cluster.back(victim), 2 * ROUND_LIMIT_S, f"{victim} to come back")
        cluster.announce()
        load.tally.served.clear()
        self._until(lambda: self._serves(victim), REJOIN_S, f"{victim} to rejoin")

    def _pause(self, this: Round) -> None:
        cluster = self._cluster
        victim, still_s, mid = self._strike(cluster.pause, this)
        self._until_s(still_s + self._rng.choice(STOPPED_S))
        this.faults += mid(still_s)
        cluster.resume(victim)
        self._until_ended(AFTERWARDS)

    def _strike(
        self, blow: Callable[[str], float], this: Round
    ) -> tuple[str, float, Callable[[float], bool]]:
        """Wait for a copy that is half way and hit one of its ends. Returns the victim, when it
        was hit, and whether, as far as can be known later, the copy was still half way then."""
        self._turn += 1
        push, at_reader = bool(self._turn & 1), bool(self._turn & 2)
        rates = {"writes" if push else "reads": 0.4}
        self._cluster.order(
            Orders(self._turn, (FaultKind.SLOW,), polls=WINDOW_POLLS, **rates)  # type: ignore[arg-type]
        )
        notes: list[tuple[str, TimedNote]] = []
        self._hear()

        def half_way() -> bool:
            notes.extend(self._hear())
            over = {(name, n.note.call) for name, n in notes if n.note.over}
            notes[:] = [
                (name, n)
                for name, n in notes
                if n.note.push == push and (name, n.note.call) not in over
            ]
            # for a moment, so that half of it has landed
            return any(time.monotonic() - n.at_s > 0.03 for _, n in notes)

        self._until(half_way, ROUND_LIMIT_S, "a copy that is half way")
        name, struck = notes[-1] if time.monotonic() - notes[-1][1].at_s > 0.03 else notes[0]
        victim = name if at_reader else struck.note.node
        this.note = f"{name} {'pushes to' if push else 'reads from'} {struck.note.node}, {victim}"
        hit_s = blow(victim)
        self._cluster.order(QUIET)

        def mid(hit_s: float) -> bool:
            ends = [
                n.at_s
                for who, n in self._hear()
                if n.note.over and (who, n.note.call) == (name, struck.note.call)
            ]
            return not ends or ends[0] > hit_s

        return victim, hit_s, mid

    def _serves(self, name: str) -> bool:
        """Whether a node that came back computes, takes over and hands over again."""
        served = self._load.tally.served
        return bool(served[name, name] + sum(served[name, other] for other in NAMES)) and any(
            served[other, name] for other in NAMES if other != name
        )

    # ------------------------------------------------------------ inside

    def _round(self, kind: str, body: Callable[[Round], None], *, exact: bool = True) -> Round:
        cluster, load, auditor = self._cluster, self._load, self._auditor
        auditor.start()
        load.tally = Tally()
        blocks, moves, refused = cluster.peer_blocks, len(cluster.transferred), auditor.refused
        this = Round(kind, load.tally)
        try:
            body(this)
        except TimeoutError as error:
            load.tally.hangs.append(str(error))
        cluster.order(QUIET)
        load.drain()
        load.tally.leaks += auditor.leaks(exact=exact)
        load.give_up_lost()
        this.peer_blocks = cluster.peer_blocks - blocks
        this.moves = len(cluster.transferred) - moves
        this.refused = auditor.refused - refused
        return this

    def _hear(self) -> list[tuple[str, TimedNote]]:
        notes = self._cluster.fresh_notes()
        self._auditor.hear((name, timed.note) for name, timed in notes)
        return notes

    def _until(self, true: Callable[[], bool], timeout_s: float, what: str) -> None:
        end_s = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > end_s:
                raise TimeoutError(f"waited {timeout_s:g} s under load for {what}")
            self._load.step()

    def _until_s(self, end_s: float) -> None:
        while time.monotonic() < end_s:
            self._load.step()

    def _until_ended(self, requests: int) -> None:
        served = self._load.tally.served
        end = served.total() + requests
        self._until(lambda: served.total() >= end, ROUND_LIMIT_S, f"{requests} more requests")


def _fields(orders: Orders) -> dict[str, object]:
    return {name: getattr(orders, name) for name in orders.__struct_fields__}
