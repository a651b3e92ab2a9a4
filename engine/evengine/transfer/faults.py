"""What can go wrong with a transfer, and which calls it happens to.

Deterministic: a schedule says for each call, in their order, what happens to it. Delays are
counted in polls, not in seconds.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from evengine.pool.headers import HEADER_BYTES, USED_HEADER_BYTES
from evengine.ports import Piece, TransferState

NO_MEANING = range(USED_HEADER_BYTES, HEADER_BYTES)
"""Offsets in a slot of L2 where another byte changes nothing."""


class FaultKind(Enum):
    LATE_WRITE = "late-write"
    """Fails at once, unsettled; the bytes move `polls` polls later."""
    STALL = "stall"
    """Nothing moves and nothing is said for `polls` polls, then it fails, settled."""
    SLOW = "slow"
    """The first half of the pieces moves, nothing for `polls` polls, then the rest: no fault yet,
    but a wide window for others."""
    FAILED_BUT_WRITES = "failed-but-writes"
    """All bytes move, then it fails, unsettled."""
    PARTIAL = "partial"
    """Only the first `pieces` pieces move, then it ends as `report` says."""
    CORRUPT = "corrupt"
    """One byte at `offset` of the destination's first piece is inverted, then DONE."""
    SWAPPED = "swapped"
    """The first two blocks land in each other's place, then DONE."""
    WRONG_GENERATION = "wrong-generation"
    """Reads only: the first block comes with the header of another use of its slot, then DONE."""
    OTHER_LIFE = "other-life"
    """The peer was started anew at the same address: DONE, but a write went into another memory,
    and what a read brought lay in the same place of another life."""


class Fault(msgspec.Struct, frozen=True):
    kind: FaultKind
    polls: int = 3
    pieces: int = 1
    offset: int = 0
    report: TransferState = TransferState.FAILED


def bad_blocks(fault: Fault, pieces: Sequence[Piece]) -> int:
    """How many pieces of a call that reports DONE are not what they should be; each of them has
    to be refused by whoever looks at it."""
    if fault.kind in (FaultKind.CORRUPT, FaultKind.WRONG_GENERATION):
        return 1
    if fault.kind is FaultKind.SWAPPED:
        return 2
    if fault.kind is FaultKind.OTHER_LIFE:
        return len(pieces)
    if fault.kind is FaultKind.PARTIAL and fault.report is TransferState.DONE:
        return max(0, len(pieces) - fault.pieces)
    return 0


class Schedule(Protocol):
    """Asked once for each call of write() and read(), in their order."""

    def fault(self, push: bool, pieces: Sequence[Piece], /) -> Fault | None: ...


class ByCall:
    """The faults of the n-th calls, counted from 0: of all, or of one direction only."""

    def __init__(self, faults: Mapping[int, Fault], *, push: bool | None = None) -> None:
        self._faults = dict(faults)
        self._push = push
        self._calls = 0

    def fault(self, push: bool, _pieces: Sequence[Piece], /) -> Fault | None:
        if self._push not in (None, push):
            return None
        self._calls += 1
        return self._faults.get(self._calls - 1)


class AtRandom:
    """A fault with probability `rate`, of a kind that can happen to the call, from a seed.

    kinds: to choose from. reads, writes: rates of either direction. max_polls: of its delay.
    """

    def __init__(
        self,
        seed: int,
        kinds: Sequence[FaultKind],
        *,
        reads: float = 0.0,
        writes: float = 0.0,
        max_polls: int = 6,
    ) -> None:
        self._rng = random.Random(seed)
        self._kinds = kinds
        self._rate = {True: writes, False: reads}
        self._max_polls = max_polls

    def fault(self, push: bool, pieces: Sequence[Piece], /) -> Fault | None:
        """Draws as often for a call that goes well as for one that does not, so that a rate
        changes nothing about the others."""
        drawn, rng = self._rng.random(), random.Random(self._rng.random())
        possible = [kind for kind in self._kinds if can_happen(kind, push, pieces)]
        if drawn >= self._rate[push] or not possible:
            return None
        offset = rng.randrange(pieces[0].length_bytes)
        if not push and offset in NO_MEANING:
            offset = 0
        return Fault(
            kind=rng.choice(possible),
            polls=rng.randint(1, self._max_polls),
            pieces=rng.randrange(len(pieces)),
            offset=offset,
            report=rng.choice((TransferState.FAILED, TransferState.DONE)),
        )


def can_happen(kind: FaultKind, push: bool, pieces: Sequence[Piece]) -> bool:
    """Whether a call like this can go wrong that way."""
    if not pieces or (push and kind is FaultKind.WRONG_GENERATION):
        return False  # what a push writes has no header of its own: the message after it does
    if kind is FaultKind.SWAPPED:
        return len(pieces) > 1 and pieces[0].length_bytes == pieces[1].length_bytes
    return True
