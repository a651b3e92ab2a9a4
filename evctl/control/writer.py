"""The one writer: the only place that changes the cluster's state.

Everything runs on one asyncio loop. `feed` is an ordinary call that returns when the event's
effects were carried out, so there is no order of things but the order of the calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from evctl.control.journal import Journal
from evctl.core.effects import AnyEffect, Explanation
from evctl.core.events import Event, Tick
from evctl.policy.state import ClusterState, StepResult, step

AUDIT_EVERY_S = 30.0
"""How often the books of an idle writer are looked at, at most."""
AUDIT_SHARE = 0.02
"""Of one processor that this may take."""
MAX_EXPLANATIONS = 2_000
RETRY_S = 1.0
"""Until the next tick after a step that failed."""

log = logging.getLogger(__name__)

Clock = Callable[[], float]
CarryOut = Callable[[AnyEffect], None]
Observer = Callable[[float, Event, StepResult], None]


class Writer:
    """clock: monotonic seconds. carry_out: must not raise for what a peer did; it may feed.

    Events that come while one is worked on wait for their turn.
    """

    def __init__(
        self, state: ClusterState, clock: Clock, journal: Journal | None, carry_out: CarryOut
    ) -> None:
        self.state = state
        self.steps = 0
        self.explanations: deque[Explanation] = deque(maxlen=MAX_EXPLANATIONS)
        self.observers: list[Observer] = []
        self.on_problem: Callable[[str], None] = log.error
        self._clock = clock
        self._journal = journal
        self._carry_out = carry_out
        self._inbox: deque[Event] = deque()
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._audit_s = clock() + AUDIT_EVERY_S
        self._journal_ended = False

    def feed(self, event: Event) -> None:
        """Take in an event and carry out what follows from it."""
        self._inbox.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._inbox:
                self._step(self._inbox.popleft())
        finally:
            self._busy = False

    def stop_ticks(self) -> None:
        """No more ticks, until an event asks for one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def audit_is_due(self) -> bool:
        """Whether the books should be looked at: now and then, while nothing runs."""
        return not self.state.requests and self._clock() >= self._audit_s

    def audited(self, problems: Sequence[str], took_s: float) -> None:
        """Somebody did; what is wrong is told. The longer it took, the later the next time."""
        self._audit_s = self._clock() + max(AUDIT_EVERY_S, took_s / AUDIT_SHARE)
        for problem in problems:
            self.on_problem(f"the books do not agree: {problem}")

    def _step(self, event: Event) -> None:
        now_s = self._clock()
        try:
            result = step(self.state, event, now_s)
        except Exception:
            # A bug in the policy must not take down what serves; it is loud instead.
            log.exception("a step failed", extra={"event": "writer.step_failed"})
            self.on_problem(f"EV-9001: a step failed on {type(event).__name__}")
            self._schedule(now_s + RETRY_S, now_s)  # or no tick may ever come again
            return
        if result.failure is not None:  # its effects tell of it
            log.error(
                "the planner failed",
                exc_info=result.failure,
                extra={"event": "writer.planner_failed"},
            )
        self.steps += 1
        self._record(now_s, event, result)
        self.explanations.extend(result.explanations)
        for effect in result.effects:
            self._guard(partial(self._carry_out, effect), type(effect).__name__)
        for observe in self.observers:
            self._guard(partial(observe, now_s, event, result), "an observer")
        self._schedule(result.next_tick_s, now_s)

    def _guard(self, action: Callable[[], None], what: str) -> None:
        """One effect that cannot be carried out must not cost the others; it is a bug, told."""
        try:
            action()
        except Exception:
            log.exception("an effect failed", extra={"event": "writer.effect_failed"})
            self.on_problem(f"EV-9002: {what} failed; see the log")

    def _record(self, now_s: float, event: Event, result: StepResult) -> None:
        if self._journal is None:
            return
        self._journal.append(now_s, event, result.effects)
        if self._journal.problem and not self._journal_ended:
            self._journal_ended = True
            self.on_problem(f"the journal ended: {self._journal.problem}")

    def _schedule(self, next_tick_s: float | None, now_s: float) -> None:
        """A tick too early does no harm, so a timer that is set is left alone unless it would
        be late: nearly every event moves the next tick, and timers cost."""
        if next_tick_s is None:
            return
        loop = asyncio.get_running_loop()
        when_s = loop.time() + max(0.0, next_tick_s - now_s)
        if self._timer is not None:
            if self._timer.when() <= when_s:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.feed(Tick())
