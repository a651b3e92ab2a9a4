"""A transfer that misbehaves on schedule: every way in which a real one has been seen to.

Deterministic: which call goes wrong, and how, is written down beforehand; delays are counted
in polls, not in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import msgspec

from evctl.wire.messages import TransferAddress
from evengine.pool.memory import KvMemory
from evengine.ports import Outcome, Piece, Transfer, TransferState


class FaultKind(Enum):
    LATE_WRITE = "late-write"
    """Fails at once, unsettled; the bytes move `polls` polls later."""
    STALL = "stall"
    """Nothing moves and nothing is said for `polls` polls, then it fails, settled."""
    FAILED_BUT_WRITES = "failed-but-writes"
    """All bytes move, then it fails, unsettled."""
    PARTIAL = "partial"
    """Only the first `pieces` pieces move, then it ends as `report` says."""
    CORRUPT = "corrupt"
    """One byte at `offset` of the destination's first piece is inverted, then DONE."""
    SWAPPED = "swapped"
    """The first two blocks land in each other's place, then DONE."""


class Fault(msgspec.Struct, frozen=True):
    kind: FaultKind
    polls: int = 3
    pieces: int = 1
    offset: int = 0
    report: TransferState = TransferState.FAILED


Schedule = Mapping[int, Fault]
"""Fault of the n-th call of write() or read(), counted together from 0."""


class FaultyTransfer:
    """Wraps any Transfer; calls without a scheduled fault pass through.

    memory: this node's, needed by CORRUPT. `injected` counts faults that took place.
    """

    def __init__(
        self, inner: Transfer, schedule: Schedule, memory: KvMemory | None = None
    ) -> None:
        self.address = inner.address
        self.injected = 0
        self._inner = inner
        self._schedule = dict(schedule)
        self._memory = memory
        self._calls = 0
        self._polls = 0
        self._tickets: dict[int, _Call] = {}
        self._timed: list[tuple[int, _Call]] = []
        self._ready: list[Outcome] = []

    def connect(self, peer: TransferAddress) -> None:
        self._inner.connect(peer)

    def disconnect(self, node: str, boot_id: str) -> None:
        self._inner.disconnect(node, boot_id)

    def write(self, node: str, boot_id: str, pieces: Sequence[Piece], deadline_s: float) -> int:
        return self._begin(_Call(self._calls, True, node, boot_id, pieces, deadline_s))

    def read(self, node: str, boot_id: str, pieces: Sequence[Piece], deadline_s: float) -> int:
        return self._begin(_Call(self._calls, False, node, boot_id, pieces, deadline_s))

    def when_ended(self, call: Callable[[], None]) -> None:
        self._inner.when_ended(call)

    def poll(self) -> list[Outcome]:
        self._polls += 1
        due = [call for at, call in self._timed if at <= self._polls]
        self._timed = [(at, call) for at, call in self._timed if at > self._polls]
        for call in due:
            if call.fault is not None and call.fault.kind is FaultKind.STALL:
                self._fail(call, "stalled", settled=True)
            else:
                self._forward(call, call.pieces)
        for outcome in self._inner.poll():
            self._take(outcome)
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        self._inner.close()

    def _begin(self, call: _Call) -> int:
        self._calls += 1
        call.fault = fault = self._schedule.get(call.number)
        if fault is None:
            self._forward(call, call.pieces)
            return call.number
        self.injected += 1
        if fault.kind in (FaultKind.LATE_WRITE, FaultKind.STALL):
            self._timed.append((self._polls + fault.polls, call))
            if fault.kind is FaultKind.LATE_WRITE:
                self._fail(call, "failed, and will write later", settled=False)
        elif fault.kind is FaultKind.PARTIAL:
            self._forward(call, call.pieces[: fault.pieces])
        elif fault.kind is FaultKind.SWAPPED:
            self._forward(call, self._swapped(call.pieces))
        else:
            self._forward(call, call.pieces)
        return call.number

    def _forward(self, call: _Call, pieces: Sequence[Piece]) -> None:
        start = self._inner.write if call.push else self._inner.read
        self._tickets[start(call.node, call.boot_id, pieces, call.deadline_s)] = call

    def _fail(self, call: _Call, reason: str, *, settled: bool) -> None:
        self._ready.append(Outcome(call.number, TransferState.FAILED, reason, settled))

    def _take(self, outcome: Outcome) -> None:
        """Turn an outcome of the inner transfer into what the fault makes of it."""
        call = self._tickets.pop(outcome.ticket)
        fault = call.fault
        done = outcome.state is TransferState.DONE
        if fault is not None and fault.kind is FaultKind.LATE_WRITE:
            return  # was reported when the call was made
        if fault is None or not done or fault.kind is FaultKind.SWAPPED:
            self._ready.append(msgspec.structs.replace(outcome, ticket=call.number))
        elif fault.kind is FaultKind.CORRUPT:
            self._corrupt(call, fault.offset)
        elif fault.kind is FaultKind.FAILED_BUT_WRITES:
            self._fail(call, "failed, but has written", settled=False)
        else:
            settled = fault.report is TransferState.DONE
            self._ready.append(Outcome(call.number, fault.report, "partial", settled))

    def _corrupt(self, call: _Call, offset: int) -> None:
        """Invert one byte where it landed; for a write, by sending another byte after it."""
        if self._memory is None:
            raise ValueError("a CORRUPT fault needs the node's memory")
        if call.corrupting:
            self._ready.append(Outcome(call.number, TransferState.DONE))
            return
        first = call.pieces[0]
        local = first.local_offset + offset
        if not call.push:
            self._memory.view[local] ^= 0xFF
            self._ready.append(Outcome(call.number, TransferState.DONE))
            return
        call.corrupting = True
        other = self._offset_of_another_byte(self._memory.view[local])
        self._forward(call, [Piece(other, first.remote_offset + offset, 1)])

    def _offset_of_another_byte(self, value: int) -> int:
        assert self._memory is not None
        for offset, found in enumerate(self._memory.view):
            if found != value:
                return offset
        raise ValueError(f"all of the memory holds {value}: there is nothing to corrupt with")

    def _swapped(self, pieces: Sequence[Piece]) -> list[Piece]:
        blocks = _in_blocks(pieces, self.address.block_bytes)
        if len(blocks) < 2 or blocks[0].length_bytes != blocks[1].length_bytes:
            raise ValueError("a SWAPPED fault needs two blocks of one length")
        one, two, *rest = blocks
        swapped_one = msgspec.structs.replace(one, remote_offset=two.remote_offset)
        swapped_two = msgspec.structs.replace(two, remote_offset=one.remote_offset)
        return [swapped_one, swapped_two, *rest]


class _Call:
    """One write() or read() of the wrapper's user."""

    def __init__(
        self,
        number: int,
        push: bool,
        node: str,
        boot_id: str,
        pieces: Sequence[Piece],
        deadline_s: float,
    ) -> None:
        self.number = number
        self.push = push
        self.node = node
        self.boot_id = boot_id
        self.pieces = pieces
        self.deadline_s = deadline_s
        self.fault: Fault | None = None
        self.corrupting = False


def _in_blocks(pieces: Sequence[Piece], block_bytes: int) -> list[Piece]:
    return [
        Piece(
            piece.local_offset + start,
            piece.remote_offset + start,
            min(block_bytes, piece.length_bytes - start),
        )
        for piece in pieces
        for start in range(0, piece.length_bytes, block_bytes)
    ]
