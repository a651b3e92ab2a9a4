"""What is kept of what happened: requests' stories, predictions beside outcomes, moves."""

from __future__ import annotations

from evctl.control.moves import MoveMeasures
from evctl.control.outcomes import Outcomes
from evctl.control.stories import Stories
from evctl.core.events import Event
from evctl.policy.state import ClusterState, StepResult


class Records:
    """An observer of the writer."""

    def __init__(self, state: ClusterState) -> None:
        self.stories = Stories(state)
        self.outcomes = Outcomes(self.stories)
        self.moves = MoveMeasures()

    def observe(self, now_s: float, event: Event, result: StepResult) -> None:
        self.stories.observe(now_s, event, result)
        self.outcomes.observe(now_s, event, result)
        self.moves.observe(now_s, event, result)
