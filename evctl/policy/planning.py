"""The planner within the reducer: when it decides, on what, and what becomes of it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from evctl.core.effects import Decided
from evctl.core.errors import EvctlError
from evctl.core.planning import Candidate, Forecast, PlanDecision, SliceRecord
from evctl.core.split import Role, Split
from evctl.policy import transition
from evctl.policy.capacity import NodeCapacity
from evctl.policy.cluster import ClusterState, NodeRecord
from evctl.policy.planner.book import BARRED_WINDOWS, Pending, Planner
from evctl.policy.planner.fleet import Fleet
from evctl.policy.planner.meter import pooled
from evctl.policy.planner.weigh import Weighed, judge
from evctl.policy.turn import Turn

BY = "planner"
LEAST_SLICES = 3
THIN_SHARE = 5
"""One slice in so many may be thin: it is left out. More, and there is no decision."""
TRIAL_SLICES = 3
GROWN = 1.2
"""A wait that exceeds its forecast says nothing once there are so many more branches."""


def advance(turn: Turn) -> None:
    """Close the slices that have ended, before the event of this step counts. At the end of a
    window the planner decides; before it, it may look, or take a move back.

    A bug in here costs the planner its window, never the step its event.
    """
    try:
        _advance(turn)
    except Exception as error:
        _fail(turn, error)


def _advance(turn: Turn) -> None:
    planner = turn.state.planner
    closed = planner.meter.pass_to(turn.now_s)
    if closed and not planner.meter.slices:  # nothing was heard for longer than is remembered
        planner.seen = 0
    elif closed:
        planner.seen = min(planner.seen + closed, planner.config.slices)
        _expire(turn, planner)
        if not _take_back(turn, planner):
            _look(turn, planner)


def plan_now(state: ClusterState, now_s: float) -> PlanDecision:
    """What the planner would decide by what it has measured: the last slices, as many as a window
    has, for its own may have just begun. Changes nothing."""
    planner = state.planner
    return _decide(state, now_s, window=tuple(planner.meter.slices[-planner.config.slices :]))[0]


# ---------------------------------------------------------------- when


def _look(turn: Turn, planner: Planner) -> None:
    config = planner.config
    ended = planner.seen >= config.slices
    looks = config.slices - config.slices // 2 - (config.slices > 1)
    if not ended and not (config.sound and config.early and planner.seen >= config.slices // 2):
        return
    decision, forecast = _decide(turn.state, turn.now_s, looks=0 if ended else looks)
    if not ended and decision.verdict != "move":
        return
    planner.seen = 0
    if decision.verdict == "idle" and planner.is_idle:
        return  # told once: what was decided under work is not to be forgotten over it
    planner.windows += ended and decision.verdict in ("move", "stay", "advise")
    _tell(turn, planner, decision, forecast)


def _tell(turn: Turn, planner: Planner, decision: PlanDecision, forecast: Forecast | None) -> None:
    """Keep a decision, tell it, and make its move."""
    decision = planner.kept(decision)
    turn.do(Decided(decision))
    # Counts in it change from window to window; what is missing does not.
    kind = "".join(one for one in decision.why if not one.isdigit())
    complaint = kind if decision.verdict == "blind" else ""
    if complaint and complaint != planner.complaint:
        turn.notice("warn", f"planner decides nothing: {decision.why}")
    planner.complaint = complaint
    if decision.verdict not in ("move", "revert"):
        return
    before, after = turn.state.split, _named(turn.state, decision.chosen)
    whole = pooled(decision.slices)
    try:
        transition.move(turn, after, by=BY, reason=decision.why)
    except EvctlError as error:
        turn.notice("warn", f"planner cannot move to {after}: {error}")
        return
    planner.moving = True
    if decision.verdict == "move":
        expected = forecast or Forecast(0.0)
        planner.pending = Pending(
            before, after, turn.now_s, expected, whole.wait_s, whole.branches
        )


def _expire(turn: Turn, planner: Planner) -> None:
    """Wait for a move no longer than pending_s. Its nodes finish their old work all the same."""
    pending = planner.pending
    if pending is None or turn.now_s < pending.since_s + planner.config.pending_s:
        return
    waited_s = turn.now_s - pending.since_s
    turn.notice("warn", f"move to {pending.after} has not settled after {waited_s:.0f} s")
    planner.pending = None
    planner.moving, planner.given_up = False, True
    planner.restart(turn.now_s)


def _fail(turn: Turn, error: Exception) -> None:
    """Tell of it as of a decision, and begin anew: what made it fail may lie in what was measured.
    What the error says of itself is for the log alone: addresses in it would not replay."""
    turn.failure = error
    planner = turn.state.planner
    planner.restart(turn.now_s)
    why = f"EV-9005: the planner failed: {type(error).__name__}{_place(error)}"
    turn.do(Decided(planner.kept(_record(turn.state, turn.now_s, "failed", why, ()))))
    if planner.complaint != why:
        turn.notice("fail", why)
    planner.complaint = why


def _place(error: Exception) -> str:
    """The innermost function of ours that it passed through."""
    place, trace = "", error.__traceback__
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.startswith("evctl."):
            place = f" in {module}.{trace.tb_frame.f_code.co_name}"
        trace = trace.tb_next
    return place


# ---------------------------------------------------------------- on what


def _decide(
    state: ClusterState,
    now_s: float,
    looks: int = 0,
    window: tuple[SliceRecord, ...] | None = None,
) -> tuple[PlanDecision, Forecast | None]:
    planner = state.planner
    window = planner.window if window is None else window
    verdict, why = _obstacle(state, window, now_s)
    if verdict:
        return _record(state, now_s, verdict, why, window), None
    weighed = judge(
        fleet_of(state),
        [_saturated(state, one) for one in window if not one.thin],
        [_saturated(state, one) for one in planner.meter.slices if not one.thin],
        planner.config,
        barred=planner.is_barred(now_s),
        looks=looks,
    )
    return _concluded(state, now_s, weighed, window)


def _concluded(
    state: ClusterState, now_s: float, weighed: Weighed, window: tuple[SliceRecord, ...]
) -> tuple[PlanDecision, Forecast | None]:
    chosen = weighed.chosen
    if chosen is None:
        why = f"no split is surely better than {state.split}"
        return _record(state, now_s, "stay", why, window, weighed), None
    best = next(c for c in weighed.candidates if c.split == str(chosen))
    why = f"{state.split} -> {chosen}: {best.why}"
    verdict = "move"
    if state.mode != "auto":
        verdict, why = "advise", f"{why}; mode is {state.mode}"
    elif state.planner.fresh and not state.planner.windows:
        verdict, why = "advise", f"{why}; the first window only advises"
    return _record(state, now_s, verdict, why, window, weighed), best.forecast


def _obstacle(
    state: ClusterState, window: tuple[SliceRecord, ...], now_s: float
) -> tuple[str, str]:
    """Why there is no decision to make: verdict and words, both empty if there is one."""
    planner = state.planner
    cooldown_s = planner.cooldown_ends_s
    if planner.moving or planner.pending is not None:
        return "settling", "nodes finish the work of their old role"
    if cooldown_s is not None and now_s < cooldown_s:
        return "cooldown", f"the last move settled {now_s - (planner.settled_s or 0.0):.0f} s ago"
    if state.uncovered is None:
        return "blind", "the cluster has not been whole yet"
    if state.uncovered:
        return "blind", f"no node is left for phase {', '.join(state.uncovered)}"
    if window and all(not one.arrivals and one.in_flight < 1e-9 for one in window):
        return "idle", "no requests"
    unknown = sorted(n.name for n in state.nodes.values() if n.alive and n.coefficients is None)
    if unknown:
        return "blind", f"no execution-time model of {', '.join(unknown)}"
    thin = sum(one.thin for one in window)
    if thin > len(window) // THIN_SHARE:
        least = planner.config.least_requests
        return "blind", f"{thin} of {len(window)} slices have fewer than {least} requests"
    if (full := len(window) - thin) < (least := min(LEAST_SLICES, planner.config.slices)):
        return "blind", f"{full} of the {least} slices that it takes have passed"
    return "", ""


def fleet_of(state: ClusterState) -> Fleet:
    """The alive nodes that have a model, those first that plan_moves would move first."""
    return Fleet(
        state.split,
        tuple(_capacities(transition.cheapest_first(state, Role.PREFILL))),
        tuple(_capacities(transition.cheapest_first(state, Role.DECODE))),
    )


def _capacities(nodes: Iterable[NodeRecord]) -> Iterable[NodeCapacity]:
    for node in nodes:
        if node.alive and node.coefficients is not None:
            l1_tokens = node.l1_blocks * node.block_tokens
            yield NodeCapacity(node.name, node.coefficients, node.max_running, l1_tokens)


def _saturated(state: ClusterState, slice_: SliceRecord) -> SliceRecord:
    """With the new tokens of a busy iteration (m), where nodes know it: capacity is what a node
    could do, and alone in an iteration each request bears all of its fixed cost."""
    known = [
        n.tokens_per_iteration for n in state.nodes.values() if n.alive and n.tokens_per_iteration
    ]
    if not known:
        return slice_
    tokens = max(slice_.tokens_per_iteration, math.fsum(known) / len(known))
    return msgspec.structs.replace(slice_, tokens_per_iteration=tokens)


def _record(
    state: ClusterState,
    now_s: float,
    verdict: str,
    why: str,
    window: tuple[SliceRecord, ...],
    weighed: Weighed | None = None,
) -> PlanDecision:
    chosen = weighed.chosen if weighed is not None else None
    moves = transition.plan_moves(state, chosen) if chosen is not None else ()
    return PlanDecision(
        number=state.planner.number + 1,
        time_s=now_s,
        mode=state.mode,
        current=str(state.split),
        verdict=verdict,
        chosen=str(chosen) if chosen is not None else "",
        candidates=tuple(map(_rounded, weighed.candidates)) if weighed is not None else (),
        slices=window,
        compared_slices=weighed.slices if weighed is not None else 0,
        model={node.name: node.model_source for node in state.nodes.values()},
        moves=moves,
        why=why,
    )


def _rounded(candidate: Candidate) -> Candidate:
    """Nine digits: logarithms differ in the last bit between C libraries, and a journal must
    replay to the same bytes on another machine."""
    forecast = msgspec.structs.replace(
        candidate.forecast,
        **{
            name: float(f"{value:.9g}")
            for name in Forecast.__struct_fields__
            if (value := getattr(candidate.forecast, name)) is not None
        },
    )
    return msgspec.structs.replace(
        candidate,
        forecast=forecast,
        theta_rps=float(f"{candidate.theta_rps:.9g}"),
        gain=float(f"{candidate.gain:.9g}"),
        error=float(f"{candidate.error:.9g}"),
    )


# ---------------------------------------------------------------- probation


def _take_back(turn: Turn, planner: Planner) -> bool:
    """Within a window of a move: if waits for prefill contradict its forecast, go back. Over when
    the window is, or when somebody else decides."""
    trial, config = planner.trial, planner.config
    if trial is None:
        return False
    state = turn.state
    if state.mode != "auto" or state.split != trial.after or planner.seen >= config.slices:
        planner.trial = None
        return False
    if planner.moving or not _contradicts(trial, planner.window):
        return False
    planner.trial = None
    planner.barred = (trial.after, turn.now_s + BARRED_WINDOWS * config.window_s)
    waited_s = pooled(planner.window[-TRIAL_SLICES:]).wait_s
    why = f"requests wait {waited_s:.2f} s for prefill, expected were {_expected_s(trial):.2f} s"
    moves = transition.plan_moves(state, trial.before)
    decision = msgspec.structs.replace(
        _record(state, turn.now_s, "revert", why, planner.window),
        chosen=str(trial.before),
        moves=moves,
    )
    _tell(turn, planner, decision, None)
    planner.seen = 0
    return True


def _contradicts(trial: Pending, window: tuple[SliceRecord, ...]) -> bool:
    """The first slice still works off what the move left; after it, each of three must be off by
    a factor of two, and worse than before the move, under no more branches than then."""
    last = window[1:][-TRIAL_SLICES:]
    if len(last) < TRIAL_SLICES or any(one.thin for one in last):
        return False
    whole = pooled(last)
    if trial.branches and whole.branches > GROWN * trial.branches:
        return False
    bound_s = max(2.0 * _expected_s(trial), trial.waited_s)
    return all(one.wait_s > bound_s for one in last)


def _expected_s(trial: Pending) -> float:
    """Of a wait for prefill; without a forecast of it, as it was."""
    return trial.waited_s if trial.forecast.ttft_s is None else trial.forecast.ttft_s


def _named(state: ClusterState, name: str) -> Split:
    nodes = len(state.nodes)
    return next(s for p in range(1, nodes) if str(s := Split(p, nodes - p)) == name)
