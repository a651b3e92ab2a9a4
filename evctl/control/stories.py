"""What was decided for each request, and what then happened to it: bounded, newest kept.

Built from events and their effects alone, so that a journal that is run again gives the same.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

import msgspec

from evctl.core.effects import AnyEffect, Dispatch, Explanation, Fail, Prediction, Reject
from evctl.core.events import (
    Event,
    FetchEnded,
    FirstToken,
    FromNode,
    PrefillStarted,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    TransferDone,
)
from evctl.core.sampling import FinishReason
from evctl.core.why import RequestOutcome, RequestWhy, RoutingDecision
from evctl.policy.choice import APPENDED
from evctl.policy.plausible import fetch_can_be
from evctl.policy.state import ClusterState, StepResult

MAX_STORIES: Final = 10_000
MAX_TERMS: Final = 50_000
"""Nodes weighed whose terms are kept, over all requests: some 40 MB. Older ones lose theirs."""
_WHERE: Final = ": prefill on "
_TOLD: Final = (Dispatch, Fail, Reject)


class Placing(msgspec.Struct):
    """A Dispatch, when, and every candidate's terms (None once they are dropped). appended: a
    decode node computes what its prompt adds."""

    at_s: float
    dispatch: Dispatch
    explanation: Explanation | None
    appended: bool = False


class Story(msgspec.Struct):
    """Times on the writer's clock. state: "" while it is under way."""

    request_id: str
    tenant: str
    branch: str
    arrived_s: float
    prompt_tokens: int
    placings: list[Placing] = []
    started_s: float | None = None
    first_token_s: float | None = None
    handed_s: float | None = None
    ended_s: float | None = None
    fetch_s: float | None = None
    exposed_s: float | None = None
    cached_tokens: int | None = None
    uncached_tokens: int | None = None
    output_tokens: int | None = None
    state: str = ""
    reason: str = ""

    @property
    def predicted(self) -> Prediction | None:
        """Of the last decision."""
        return self.placings[-1].dispatch.predicted if self.placings else None

    @property
    def placed_s(self) -> float | None:
        return self.placings[-1].at_s if self.placings else None


