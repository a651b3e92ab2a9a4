"""What is known of changes of the split: the one under way, and the last that ended."""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from evctl.core.transitions import NodeMove, Transition

MAX_ENDED: Final = 200


class OpenMove(msgspec.Struct):
    """A NodeMove under way. life: of its node when it was cordoned, "" of a node that was lost by
    then. left: requests of the old role that are still there (an ordered set). seen: changes of
    its node's load when that was noted."""

    move: NodeMove
    life: str
    left: dict[str, None]
    seen: int = -1


class OpenTransition(msgspec.Struct):
    """A Transition under way. `head` has no moves: they are in `parts`."""

    head: Transition
    parts: list[OpenMove]

    def so_far(self) -> Transition:
        return msgspec.structs.replace(self.head, moves=tuple(part.move for part in self.parts))


class Transitions:
    """At most one change is open. last: the number of the newest one."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.open: OpenTransition | None = None
        self.ended: deque[Transition] = deque(maxlen=MAX_ENDED)
