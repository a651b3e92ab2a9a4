"""Why: of a request, a node, the split, a block. Reads everything, changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from evctl.control.eventlog import EventLog
from evctl.control.kv_board import KvBoard
from evctl.control.recollect import Recollection
from evctl.control.records import Records
from evctl.core.errors import NotFoundError
from evctl.core.kv_status import BlockCopy
from evctl.core.planning import PlanDecision
from evctl.core.status import EventRecord
from evctl.core.transitions import NodeMove
from evctl.core.why import (
    BlockWhy,
    CopyWhy,
    NodeRequest,
    NodeWhy,
    PlanOutcome,
    RequestWhy,
    SplitWhy,
)
from evctl.core.workload import attention_pairs
from evctl.policy.planning import plan_now
from evctl.policy.state import ClusterState, NodeRecord, RequestRecord, Stage

MEMORY: Final = "memory"
MOST_REQUESTS: Final = 100
"""Of a node, that are listed."""
MOST_WRITES: Final = 20
_WHEN: Final = (
    "first of all: nobody refers to it",
    "before any block of a live branch: only silent branches refer to it",
    "last: live branches refer to it",
)
"""By class of the copy; within a class, what was used longest ago goes first, and of a path its
end (design, section 3)."""


class WhyBoard:
    """clock: that of the state's times; wall_s: seconds since the epoch."""

    def __init__(
        self,
        state: ClusterState,
        records: Records,
        events: EventLog,
        kv: KvBoard,
        recollection: Recollection,
        clock: Callable[[], float],
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._state = state
        self._stories = records.stories
        self._outcomes = records.outcomes
        self._events = events
        self._kv = kv
        self._recollection = recollection
        self._clock = clock
        self._wall_s = wall_s

    async def request(self, request_id: str) -> RequestWhy:
        """From memory, else from the journals of this life and of earlier ones.

        Raises NotFoundError (EV-1363) for one that neither knows, EvctlError (EV-1365) when
        looking took too long.
        """
        found = self._stories.told(request_id, self._to_wall_s(), MEMORY)
        if found is None:
            found = await self._recollection.find(request_id)
        if found is None:
            raise NotFoundError(
                what=f"nothing is known of request {request_id}",
                why="neither memory nor the journals that are kept name it",
                next_step="take the id from a response's id or X-Request-Id, or from: evctl logs",
                code="EV-1363",
            )
        return found

    def node(self, name: str) -> NodeWhy:
        """Raises NotFoundError (EV-1366)."""
        node = self._state.nodes.get(name)
        if node is None:
            raise NotFoundError(
                what=f"no node is named {name}",
                why=f"nodes are {', '.join(self._state.nodes)}",
                next_step="evctl status lists them",
                code="EV-1366",
            )
        last = self._last_write_of(name)
        records = self._state.requests_of(node)
        prefills = self._state.prefills_of(node)
        return NodeWhy(
            node=name,
            state=("late" if node.late else "ok") if node.alive else "lost",
            role=node.role.value,
            settled_role=node.settled_role.value,
            how=_how(node, last),
            last=last,
            move=self._move_of(name),
            model=node.model_source,
            running_s=self._seconds(node, prefills, Stage.PREFILL),
            queued_s=self._seconds(node, prefills, Stage.WAITING),
            decodes=len(self._state.decodes_of(node)),
            requests=tuple(self._request_there(record) for record in records[:MOST_REQUESTS]),
            requests_total=len(records),
            warming=node.warming,
        )

    def split(self, number: int | None = None, last: int = 3) -> SplitWhy:
        """The last decisions of the planner, or the one of that number.

        Raises NotFoundError (EV-1367) for a number that is not (or no longer) known.
        """
        state = self._state
        decisions = tuple(state.planner.decisions)
        if number is not None:
            decisions = tuple(one for one in decisions if one.number == number)
            if not decisions:
                raise NotFoundError(
                    what=f"no decision {number} of the planner is known",
                    why="the last ones of this life of the control plane are kept",
                    next_step="evctl why split shows the last ones",
                    code="EV-1367",
                )
        shown = decisions[-last:]
        numbers = {one.number for one in shown}
        to_wall_s = self._to_wall_s()
        records = self._events.since(0)
        told = [one for one in records if one.write is not None or one.transition is not None]
        held_s = state.held_until_s
        return SplitWhy(
            split=state.settled_split,
            target_split=str(state.split),
            mode=state.mode,
            held_by=state.held_by,
            hold_reason=state.hold_reason,
            held_until_s=None if held_s is None else held_s + to_wall_s,
            decisions=tuple(on_the_wall(one, to_wall_s) for one in shown),
            outcomes=tuple(
                _outcome_on_the_wall(one, to_wall_s)
                for one in self._outcomes.all_plans()
                if one.number in numbers
            ),
            writes=tuple(told[-MOST_WRITES:]),
        )

    def plan(self) -> PlanDecision:
        """What the planner would decide now. Its moments are seconds since the epoch."""
        return on_the_wall(plan_now(self._state, self._clock()), self._to_wall_s())

    async def block(self, key: str) -> BlockWhy:
        """Raises NotFoundError (EV-1355), or UsageError (EV-1356) when several keys begin so."""
        found = await self._kv.blocks.find(key)
        return BlockWhy(found, tuple(_copy_why(copy) for copy in found.copies))

    # ------------------------------------------------------------ inside

    def _to_wall_s(self) -> float:
        return self._wall_s() - self._clock()

    def _last_write_of(self, name: str) -> EventRecord | None:
        for record in reversed(self._events.since(0)):
            if record.write and any(move.node == name for move in record.write.moves):
                return record
        return None

    def _move_of(self, name: str) -> NodeMove | None:
        change = self._state.transitions.open
        parts = change.parts if change is not None else []
        return next((part.move for part in parts if part.move.node == name), None)

    def _seconds(self, node: NodeRecord, prefills: list[RequestRecord], stage: Stage) -> float:
        """Predicted, of what is left of the prefills in that stage."""
        total_s = 0.0
        for record in prefills:
            if record.stage is stage:
                left = record.remaining_tokens
                pairs = attention_pairs(left, record.prompt_tokens - left)
                restored = record.to_restore_tokens if record.waits else 0
                total_s += self._state.prefill_s(node, left, pairs, restored)
        return total_s

    def _request_there(self, record: RequestRecord) -> NodeRequest:
        story = self._stories.get(record.request_id)
        placed_s = story.placed_s if story is not None else None
        return NodeRequest(
            request_id=record.request_id,
            stage=record.stage.value,
            since_s=None if placed_s is None else self._clock() - placed_s,
            uncached_tokens=record.uncached_tokens,
            remaining_tokens=record.remaining_tokens,
            predicted=story.predicted if story is not None else None,
        )


def on_the_wall(decision: PlanDecision, to_wall_s: float) -> PlanDecision:
    """With its moments in seconds since the epoch."""
    slices = tuple(
        msgspec.structs.replace(one, start_s=one.start_s + to_wall_s, end_s=one.end_s + to_wall_s)
        for one in decision.slices
    )
    return msgspec.structs.replace(decision, time_s=decision.time_s + to_wall_s, slices=slices)


def _outcome_on_the_wall(outcome: PlanOutcome, to_wall_s: float) -> PlanOutcome:
    ended_s = None if outcome.ended_s is None else outcome.ended_s + to_wall_s
    return msgspec.structs.replace(outcome, begun_s=outcome.begun_s + to_wall_s, ended_s=ended_s)


def _how(node: NodeRecord, last: EventRecord | None) -> str:
    if last is None or last.write is None:
        return f"{node.role.value} by the configuration, or by a write that is no longer known"
    write = last.write
    why = f": {write.reason}" if write.reason else ""
    return f"{write.before} -> {write.after} by {write.by}{why}"


def _copy_why(copy: BlockCopy) -> CopyWhy:
    evicted = _WHEN[copy.block_class]
    if copy.leases:
        evicted = f"not now: {copy.leases} transfers read it; then {evicted}"
    return CopyWhy(copy.node, copy.tiers, evicted)
