"""A transfer that misbehaves on schedule: every way in which a real one has been seen to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from evctl.wire.messages import TransferAddress
from evengine.pool.headers import Header, read_header, write_header
from evengine.pool.memory import KvMemory
from evengine.ports import Digest, Outcome, Piece, Transfer, TransferState
from evengine.transfer.faults import ByCall, Fault, FaultKind, Schedule, bad_blocks

__all__ = ["Fault", "FaultKind", "FaultyTransfer", "Note"]


class Note(msgspec.Struct, frozen=True):
    """A faulty call began, or is over. took_place: the fault did, since nothing else failed the
    call first. bad_blocks: of what it reported as DONE (faults.bad_blocks)."""

    call: int
    push: bool
    node: str
    kind: FaultKind
    over: bool
    took_place: bool = False
    bad_blocks: int = 0


class FaultyTransfer:
    """Wraps any Transfer; calls without a scheduled fault pass through.

    schedule: or a mapping from the n-th call of either direction to its fault. memory: this
    node's, needed to damage what a read brought. noted: hears of each faulty call. `injected`
    counts faults that took place.
    """

    def __init__(
        self,
        inner: Transfer,
        schedule: Schedule | Mapping[int, Fault],
        memory: KvMemory | None = None,
        noted: Callable[[Note], None] = lambda note: None,
    ) -> None:
        self.address = inner.address
        self.injected = 0
        self._inner = inner
        self._schedule = ByCall(schedule) if isinstance(schedule, Mapping) else schedule
        self._memory = memory
        self._noted = noted
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

    def read(
        self,
        node: str,
        boot_id: str,
        pieces: Sequence[Piece],
        deadline_s: float,
        digest: Digest | None = None,
    ) -> int:
        """A faulty call has no checksums: they would be those of the bytes before the damage."""
        call = _Call(self._calls, False, node, boot_id, pieces, deadline_s)
        call.digest = digest
        return self._begin(call)

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
                rest, call.rest = call.rest, ()
                self._forward(call, rest)
        for outcome in self._inner.poll():
            self._take(outcome)
        ready, self._ready = self._ready, []
        return ready

    def close(self) -> None:
        self._inner.close()

    def _begin(self, call: _Call) -> int:
        self._calls += 1
        call.fault = fault = self._schedule.fault(call.push, call.pieces)
        if fault is None:
            self._forward(call, call.pieces)
            return call.number
        call.digest = None
        if call.push and fault.kind is FaultKind.WRONG_GENERATION:
            raise ValueError("only what a read brings has a generation to be wrong")
        self._noted(Note(call.number, call.push, call.node, fault.kind, over=False))
        if fault.kind is FaultKind.LATE_WRITE:
            self._later(call, call.pieces)
            self._fail(call, "failed, and will write later", settled=False)
        elif fault.kind is FaultKind.STALL:
            self._later(call, ())
        elif fault.kind is FaultKind.SLOW:
            half = len(call.pieces) // 2
            call.rest = call.pieces[half:]
            self._forward(call, call.pieces[:half])
        elif fault.kind is FaultKind.PARTIAL:
            self._forward(call, call.pieces[: fault.pieces])
        elif fault.kind is FaultKind.SWAPPED:
            self._forward(call, self._swapped(call.pieces))
        elif fault.kind is FaultKind.OTHER_LIFE and call.push:
            self._end(call, Outcome(call.number, TransferState.DONE))
        else:
            self._forward(call, call.pieces)
        return call.number

    def _later(self, call: _Call, rest: Sequence[Piece]) -> None:
        assert call.fault is not None
        call.rest = rest
        self._timed.append((self._polls + call.fault.polls, call))

    def _forward(self, call: _Call, pieces: Sequence[Piece]) -> None:
        inner, whose, until_s = self._inner, (call.node, call.boot_id), call.deadline_s
        if call.push:
            ticket = inner.write(*whose, pieces, until_s)
        else:
            ticket = inner.read(*whose, pieces, until_s, call.digest)
        self._tickets[ticket] = call

    def _fail(self, call: _Call, reason: str, *, settled: bool) -> None:
        self._end(call, Outcome(call.number, TransferState.FAILED, reason, settled))

    def _end(self, call: _Call, outcome: Outcome, *, took_place: bool = True) -> None:
        """Report a faulty call, with its fault or, if something else came first, without."""
        assert call.fault is not None
        self._ready.append(outcome)
        self.injected += took_place
        lies = took_place and outcome.state is TransferState.DONE
        self._noted(
            Note(
                call=call.number,
                push=call.push,
                node=call.node,
                kind=call.fault.kind,
                over=True,
                took_place=took_place,
                bad_blocks=bad_blocks(call.fault, call.pieces) if lies else 0,
            )
        )

    def _take(self, outcome: Outcome) -> None:
        """Turn an outcome of the inner transfer into what the fault makes of it."""
        call = self._tickets.pop(outcome.ticket)
        fault = call.fault
        outcome = msgspec.structs.replace(outcome, ticket=call.number)
        if fault is None:
            self._ready.append(outcome)
        elif fault.kind is FaultKind.LATE_WRITE:
            return  # was reported when the call was made
        elif outcome.state is not TransferState.DONE:
            self._end(call, outcome, took_place=False)
        elif fault.kind is FaultKind.SLOW and call.rest:
            self._later(call, call.rest)
        elif fault.kind is FaultKind.CORRUPT:
            self._corrupt(call, fault.offset)
        elif fault.kind is FaultKind.FAILED_BUT_WRITES:
            self._fail(call, "failed, but has written", settled=False)
        elif fault.kind is FaultKind.PARTIAL:
            settled = fault.report is TransferState.DONE
            self._end(call, Outcome(call.number, fault.report, "partial", settled))
        else:
            if fault.kind is FaultKind.WRONG_GENERATION:
                self._rewrite(call.pieces[0], lambda h: h._replace(generation=h.generation ^ 1))
            elif fault.kind is FaultKind.OTHER_LIFE:
                for piece in call.pieces:
                    self._rewrite(piece, _of_another_life)
            self._end(call, outcome)

    def _rewrite(self, piece: Piece, change: Callable[[Header], Header]) -> None:
        """Another header before the bytes of a block that a read has brought."""
        view, offset = self._view(), piece.local_offset
        write_header(view, offset, change(read_header(view, offset)))

    def _corrupt(self, call: _Call, offset: int) -> None:
        """Invert one byte where it landed; for a write, by sending another byte after it."""
        first = call.pieces[0]
        local = first.local_offset + offset
        if call.corrupting or not call.push:
            if not call.push:
                self._view()[local] ^= 0xFF
            self._end(call, Outcome(call.number, TransferState.DONE))
            return
        call.corrupting = True
        other = self._offset_of_another_byte(self._view()[local])
        self._forward(call, [Piece(other, first.remote_offset + offset, 1)])

    def _offset_of_another_byte(self, value: int) -> int:
        for offset, found in enumerate(self._view()):
            if found != value:
                return offset
        raise ValueError(f"all of the memory holds {value}: there is nothing to corrupt with")

    def _view(self) -> memoryview:
        if self._memory is None:
            raise ValueError("a fault that damages bytes needs the node's memory")
        return self._memory.view

    def _swapped(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The first two pieces, or the first two blocks of a single one."""
        blocks = pieces if len(pieces) > 1 else _in_blocks(pieces, self.address.block_bytes)
        if len(blocks) < 2 or blocks[0].length_bytes != blocks[1].length_bytes:
            raise ValueError("a SWAPPED fault needs two blocks of one length")
        one, two, *rest = blocks
        swapped_one = msgspec.structs.replace(one, remote_offset=two.remote_offset)
        swapped_two = msgspec.structs.replace(two, remote_offset=one.remote_offset)
        return [swapped_one, swapped_two, *rest]


class _Call:
    """One write() or read() of the wrapper's user. rest: what of it has not been forwarded."""

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
        self.rest: Sequence[Piece] = ()
        self.corrupting = False
        self.digest: Digest | None = None


def _of_another_life(header: Header) -> Header:
    return header._replace(boot=bytes(byte ^ 0xFF for byte in header.boot))


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
