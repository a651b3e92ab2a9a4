"""One request's KV on its way to another node."""

from __future__ import annotations

from enum import Enum

import msgspec

from evctl.wire.messages import PeerInfo
from evengine.ports import Slot
from evengine.request import Sequence


class PushLimits(msgspec.Struct, frozen=True):
    """reserve_s: how long to ask for room. transfer_s: deadline of one batch of blocks.
    answer_s: how long a verified or handed-over message may stay unanswered.
    retry_s: pause between two asks. resends: repeats of blocks that arrived wrong."""

    reserve_s: float = 10.0
    transfer_s: float = 10.0
    answer_s: float = 10.0
    retry_s: float = 0.02
    resends: int = 2


class PushState(Enum):
    ASKING = "asking for room"
    PUSHING = "pushing"
    PASSING = "passing on"


class Flight(msgspec.Struct, frozen=True):
    """Blocks of one ticket, and the bytes they are."""

    attempt: int
    blocks: tuple[int, ...]
    bytes_sent: int


class Push:
    """One request on its way to `peer`. Block indices count from the start of the prompt."""

    def __init__(
        self, attempt: int, seq: Sequence, peer: PeerInfo, blocks: int, now_s: float
    ) -> None:
        self.attempt = attempt
        self.seq = seq
        self.peer = peer
        self.blocks = blocks
        self.state = PushState.ASKING
        self.since_s = now_s
        self.ask_again_s: float | None = None
        self.held = 0
        self.slots: tuple[Slot, ...] = ()
        self.generations: tuple[int, ...] = ()
        self.unsent: set[int] = set()
        self.verified: set[int] = set()
        self.in_flight: set[int] = set()
        self.announced: dict[int, int] = {}
        """Runs of blocks that the peer was asked to check: first -> count."""
        self.resends = 0
        self.bytes_sent = 0
        self.settled = True

    @property
    def waits_for_answer(self) -> bool:
        return bool(self.announced) or self.state is PushState.PASSING


def runs_of(blocks: tuple[int, ...]) -> list[tuple[int, list[int]]]:
    """Consecutive runs of sorted block indices: (first, all of the run)."""
    runs: list[tuple[int, list[int]]] = []
    for block in blocks:
        if runs and runs[-1][1][-1] == block - 1:
            runs[-1][1].append(block)
        else:
            runs.append((block, [block]))
    return runs
