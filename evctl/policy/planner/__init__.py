"""The planner: measures the work, weighs every split, decides once a window (design, section 5).

What others may show of it is `ClusterState.planner`, a `Planner`:

- `decisions`: the last 64 `PlanDecision`s, oldest first; `decisions[-1]` is the newest.
- `meter.slices`: closed slices of the present window (in the sound test of earlier ones too),
  oldest first; `meter.start_s`: when the open one began; `seen`: slices of the present window.
- `pending`: the planner's own move that has not settled; `trial`: one that is on probation.
- `settled_s`, `cooldown_ends_s`: of the last move, whoever made it; None before the first.
- `windows`: how many had something to decide on; `barred`: a split that was taken back, and until
  when.

`evctl.policy.planning` ties it to the reducer: `plan_now(state, now_s)` says what it would decide.
"""

from evctl.policy.planner.book import Pending, Planner
from evctl.policy.planner.config import PAPER, PlannerConfig, plus

__all__ = ["PAPER", "Pending", "Planner", "PlannerConfig", "plus"]
