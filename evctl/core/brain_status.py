"""What the planner knows and decided last: part of a cluster's status."""

from __future__ import annotations

import msgspec

from evctl.core.planning import PlanDecision


class BrainStatus(msgspec.Struct, frozen=True):
    """Moments (decision.time_s too, and those of ClusterStatus.transition) are seconds on the
    control plane's own clock, which reads now_s; how long ago or until when is a difference of
    two of them, whatever the reader's clock says.

    decision: the last one, None before the first, without its slices and its table of models;
    where a cluster has many splits, with some of its candidates, and left_out counts the others.
    due_s: when the next one is due, None before the first event. slices_seen: of `slices` that a
    decision is made from. cooldown_ends_s: no move of the planner before; None without a move.
    barred: a split that was taken back, not chosen before barred_until_s; "" for none. trial:
    the split on probation, "" for none. draining: of each node that changes its role, the requests
    of the old one that are still there. What it computes with is in ClusterStatus.times.
    """

    now_s: float
    decision: PlanDecision | None
    left_out: int
    due_s: float | None
    slices_seen: int
    slices: int
    cooldown_ends_s: float | None = None
    barred: str = ""
    barred_until_s: float | None = None
    trial: str = ""
    draining: dict[str, int] = {}
