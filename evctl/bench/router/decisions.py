"""The time of each decision on a stage, and of the step that it is a part of."""

from __future__ import annotations

import gc
import time
from collections import deque

from evctl.bench.router.stage import Shape, Stage
from evctl.core.effects import Dispatch, Explanation
from evctl.core.events import RequestArrived, RequestCancelled
from evctl.policy.router import choose
from evctl.policy.state import RequestRecord

KEPT = 2000
"""Explanations that are kept, as the control plane keeps them."""
READ_EVERY = 20
"""Somebody reads one now and then."""


class Times:
    """Nanoseconds of each: decisions, the match in them, whole steps; and how long explanations
    took that were read. decision_cpu_ns: in CPU time of this thread, without what other work on
    the machine adds. elsewhere: decisions that did not choose the node with the longest prefix;
    fetching: those that planned a fetch; appended: that run on a decode node."""

    def __init__(self) -> None:
        self.decision_ns: list[int] = []
        self.decision_cpu_ns: list[int] = []
        self.match_ns: list[int] = []
        self.step_ns: list[int] = []
        self.read_ns: list[int] = []
        self.elsewhere = 0
        self.appended = 0
        self.fetching = 0
        self.about = ""


def decide(shape: Shape, trace: str) -> Times:
    """Every second prompt is decided on alone, with the match and its books (arrive), each other
    one as a whole step; every request is cancelled then."""
    stage = Stage(shape, trace)
    times = Times()
    kept: deque[Explanation] = deque(maxlen=KEPT)
    gc.collect()
    for number, event in enumerate(stage.prompts()):
        if number % 100 == 0:
            stage.report()
        if number % 2:
            _step(stage, event, times, kept)
        else:
            _decision(stage, event, times, kept)
    times.about = stage.made.about
    return times


def _decision(stage: Stage, event: RequestArrived, times: Times, kept: deque[Explanation]) -> None:
    state, now_s = stage.state, stage.now_s
    record = RequestRecord(
        request_id=event.request_id,
        tenant=event.tenant,
        prompt_tokens=event.prompt_tokens,
        max_output_tokens=event.max_output_tokens,
        keys=event.block_keys,
        arrived_s=now_s,
        branch=event.branch.branch if event.branch else "",
        root_key=event.root_key,
    )
    directory = state.directory
    cpu = time.thread_time_ns()
    began = time.perf_counter_ns()
    match = directory.arrive(
        record.request_id, record.tenant, event.root_key, record.keys, now_s, event.branch
    )
    matched = time.perf_counter_ns()
    choice = choose(state, record, match, now_s)
    if choice is not None:
        kept.append(choice.explain(record.request_id, "arrived"))
    ended = time.perf_counter_ns()
    times.decision_cpu_ns.append(time.thread_time_ns() - cpu)
    times.decision_ns.append(ended - began)
    times.match_ns.append(matched - began)
    directory.closed(record.request_id, now_s)
    directory.deltas()
    if choice is None:
        return
    if len(times.decision_ns) % READ_EVERY == 0:
        began = time.perf_counter_ns()
        assert len(kept[-1].terms) >= stage.shape.nodes
        times.read_ns.append(time.perf_counter_ns() - began)
    times.fetching += bool(choice.wanted)
    times.appended += choice.appended
    if choice.appended:
        return
    longest = max(term.cached_tokens for term in choice.prefill)
    mine = next(t.cached_tokens for t in choice.prefill if t.node == choice.prefill_node)
    times.elsewhere += mine < longest


def _step(stage: Stage, event: RequestArrived, times: Times, kept: deque[Explanation]) -> None:
    began = time.perf_counter_ns()
    result = stage.feed(event)
    kept.extend(result.explanations)
    times.step_ns.append(time.perf_counter_ns() - began)
    assert any(isinstance(effect, Dispatch) for effect in result.effects)
    stage.feed(RequestCancelled(event.request_id))
