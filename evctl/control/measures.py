"""Waits and rates over the last minute, from the events as they pass."""

from __future__ import annotations

from collections import deque
from math import ceil

from evctl.core.effects import Dispatch, Fail, Reject
from evctl.core.events import (
    Event,
    FirstToken,
    FromNode,
    PrefillStarted,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    TransferDone,
)
from evctl.policy.state import StepResult

WINDOW_S = 60.0
MAX_SAMPLES = 20_000


class Window:
    """Samples of the last minute: (time, value)."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=MAX_SAMPLES)

    def add(self, now_s: float, value: float) -> None:
        self._samples.append((now_s, value))

    def values(self, now_s: float) -> list[float]:
        while self._samples and now_s - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        return [value for _, value in self._samples]

    def percentile(self, now_s: float, share: float) -> float | None:
        """The smallest value that `share` of the samples do not exceed; None without any."""
        ordered = sorted(self.values(now_s))
        return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


class _Marks:
    """Times of one request, in seconds on the writer's clock."""

    __slots__ = ("arrived_s", "decode_waited", "first_token_s", "started")

    def __init__(self, arrived_s: float) -> None:
        self.arrived_s = arrived_s
        self.started = False
        self.first_token_s: float | None = None
        self.decode_waited = False


class Measures:
    """prefill_wait: arrival to start of prefill. decode_wait: first token to hand-over done, or
    to the second token where nothing is handed over. ttft: arrival to first token received."""

    def __init__(self, started_s: float) -> None:
        self.prefill_wait, self.decode_wait, self.ttft = Window(), Window(), Window()
        self.finished = Window()
        self.node_waits: dict[str, tuple[int, float]] = {}
        """Node -> prefills that it began, and the seconds that those had waited."""
        self._started_s = started_s
        self._marks: dict[str, _Marks] = {}

    def observe(self, now_s: float, event: Event, result: StepResult) -> None:
        """An observer of the writer."""
        if isinstance(event, RequestArrived):
            if any(isinstance(effect, Dispatch) for effect in result.effects):
                self._marks[event.request_id] = _Marks(now_s)
        elif isinstance(event, RequestCancelled):
            self._marks.pop(event.request_id, None)
        elif isinstance(event, FromNode):
            self._fact(now_s, event)
        for effect in result.effects:
            if isinstance(effect, Fail | Reject):
                self._marks.pop(effect.request_id, None)

    def progressed(self, now_s: float, request_id: str, before: int, received: int) -> None:
        """Tokens came in: `received` in all, of which `before` were there already."""
        marks = self._marks.get(request_id)
        if marks is None:
            return
        if before == 0:
            self.ttft.add(now_s, now_s - marks.arrived_s)
            marks.first_token_s = marks.first_token_s or now_s
        if before <= 1 < received:
            self._decoding(now_s, marks)

    def throughput_rps(self, now_s: float) -> float:
        """Requests finished a second, over the last minute or since the start."""
        span_s = min(WINDOW_S, max(1.0, now_s - self._started_s))
        return len(self.finished.values(now_s)) / span_s

    def _fact(self, now_s: float, event: FromNode) -> None:
        fact = event.fact
        if not isinstance(fact, PrefillStarted | FirstToken | TransferDone | RequestDone):
            return
        marks = self._marks.get(fact.request_id)
        if marks is None:
            return
        if isinstance(fact, PrefillStarted):
            if not marks.started:
                marks.started = True
                wait_s = now_s - marks.arrived_s
                self.prefill_wait.add(now_s, wait_s)
                count, total_s = self.node_waits.get(event.node, (0, 0.0))
                self.node_waits[event.node] = (count + 1, total_s + wait_s)
        elif isinstance(fact, FirstToken):
            marks.first_token_s = marks.first_token_s or now_s
        elif isinstance(fact, TransferDone):
            self._decoding(now_s, marks)
        else:
            self.finished.add(now_s, now_s - marks.arrived_s)
            del self._marks[fact.request_id]

    def _decoding(self, now_s: float, marks: _Marks) -> None:
        if marks.first_token_s is not None and not marks.decode_waited:
            marks.decode_waited = True
            self.decode_wait.add(now_s, now_s - marks.first_token_s)
