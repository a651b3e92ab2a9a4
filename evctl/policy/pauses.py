"""Waiting branches: how long they tend to pause, when to look after them, and what was fetched
ahead for them. Data of the reducer; evctl.policy.ahead decides."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import msgspec

from evctl.core.kv import FetchPiece

MOST_BRANCHES = 65_536
REMEMBERED = 8
"""Pauses of a branch that count."""
LEAST_PAUSES = 2
"""Before that many, a branch has no habit."""
EXPIRES_S = 60.0
"""A fetch ahead that was not heard of for so long is taken for lost."""
_STALE_ALLOWED = 256

BranchKey = tuple[str, str]
"""Tenant and id."""


class Pause(msgspec.Struct):
    """A branch's pauses, and the one that it is in. closed_s: when it began; None while a request
    is under way. wake_s: when the branch is expected; due_s: when to look after it, None where
    nothing is planned. looked: it was looked after too early once. number: of its heap entry."""

    lengths_s: tuple[float, ...] = ()
    closed_s: float | None = None
    root_key: bytes = b""
    wake_s: float = 0.0
    due_s: float | None = None
    looked: bool = False
    number: int = 0

    @property
    def usual_s(self) -> float | None:
        """Median of the last ones, the lower of two; None before there are enough."""
        if len(self.lengths_s) < LEAST_PAUSES:
            return None
        return sorted(self.lengths_s)[(len(self.lengths_s) - 1) // 2]


class Ahead(msgspec.Struct, frozen=True):
    """A fetch under way. behind_blocks: of others at that node when it was sent."""

    node: str
    branch: BranchKey
    pieces: tuple[FetchPiece, ...]
    behind_blocks: int
    sent_s: float

    @property
    def blocks(self) -> int:
        return sum(piece.end - piece.start for piece in self.pieces)


class Outcomes(msgspec.Struct):
    """What became of branches that were due, and of fetches for them."""

    sent: int = 0
    nothing_to_fetch: int = 0
    no_room: int = 0
    """The node's L2 has no room, or too much is under way."""
    done: int = 0
    short: int = 0
    """Ended without all blocks."""
    lost: int = 0
    """Its node was lost, or never told of its end."""
    asked_blocks: int = 0
    fetched_blocks: int = 0