class Stories:
    """An observer of the writer. only: the one request that matters, "" for all. on_end: told of
    each story when its request has ended."""

    def __init__(self, state: ClusterState, most: int = MAX_STORIES, only: str = "") -> None:
        self._state = state
        self._most = most
        self._only = only
        self._stories: OrderedDict[str, Story] = OrderedDict()
        self._with_terms: deque[Placing] = deque()
        self.on_end: Callable[[Story], None] = lambda _: None
        self._facts: dict[type, Callable[[float, str, Any], None]] = {
            PrefillStarted: self._started,
            FirstToken: self._first_token,
            TransferDone: self._handed,
            FetchEnded: self._fetched,
            RequestDone: self._done,
        }

    def observe(self, now_s: float, event: Event, result: StepResult) -> None:
        if isinstance(event, FromNode):
            action = self._facts.get(type(event.fact))
            if action is not None:
                action(now_s, event.node, event.fact)
        elif isinstance(event, RequestArrived):
            self._arrived(now_s, event)
        elif isinstance(event, RequestCancelled):
            self._end(now_s, event.request_id, "cancelled", "its client left")
        for effect in result.effects:
            if type(effect) in _TOLD:
                self._effect(now_s, effect, result)

    def get(self, request_id: str) -> Story | None:
        return self._stories.get(request_id)

    def told(self, request_id: str, to_wall_s: float, source: str) -> RequestWhy | None:
        """to_wall_s: what to add to the writer's clock for seconds since the epoch."""
        story = self._stories.get(request_id)
        if story is None:
            return None
        record = self._state.requests.get(request_id)
        state = story.state or (record.stage.value if record is not None else "unknown")
        return RequestWhy(
            request_id=request_id,
            tenant=story.tenant,
            branch=story.branch,
            source=source,
            arrived_s=story.arrived_s + to_wall_s,
            prompt_tokens=story.prompt_tokens,
            state=state,
            reason=story.reason,
            decisions=tuple(_decision(story, placing) for placing in story.placings),
            outcome=_outcome(story),
        )

    # ------------------------------------------------------------ events

    def _arrived(self, now_s: float, event: RequestArrived) -> None:
        if self._only and event.request_id != self._only:
            return
        known = self._stories.get(event.request_id)
        if known is not None and not known.state:
            return  # an id in use, which the reducer ignores
        branch = event.branch.branch if event.branch else ""
        story = Story(event.request_id, event.tenant, branch, now_s, event.prompt_tokens)
        self._stories[event.request_id] = story
        self._stories.move_to_end(event.request_id)
        if len(self._stories) > self._most:
            self._stories.popitem(last=False)

    def _open(self, request_id: str) -> Story | None:
        story = self._stories.get(request_id)
        return story if story is not None and not story.state else None

    def _started(self, now_s: float, node: str, fact: PrefillStarted) -> None:
        story = self._open(fact.request_id)
        here = story is not None and story.placings
        if story and here and story.placings[-1].dispatch.prefill_node == node:
            if story.started_s is None:
                story.started_s = now_s
            story.cached_tokens, story.uncached_tokens = fact.cached_tokens, fact.uncached_tokens

    def _first_token(self, now_s: float, node: str, fact: FirstToken) -> None:
        del node
        story = self._open(fact.request_id)
        if story is not None and story.first_token_s is None:
            story.first_token_s = now_s

    def _handed(self, now_s: float, node: str, fact: TransferDone) -> None:
        del node
        story = self._open(fact.request_id)
        if story is not None:
            story.handed_s = now_s

    def _fetched(self, now_s: float, node: str, fact: FetchEnded) -> None:
        del now_s
        story = self._open(fact.request_id)
        if story is None or not story.placings or not fetch_can_be(fact):
            return
        if node == story.placings[-1].dispatch.prefill_node:  # and not of where it was before
            story.fetch_s, story.exposed_s = fact.fetch_s, fact.exposed_s

    def _done(self, now_s: float, node: str, fact: RequestDone) -> None:
        del node
        story = self._open(fact.request_id)
        if story is None:
            return
        story.output_tokens = fact.output_tokens
        if fact.reason == FinishReason.ERROR:
            self._end(now_s, fact.request_id, "failed", fact.detail)
        elif fact.reason == FinishReason.CANCELLED:
            self._end(now_s, fact.request_id, "cancelled", fact.detail)
        else:
            self._end(now_s, fact.request_id, "done", fact.reason)

    def _effect(self, now_s: float, effect: AnyEffect, result: StepResult) -> None:
        if isinstance(effect, Dispatch):
            subject = f"request {effect.request_id}"
            said = next((e for e in result.explanations if e.subject == subject), None)
            self._placed(now_s, effect, said)
        elif isinstance(effect, Fail):
            self._end(now_s, effect.request_id, "failed", effect.reason)
        elif isinstance(effect, Reject):
            self._end(now_s, effect.request_id, "rejected", effect.reason)

    def _placed(self, now_s: float, dispatch: Dispatch, said: Explanation | None) -> None:
        story = self._open(dispatch.request_id)
        if story is None:
            return
        appended = said is not None and said.decision.endswith(APPENDED)
        placing = Placing(now_s, dispatch, said, appended)
        story.placings.append(placing)
        story.started_s = story.fetch_s = story.exposed_s = None  # it begins anew elsewhere
        if said is not None:
            self._with_terms.append(placing)
        # Terms may be worked out only once somebody reads them: here they are not even counted.
        while len(self._with_terms) * len(self._state.nodes) > MAX_TERMS:
            self._with_terms.popleft().explanation = None

    def _end(self, now_s: float, request_id: str, state: str, reason: str) -> None:
        story = self._open(request_id)
        if story is None:
            return
        story.state, story.reason, story.ended_s = state, reason, now_s
        self.on_end(story)


def _decision(story: Story, placing: Placing) -> RoutingDecision:
    said, dispatch = placing.explanation, placing.dispatch
    terms = said.terms if said is not None else {}
    return RoutingDecision(
        after_s=placing.at_s - story.arrived_s,
        why=said.decision.partition(_WHERE)[0] if said is not None else "",
        prefill_node=dispatch.prefill_node,
        decode_node=dispatch.decode_node,
        predicted=dispatch.predicted,
        prefill=_of(terms, "prefill "),
        decode=_of(terms, "decode "),
        append=_of(terms, "append "),
        appended=placing.appended,
    )


def _of(terms: dict[str, dict[str, float]], phase: str) -> dict[str, dict[str, float]]:
    return {key.removeprefix(phase): row for key, row in terms.items() if key.startswith(phase)}


def _outcome(story: Story) -> RequestOutcome:
    return RequestOutcome(
        wait_s=_span(story.placed_s, story.started_s),
        prefill_s=_span(story.started_s, story.first_token_s),
        fetch_s=story.fetch_s,
        exposed_s=story.exposed_s,
        ttft_s=_span(story.arrived_s, story.first_token_s),
        handover_s=_span(story.first_token_s, story.handed_s),
        e2e_s=_span(story.arrived_s, story.ended_s) if story.state == "done" else None,
        cached_tokens=story.cached_tokens,
        uncached_tokens=story.uncached_tokens,
        output_tokens=story.output_tokens,
    )


def _span(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else end_s - start_s
