"""Effects of the reducer, done: to engines over the hub, to clients over their streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evctl.control.engines import Hub
from evctl.control.eventlog import EventLog
from evctl.control.streams import Streams
from evctl.core.effects import (
    AnyEffect,
    Cancel,
    Decided,
    Dispatch,
    Fail,
    FetchAhead,
    MoveEnded,
    Notice,
    Recall,
    RefDelta,
    Reject,
    SetRole,
    SignalTaken,
    SplitWritten,
    TransitionEnded,
    WarmUp,
)
from evctl.core.events import DispatchFailed, Event, FetchAheadEnded, FromNode
from evctl.core.transitions import LOST
from evctl.policy.state import ClusterState
from evctl.wire.codec import WireError
from evctl.wire.messages import CancelRequest, RecallRequest, Reclassify, StartRequest
from evctl.wire.messages import FetchAhead as FetchAheadMessage
from evctl.wire.messages import WarmUp as WarmUpMessage

DEADLINE_S = 600.0


class Dispatcher:
    """The writer's carry_out. What cannot be sent comes back as an event, never as an error."""

    def __init__(
        self,
        state: ClusterState,
        epoch: int,
        hub: Hub,
        streams: Streams,
        events: EventLog,
        feed: Callable[[Event], None],
    ) -> None:
        self._state = state
        self._epoch = epoch
        self._hub = hub
        self._streams = streams
        self._events = events
        self._feed = feed
        self.on_signal: Callable[[SignalTaken], None] = lambda _: None
        self._actions: dict[type, Callable[[Any], None]] = {
            Dispatch: self._dispatch,
            Recall: lambda e: self._hub.reach(e.node, RecallRequest(e.request_id)),
            Cancel: self._cancel,
            Reject: self._reject,
            Fail: self._fail,
            SetRole: lambda e: self._events.add("info", f"role {e.role}", e.node),
            FetchAhead: self._fetch_ahead,
            WarmUp: lambda e: self._hub.reach(e.node, WarmUpMessage(e.on)),
            RefDelta: lambda e: self._hub.reach(e.node, Reclassify(e.epoch, e.ref_class, e.keys)),
            SignalTaken: lambda e: self.on_signal(e),
            SplitWritten: lambda e: self._events.add_write(e.write),
            MoveEnded: self._move_ended,
            TransitionEnded: lambda e: self._events.add_transition(e.transition),
            Decided: lambda e: None,  # it is kept in the state; Notice and SplitWritten tell it
            Notice: lambda e: self._events.add(e.level, e.what, e.node, e.request_id),
        }

    def carry_out(self, effect: AnyEffect) -> None:
        self._actions[type(effect)](effect)

    def _dispatch(self, effect: Dispatch) -> None:
        stream = self._streams.get(effect.request_id)
        if stream is None:
            return
        self._streams.dispatched(effect.request_id, (effect.prefill_node, effect.decode_node))
        request = stream.request
        start = StartRequest(
            request_id=request.request_id,
            tenant=request.tenant,
            branch=request.branch.branch if request.branch else "",
            generation=self._state.generation,
            epoch=self._epoch,
            prompt=request.prompt,
            root_key=request.root_key,
            block_keys=request.block_keys,
            sampling=request.sampling,
            prefill_node=effect.prefill_node,
            decode_node=effect.decode_node,
            deadline_s=DEADLINE_S,
            fetch=effect.fetch,
            waited_s=self._streams.waited_s(request.request_id),
        )
        try:
            sent = self._hub.send(effect.prefill_node, start)
        except WireError as error:
            self._feed(_failed(effect, error.code, error.why, retry=False))
            return
        if not sent:
            self._feed(_failed(effect, "EV-1341", "it cannot be reached now", retry=True))

    def _fetch_ahead(self, effect: FetchAhead) -> None:
        message = FetchAheadMessage(effect.ticket, effect.root_key, effect.keys, effect.pieces)
        try:
            sent = self._hub.send(effect.node, message)
        except WireError:
            sent = False
        if not sent:
            missed = sum(piece.end - piece.start for piece in effect.pieces)
            ended = FetchAheadEnded(effect.ticket, (), 0.0, missed, "unreachable")
            boot_id = self._state.nodes[effect.node].boot_id
            self._feed(FromNode(effect.node, boot_id, ended))

    def _move_ended(self, effect: MoveEnded) -> None:
        """A move that settled is told by a Notice and with its change."""
        if effect.move.outcome == LOST:
            what = f"it was lost in change {effect.number}, before it had settled"
            self._events.add("warn", what, effect.move.node)

    def _cancel(self, effect: Cancel) -> None:
        for node in effect.nodes:
            self._hub.reach(node, CancelRequest(effect.request_id))

    def _reject(self, effect: Reject) -> None:
        self._streams.reject(effect.request_id, effect.reason, effect.retry_after_s)

    def _fail(self, effect: Fail) -> None:
        self._events.add("fail", f"request failed: {effect.reason}", "", effect.request_id)
        self._streams.fail(effect.request_id, effect.reason)


def _failed(effect: Dispatch, code: str, reason: str, *, retry: bool) -> DispatchFailed:
    return DispatchFailed(effect.request_id, effect.prefill_node, code, reason, retry)
