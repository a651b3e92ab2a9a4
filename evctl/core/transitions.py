"""A change of the split from its decision to the end of the last old work: one record each."""

from __future__ import annotations

from typing import Final

import msgspec

SETTLED: Final = "settled"
SUPERSEDED: Final = "superseded"
LOST: Final = "lost"


class NodeMove(msgspec.Struct, frozen=True):
    """One node's part. Times are seconds on the reducer's clock.

    cordoned_s: no more work of the old role is sent there. flipped_s: what had been sent and not
    begun has gone elsewhere, so that the new role's work has nothing in front of it but what runs;
    a decode node keeps what is being prefilled for it, and flips at once. settled_s: the last
    request of the old role has ended there. running, queued: of the old role when it was cordoned;
    finished: those that ended there; requeued: those that went elsewhere. (Cancelled and failed
    ones are neither.) outcome: "" while it is under way, then settled, superseded or lost.
    """

    node: str
    before: str
    after: str
    cordoned_s: float
    running: int
    queued: int
    flipped_s: float | None = None
    settled_s: float | None = None
    finished: int = 0
    requeued: int = 0
    outcome: str = ""

    @property
    def to_flip_s(self) -> float | None:
        """From the cordon until the node had nothing unbegun of its old role."""
        return None if self.flipped_s is None else self.flipped_s - self.cordoned_s

    @property
    def whole_s(self) -> float | None:
        """From the cordon until the last running request of the old role had ended."""
        return None if self.settled_s is None else self.settled_s - self.cordoned_s


class Transition(msgspec.Struct, frozen=True):
    """number rises by one with each change of a cluster, over restarts too. generation: that of
    the write which began it. before, after: the splits aimed at. begun_s, ended_s: seconds on the
    reducer's clock. superseded_by: the number of the change that took its place, 0 for none.

    outcome: "" while it is open; superseded when another one took over what was unfinished; lost
    when a node died before it had settled; else settled.
    """

    number: int
    generation: int
    by: str
    reason: str
    before: str
    after: str
    begun_s: float
    moves: tuple[NodeMove, ...]
    outcome: str = ""
    ended_s: float | None = None
    superseded_by: int = 0

    def told(self) -> str:
        """As one line of the event log."""
        flips = [move.to_flip_s for move in self.moves if move.to_flip_s is not None]
        wholes = [move.whole_s for move in self.moves if move.whole_s is not None]
        times = [f"flipped in {_short(max(flips))}"] if flips else []
        times += [f"settled in {_short(max(wholes))}"] if wholes else []
        finished = sum(move.finished for move in self.moves)
        requeued = sum(move.requeued for move in self.moves)
        times.append(f"{finished} finished in place, {requeued} requeued")
        outcome = self.outcome
        if self.superseded_by:
            outcome += f" by change {self.superseded_by}"
        what = f"change {self.number}, {self.before} -> {self.after}"
        return f"{what}: {outcome}, {', '.join(times)}"


def _short(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
