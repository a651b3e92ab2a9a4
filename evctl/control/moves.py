"""How long nodes take to change their role: sums and histograms since the start."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final

from evctl.core.effects import MoveEnded
from evctl.core.events import Event
from evctl.core.transitions import SUPERSEDED
from evctl.policy.state import StepResult

BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0)


class Durations:
    """A histogram. buckets: how many were at most each of BOUNDS_S (not cumulative), the last one
    beyond."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


class MoveMeasures:
    """An observer of the writer. flip: from the cordon until nothing unbegun of the old role was
    left; whole: until what ran there had ended as well. outcomes: of moves. finished, requeued:
    requests of the nodes that moved."""

    def __init__(self) -> None:
        self.flip, self.whole = Durations(), Durations()
        self.outcomes: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()

    def observe(self, now_s: float, event: Event, result: StepResult) -> None:
        del now_s, event
        for effect in result.effects:
            if isinstance(effect, MoveEnded):
                self._ended(effect)

    def _ended(self, effect: MoveEnded) -> None:
        move = effect.move
        self.outcomes[move.outcome] += 1
        if move.outcome == SUPERSEDED:
            return  # what it counted goes on with the change that took over
        self.requests["finished"] += move.finished
        self.requests["requeued"] += move.requeued
        if move.to_flip_s is not None:
            self.flip.add(move.to_flip_s)
        if move.whole_s is not None:
            self.whole.add(move.whole_s)
