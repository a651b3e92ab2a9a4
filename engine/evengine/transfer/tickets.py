"""Tickets of asynchronous copies: each ends exactly once, by its deadline at the latest."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Sequence

from evengine.ports import Clock, Digest, Outcome, Piece, TransferState
from evengine.transfer.protocol import MAX_PEER_PIECES

Life = tuple[str, str]
"""(node, boot id): one life of a peer."""


class Ticket:
    """One call of write() or read(). `started` and `stop` are guarded by the book's lock.

    deadline_s: on the injected clock. stop: why a started copy should end early. parts_left:
    the backend's own count. digest: of which bytes the backend may fill in `checksums`.
    """

    __slots__ = (
        "checksums",
        "deadline_s",
        "digest",
        "life",
        "number",
        "parts_left",
        "pieces",
        "push",
        "started",
        "stop",
    )

    def __init__(
        self,
        number: int,
        life: Life,
        pieces: Sequence[Piece],
        push: bool,
        deadline_s: float,
        digest: Digest | None,
    ) -> None:
        self.number = number
        self.life = life
        self.pieces = pieces
        self.push = push
        self.deadline_s = deadline_s
        self.started = False
        self.stop = ""
        self.parts_left = 1
        self.digest = digest
        self.checksums: list[int] = []


class TicketBook:
    """All tickets that have not ended, and outcomes not yet drained. Any thread may call.

    stoppable: whether a started copy can be stopped. If so, it ends when its worker says it
    has stopped, and settled; if not, it ends at once and is not settled.
    """

    def __init__(self, clock: Clock, *, stoppable: bool) -> None:
        self._clock = clock
        self._stoppable = stoppable
        self._lock = threading.Lock()
        self._live: dict[int, Ticket] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._peer_pieces: dict[Life, int] = {}
        self._outcomes: list[Outcome] = []
        self._next = 1
        self.on_end: Callable[[], None] = lambda: None
        """Called on any thread when an outcome can be drained; must not block."""

    def open(
        self,
        life: Life,
        pieces: Sequence[Piece],
        push: bool,
        deadline_s: float,
        digest: Digest | None = None,
    ) -> Ticket | int:
        """A live ticket; or the number of one that has failed since the peer's queue is full.

        deadline_s: seconds from now.
        """
        with self._lock:
            number = self._number()
            held = self._peer_pieces.get(life, 0)
            if held + len(pieces) > MAX_PEER_PIECES:
                reason = f"queue full: {held} pieces for {life[0]} of at most {MAX_PEER_PIECES}"
                self._outcomes.append(Outcome(number, TransferState.FAILED, reason))
                return number
            end_s = self._clock.now_s() + deadline_s
            ticket = Ticket(number, life, pieces, push, end_s, digest)
            self._live[number] = ticket
            self._peer_pieces[life] = held + len(pieces)
            heapq.heappush(self._deadlines, (end_s, number))
            return ticket

    def ended(self, state: TransferState, reason: str = "") -> int:
        """The number of a ticket that ends with this very call."""
        with self._lock:
            number = self._number()
            self._outcomes.append(Outcome(number, state, reason))
            return number

    def start(self, ticket: Ticket) -> bool:
        """From now on bytes may move. False if the ticket has ended or must stop."""
        with self._lock:
            if ticket.number not in self._live or ticket.stop:
                return False
            ticket.started = True
            return True

    def live(self, ticket: Ticket) -> bool:
        with self._lock:
            return ticket.number in self._live

    def end(
        self, ticket: Ticket, state: TransferState, reason: str = "", settled: bool = True
    ) -> None:
        """End a ticket; the first end of each counts."""
        with self._lock:
            self._end(ticket, state, reason, settled)

    def fail_life(self, life: Life, reason: str, *, waiting_only: bool = False) -> None:
        """Fail all tickets of a peer's life, or only those that have not started."""

        def concerned(ticket: Ticket) -> bool:
            return ticket.life == life and not (waiting_only and ticket.started)

        self._give_up(concerned, reason)

    def fail_all(self, reason: str) -> None:
        self._give_up(lambda ticket: True, reason)

    def drain(self) -> list[Outcome]:
        """Expire what is past its deadline, then hand out all outcomes."""
        with self._lock:
            now_s = self._clock.now_s()
            while self._deadlines and self._deadlines[0][0] <= now_s:
                ticket = self._live.get(heapq.heappop(self._deadlines)[1])
                if ticket is not None:
                    self._abandon(ticket, "deadline passed")
            outcomes, self._outcomes = self._outcomes, []
            return outcomes

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _give_up(self, concerned: Callable[[Ticket], bool], reason: str) -> None:
        with self._lock:
            for ticket in [one for one in self._live.values() if concerned(one)]:
                self._abandon(ticket, reason)

    def _abandon(self, ticket: Ticket, reason: str) -> None:
        if ticket.started and self._stoppable:
            ticket.stop = ticket.stop or reason
            return
        self._end(ticket, TransferState.FAILED, reason, settled=not ticket.started)

    def _end(self, ticket: Ticket, state: TransferState, reason: str, settled: bool) -> None:
        if self._live.pop(ticket.number, None) is None:
            return
        left = self._peer_pieces[ticket.life] - len(ticket.pieces)
        if left:
            self._peer_pieces[ticket.life] = left
        else:
            del self._peer_pieces[ticket.life]
        sums = ticket.checksums if state is TransferState.DONE else ()
        self._outcomes.append(Outcome(ticket.number, state, reason, settled, sums))
        self.on_end()