class FetchAheads:
    """Bounded: of the branches used last, MOST_BRANCHES are known; the heap holds little more
    than one entry for each that waits."""

    def __init__(self) -> None:
        self.pauses: OrderedDict[BranchKey, Pause] = OrderedDict()
        self.tickets: dict[str, Ahead] = {}
        """Under way, in order of sending."""
        self.busy: dict[BranchKey, str] = {}
        """Branch -> its ticket."""
        self.lent: dict[str, int] = {}
        """Peer -> blocks that fetches under way ask it for first."""
        self.blocks = 0
        """Of all tickets."""
        self.outcomes = Outcomes()
        self._heap: list[tuple[float, int, BranchKey]] = []
        self._waiting = 0
        self._numbers = 0

    # ------------------------------------------------------------ pauses

    def began(self, key: BranchKey, root_key: bytes, now_s: float) -> Pause:
        """The branch waits from now on."""
        pause = self.pauses.setdefault(key, Pause())
        self._unplan(pause)
        pause.closed_s, pause.root_key, pause.looked = now_s, root_key, False
        self.pauses.move_to_end(key)
        if len(self.pauses) > MOST_BRANCHES:
            self._unplan(self.pauses.popitem(last=False)[1])
        return pause

    def ended(self, key: BranchKey, now_s: float) -> None:
        """The branch's next request has come."""
        pause = self.pauses.get(key)
        if pause is None or pause.closed_s is None:
            return
        self._unplan(pause)
        lengths_s = (*pause.lengths_s, max(0.0, now_s - pause.closed_s))
        pause.lengths_s, pause.closed_s = lengths_s[-REMEMBERED:], None

    def forget(self, key: BranchKey) -> None:
        """The branch ended."""
        pause = self.pauses.pop(key, None)
        if pause is not None:
            self._unplan(pause)

    def plan(self, key: BranchKey, due_s: float) -> None:
        """Look after a waiting branch at that time, once."""
        pause = self.pauses[key]
        self._waiting += pause.due_s is None
        self._numbers += 1
        pause.due_s, pause.number = due_s, self._numbers
        heappush(self._heap, (due_s, pause.number, key))
        if len(self._heap) > 2 * self._waiting + _STALE_ALLOWED:
            self._heap = [entry for entry in self._heap if self._is_planned(entry)]
            heapify(self._heap)

    def due(self, now_s: float) -> Iterator[tuple[BranchKey, Pause]]:
        """Branches whose time has come, and that are planned no more with that."""
        while self._heap and self._heap[0][0] <= now_s:
            entry = heappop(self._heap)
            if self._is_planned(entry):
                pause = self.pauses[entry[2]]
                self._unplan(pause)
                yield entry[2], pause

    def next_s(self) -> float | None:
        """When something is due or expires; None if nothing is."""
        while self._heap and not self._is_planned(self._heap[0]):
            heappop(self._heap)
        first_s = [self._heap[0][0]] if self._heap else []
        oldest = next(iter(self.tickets.values()), None)
        if oldest is not None:
            first_s.append(oldest.sent_s + EXPIRES_S)
        return min(first_s, default=None)

    def _unplan(self, pause: Pause) -> None:
        self._waiting -= pause.due_s is not None
        pause.due_s = None

    def _is_planned(self, entry: tuple[float, int, BranchKey]) -> bool:
        pause = self.pauses.get(entry[2])
        return pause is not None and pause.due_s is not None and pause.number == entry[1]

    # ------------------------------------------------------------ fetches

    def sent(self, ahead: Ahead) -> str:
        """Returns the ticket of a fetch that is sent now."""
        self._numbers += 1
        ticket = f"a{self._numbers}"
        self.tickets[ticket] = ahead
        self.busy[ahead.branch] = ticket
        self.blocks += ahead.blocks
        self.outcomes.sent += 1
        self.outcomes.asked_blocks += ahead.blocks
        for piece in ahead.pieces:
            first = piece.nodes[0]
            self.lent[first] = self.lent.get(first, 0) + piece.end - piece.start
        return ticket

    def over(self, ticket: str) -> Ahead | None:
        """A fetch has ended, however; None if it is not known (any more)."""
        ahead = self.tickets.pop(ticket, None)
        if ahead is None:
            return None
        self.busy.pop(ahead.branch, None)
        self.blocks -= ahead.blocks
        for piece in ahead.pieces:
            first = piece.nodes[0]
            self.lent[first] -= piece.end - piece.start
            if not self.lent[first]:
                del self.lent[first]
        return ahead

    def blocks_to(self, node: str) -> int:
        """Blocks under way to a node."""
        return sum(ahead.blocks for ahead in self.tickets.values() if ahead.node == node)

    # ------------------------------------------------------------ check

    def check(self) -> list[str]:
        """Violations of its own books."""
        problems = []
        planned = {key for key, pause in self.pauses.items() if pause.due_s is not None}
        listed = [entry[2] for entry in self._heap if self._is_planned(entry)]
        if planned != set(listed) or len(listed) != len(planned) or len(planned) != self._waiting:
            problems.append(
                f"{len(planned)} branches are to be looked after, {len(listed)} listed"
            )
        lent: dict[str, int] = {}
        for ahead in self.tickets.values():
            for piece in ahead.pieces:
                lent[piece.nodes[0]] = lent.get(piece.nodes[0], 0) + piece.end - piece.start
        if lent != self.lent or sum(lent.values()) != self.blocks:
            problems.append(f"fetched ahead are {lent}, counted {self.lent}, {self.blocks} in all")
        if {ahead.branch: ticket for ticket, ahead in self.tickets.items()} != self.busy:
            problems.append("branches with a fetch under way and fetches differ")
        return problems
