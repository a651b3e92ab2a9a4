"""One call of step(): what it wants done, and the moves of a request that keep counts right."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from evctl.core.effects import AnyEffect, Cancel, Dispatch, Explanation, Fail, Notice, RefDelta
from evctl.core.kv import FetchPiece
from evctl.core.split import Phase
from evctl.policy import ahead, moves
from evctl.policy.cluster import ClusterState, NodeRecord, RequestRecord, Stage
from evctl.policy.directory import Match, Piece
from evctl.policy.directory import RefDelta as Delta
from evctl.policy.fetches import plan
from evctl.policy.planner.meter import STAGES
from evctl.policy.router import choose


class StepResult(msgspec.Struct, frozen=True):
    """effects: in the order to carry them out. next_tick_s: when a Tick matters at the latest,
    None while nothing waits for time. failure: what the planner raised, for the log; the effects
    have a decision that says so, and all that the event led to."""

    effects: tuple[AnyEffect, ...]
    explanations: tuple[Explanation, ...]
    next_tick_s: float | None
    failure: Exception | None = None


class Turn:
    """The state with what this step collects. Handlers change requests through it only."""

    def __init__(self, state: ClusterState, now_s: float) -> None:
        self.state = state
        self.now_s = now_s
        self.effects: list[AnyEffect] = []
        self.explanations: list[Explanation] = []
        self.dropped: set[str] = set()
        """Requests that this step ended without success."""
        self.failure: Exception | None = None

    def do(self, effect: AnyEffect) -> None:
        self.effects.append(effect)

    def notice(self, level: str, what: str, node: str = "", request_id: str = "") -> None:
        self.do(Notice(level, what, node, request_id))

    # ------------------------------------------------------------ a request's places

    def place(self, record: RequestRecord, decision: str, match: Match | None = None) -> bool:
        """Choose nodes for a request that has none, and send it. False if no node takes it.

        match: where its blocks are, when that was just asked.
        """
        directory = self.state.directory
        match = match or directory.match(record.keys, record.tenant, record.branch)
        choice = choose(self.state, record, match, self.now_s)
        if choice is None:
            return False
        chosen = choice.chosen
        record.prefill_node, record.decode_node = chosen.node, choice.decode_node
        record.uncached_tokens = record.remaining_tokens = chosen.uncached_tokens
        record.to_restore_tokens, record.appended = chosen.restored_tokens, choice.appended
        self._enter(record, match.coverage.get(record.prefill_node, 0))
        pieces = self._borrow(record, choice.wanted) if choice.wanted else ()
        self.explanations.append(choice.explain(record.request_id, decision))
        nodes = record.prefill_node, record.decode_node
        self.do(Dispatch(record.request_id, *nodes, pieces, chosen.predicted()))
        return True

    def unplace(self, record: RequestRecord) -> None:
        """The request is on no node (any more)."""
        self.state.uncount(record)
        self.set_stage(record, Stage.DECODE)
        for name in record.nodes:
            self.state.nodes[name].requests.pop(record.request_id, None)
        self.state.planner.meter.left(record.request_id, self.now_s)
        for phase in Phase:
            self.state.directory.failed(record.request_id, phase)
        record.recalling = False

    def fetch_over(self, record: RequestRecord) -> None:
        """Nothing is fetched for the request (any more): what it leased is free."""
        if record.fetch_blocks:
            record.fetch_blocks = record.fetch_behind_blocks = 0
            self.state.recount(record)
            self.state.directory.lease_ended(record.request_id, Phase.PREFILL)

    def set_stage(self, record: RequestRecord, stage: Stage) -> None:
        """Move a request on. What it promised is computed, or never will be, once it leaves
        prefill; its prefill node knows it no more once another node decodes it."""
        state, before = self.state, record.stage
        if before is stage:
            return
        record.stage = stage
        state.planner.meter.moved(record.request_id, STAGES[stage], self.now_s)
        if before is Stage.WAITING:
            state.waiting -= 1
            self.fetch_over(record)
        if before in (Stage.WAITING, Stage.PREFILL) and not record.awaits_prefill:
            record.remaining_tokens = 0
            record.recalling = False  # it has begun; the engine's denial is still to come
            state.directory.release(record.request_id)
        if stage is Stage.DECODE and record.prefill_node != record.decode_node:
            self.prefill_of(record).requests.pop(record.request_id, None)
        state.recount(record)

    def decode_in_place(self, record: RequestRecord) -> None:
        """The decode node will not get it: it stays where it is prefilled."""
        if record.decode_node != record.prefill_node:
            self.state.nodes[record.decode_node].requests.pop(record.request_id, None)
            record.decode_node = record.prefill_node
            self.state.directory.failed(record.request_id, Phase.DECODE)
            self.state.directory.place(record.request_id, Phase.DECODE, record.prefill_node)
            self.state.recount(record)

    def end(self, record: RequestRecord, *, completed: bool = False) -> None:
        """The request is over, however it ended; the caller counts how. completed: its client
        has the whole answer, or wants no more of it."""
        self.unplace(record)
        del self.state.requests[record.request_id]
        self.state.directory.closed(record.request_id, self.now_s, completed=completed)
        ahead.on_closed(self.state, record, self.now_s)
        self._meter_end(record)

    def fail(self, record: RequestRecord, reason: str, *, cancel: bool = True) -> None:
        """End a request with an error; cancel: stop what its nodes may still do for it."""
        nodes = record.nodes
        self.end(record)
        self.dropped.add(record.request_id)
        self.state.tallies.failed += 1
        self.do(Fail(record.request_id, reason))
        if cancel:
            self.do(Cancel(record.request_id, nodes))

    def prefill_of(self, record: RequestRecord) -> NodeRecord:
        return self.state.nodes[record.prefill_node]

    # ------------------------------------------------------------ after every event

    def settle(self) -> None:
        """Announce nodes whose old work has ended, the change of the split that ends with that,
        phases that lost or regained a node, and blocks that changed class."""
        state, moving, settled = self.state, False, False
        changed = state.unsettled is None
        if state.unsettled is None:
            nodes = state.nodes.values()
            state.unsettled = tuple(n for n in nodes if n.settled_role is not n.role)
        for node in state.unsettled:
            if self._old_work(node):
                moving = True
                continue
            node.settled_role, settled = node.role, True
            if node.alive:
                self.notice("info", f"settled as {node.role}", node.name)
        if settled:
            state.nodes_changed()  # one in warm-up takes work of both phases again
        self.effects.extend(moves.follow(state, self.now_s, self.dropped))
        state.planner.watch(self.now_s, unsettled=moving, settled=settled)
        if changed:
            self._watch_phases()
        self.tell(state.directory.deltas())

    def tell(self, deltas: Iterable[Delta]) -> None:
        """Send blocks' new classes to their nodes."""
        for delta in deltas:
            self.do(RefDelta(delta.node, delta.epoch, delta.block_class, delta.keys))

    def _meter_end(self, record: RequestRecord) -> None:
        """The branch pauses from now on, if this was the last of its requests under way."""
        meter = self.state.planner.meter
        meter.ended(record.request_id)
        if not record.branch:
            return
        key = (record.tenant, record.branch)
        branch = self.state.directory.ledger.branches.get(key)
        if branch is None:
            meter.forget(key)
        elif not branch.open:
            meter.pauses(key, self.now_s)

    def _old_work(self, node: NodeRecord) -> bool:
        """Whether moves.old_work has any, from the sums."""
        load = node.load
        left = load.prefills if node.settled_role.phase is Phase.PREFILL else load.decodes
        return node.alive and bool(left)

    def _watch_phases(self) -> None:
        state = self.state
        covered = {node.role.phase for node in state.nodes.values() if node.alive}
        uncovered = tuple(phase for phase in Phase if covered and phase not in covered)
        if state.uncovered is None:
            state.uncovered = () if len(covered) == len(Phase) else None
            return
        for phase in Phase:
            name = "prefill" if phase is Phase.PREFILL else "decode"
            if phase in uncovered and phase not in state.uncovered:
                what = f"no node is left for {name}: the others serve both phases"
                self.notice("warn", what)
            elif phase in state.uncovered and phase in covered:
                self.notice("info", f"a node serves {name} again")
        state.uncovered = uncovered

    def _borrow(self, record: RequestRecord, wanted: tuple[Piece, ...]) -> tuple[FetchPiece, ...]:
        """Plan the fetch of what the prefill node lacks. The blocks are kept at the peers that
        are asked first; the others are for when those fail."""
        state, name = self.state, record.prefill_node
        record.fetch_behind_blocks = state.nodes[name].load.fetch_blocks
        pieces = plan(state, wanted)
        for piece in pieces:
            record.fetch_blocks += piece.end - piece.start
            state.directory.lease(
                record.request_id, Phase.PREFILL, piece.nodes[0], piece.start, piece.end
            )
        state.recount(record)
        return pieces

    def _enter(self, record: RequestRecord, held_blocks: int) -> None:
        """held_blocks: leading ones that its prefill node has stored."""
        state = self.state
        record.stage = Stage.WAITING
        record.restored_tokens = 0
        state.waiting += 1
        state.planner.meter.entered(record.request_id, self.now_s)
        for name in record.nodes:
            state.nodes[name].requests[record.request_id] = None
        state.count(record)
        if not record.appended:
            # What a decode node appends, it holds as a decode node: the branch's references for
            # prefill stay where its next long prompt will look for the KV.
            state.directory.place(record.request_id, Phase.PREFILL, record.prefill_node)
        state.directory.place(record.request_id, Phase.DECODE, record.decode_node)
        state.directory.promise(record.request_id, record.prefill_node, held_blocks)
