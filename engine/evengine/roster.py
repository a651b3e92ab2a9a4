"""All requests of a node by stage. A request is in exactly one stage, and moves only here."""

from __future__ import annotations

from collections import deque

from evctl.wire.messages import Load
from evengine.blockstore import BlockStore
from evengine.request import Sequence, Stage


class Roster:
    """waiting: first come, first served. prefilling, decoding: in the order they began."""

    def __init__(self) -> None:
        self.waiting: deque[Sequence] = deque()
        self.prefilling: list[Sequence] = []
        self.decoding: list[Sequence] = []
        self._by_id: dict[str, Sequence] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._by_id

    def __getitem__(self, request_id: str) -> Sequence:
        return self._by_id[request_id]

    def get(self, request_id: str) -> Sequence | None:
        return self._by_id.get(request_id)

    @property
    def running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    def enter(self, seq: Sequence, stage: Stage) -> None:
        """A request that is new here. Its id must not be in use."""
        if seq.request_id in self._by_id:
            raise ValueError(f"request {seq.request_id} is here already")
        self._by_id[seq.request_id] = seq
        self._join(seq, stage)

    def move(self, seq: Sequence, stage: Stage, *, first: bool = False) -> None:
        """Change a request's stage; first: to the front of the queue."""
        self._quit(seq)
        self._join(seq, stage, first=first)

    def remove(self, seq: Sequence) -> None:
        self._quit(seq)
        del self._by_id[seq.request_id]
        seq.stage = Stage.DONE

    def check_integrity(self) -> list[str]:
        """Requests that are in no stage, in two, or in another than they say."""
        lists = {
            Stage.WAITING: list(self.waiting),
            Stage.PREFILL: self.prefilling,
            Stage.DECODE: self.decoding,
        }
        problems = []
        for request_id, seq in self._by_id.items():
            for stage, members in lists.items():
                if members.count(seq) != (seq.stage is stage):
                    problems.append(f"request {request_id} is {seq.stage}, but not in its list")
        listed = sum(map(len, lists.values()))
        handing = sum(seq.stage is Stage.HANDING_OVER for seq in self._by_id.values())
        if listed + handing != len(self._by_id):
            problems.append(f"{len(self._by_id)} requests, but {listed + handing} in a stage")
        return problems

    def _join(self, seq: Sequence, stage: Stage, *, first: bool = False) -> None:
        seq.stage = stage
        if stage is Stage.WAITING and first:
            self.waiting.appendleft(seq)
        elif stage is Stage.WAITING:
            self.waiting.append(seq)
        elif stage is Stage.PREFILL:
            self.prefilling.append(seq)
        elif stage is Stage.DECODE:
            self.decoding.append(seq)

    def _quit(self, seq: Sequence) -> None:
        if seq.stage is Stage.WAITING:
            self.waiting.remove(seq)
        elif seq.stage is Stage.PREFILL:
            self.prefilling.remove(seq)
        elif seq.stage is Stage.DECODE:
            self.decoding.remove(seq)


def load_of(roster: Roster, store: BlockStore, arrivals: int) -> Load:
    """What a node is busy with. Preempted requests count as decodes that wait."""
    l1, l2 = store.l1, store.pool
    preempted = sum(bool(seq.output) for seq in roster.waiting)
    return Load(
        waiting_prefill=len(roster.waiting) - preempted,
        running_prefill=len(roster.prefilling),
        waiting_decode=preempted + arrivals,
        running_decode=len(roster.decoding),
        l1_used_blocks=l1.used_blocks,
        l1_cached_blocks=l1.cached_blocks,
        l1_total_blocks=l1.total_blocks,
        l2_used_blocks=l2.used_blocks if l2 else 0,
        l2_total_blocks=l2.total_blocks if l2 else 0,
        prefill_tokens_left=sum(
            seq.uncomputed_tokens for seq in [*roster.waiting, *roster.prefilling]
        ),
    )
