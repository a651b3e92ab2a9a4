"""What a planner may have in mind: statuses of it to order."""

from __future__ import annotations

from evctl.core.brain_status import BrainStatus
from evctl.core.planning import Candidate, Forecast, PlanDecision
from evctl.core.times_status import NodeTimes
from evctl.core.transitions import NodeMove, Transition
from tests.tui.fakes import replace

NOW_S = 5000.0
"""On the clock of the control plane."""


def model(node: str, source: str = "fitted", **changes: object) -> NodeTimes:
    terms = {
        "c0": (0.0110, 0.02),
        "c1": (1.234e-5, 0.08),
        "c2": (2.0e-10, 0.31),
        "c3": (0.0, None),
        "d0": (0.00801, 0.01),
        "d1": (0.0, 0.0),
        "d2": (4.1e-4, 0.05),
    }
    base = NodeTimes(
        node=node,
        source=source,
        coefficients={term: value_s for term, (value_s, _) in terms.items()},
        errors={t: None if share is None else s * share for t, (s, share) in terms.items()},
        unidentified=("c3",),
        windows=(24, 20),
        residual=0.031,
    )
    return replace(base, **changes)


def prior(node: str) -> NodeTimes:
    return NodeTimes(node, "prior")


TIMES = (model("n1"), model("n2", "kept"), prior("n3"))
UNKNOWN = (prior("n1"), prior("n2"))


def candidate(
    split: str,
    verdict: str,
    gain: float = 0.0,
    error: float = 0.0,
    rps: float = 2.4,
    **changes: object,
) -> Candidate:
    why = {
        "current": "as it is",
        "bounded": "too few nodes that are alive or must stay in a phase",
    }
    said = why.get(verdict, f"throughput {gain:+.1%}, sure only above 3.1%")
    base = Candidate(split, Forecast(rps, 0.71, 7.94), gain, error, verdict, said)
    return replace(base, **changes)


CANDIDATES = (
    candidate("1P8D", "worse", -0.62, 0.02, 0.92),
    candidate("2P7D", "worse", -0.31, 0.02, 1.66),
    candidate("3P6D", "current", rps=2.41),
    candidate("4P5D", "chosen", 0.12, 0.015, 2.70, why="throughput +12.0%, sure above 3.1%"),
    candidate("5P4D", "passed", 0.06, 0.02, 2.55, why="throughput +6.0%, sure above 4.0%"),
    candidate("6P3D", "unsure", 0.02, 0.03, 2.46),
    candidate("7P2D", "guarded", 0.09, 0.03, 2.61, why="95 % would wait up to 12.4 s for prefill"),
    candidate("8P1D", "bounded", rps=0.0),
)
MOVE = PlanDecision(
    number=14,
    time_s=NOW_S - 190.0,
    mode="auto",
    current="3P6D",
    verdict="move",
    chosen="4P5D",
    candidates=CANDIDATES,
    slices=(),
    model={},
    moves=(),
    why="3P6D -> 4P5D: throughput +12.0%, sure above 3.1%",
)
SMALL = replace(
    MOVE,
    number=3,
    current="2P1D",
    verdict="advise",
    chosen="1P2D",
    candidates=(
        candidate("1P2D", "chosen", 0.12, 0.015, 2.70, why="throughput +12.0%, sure above 3.1%"),
        candidate("2P1D", "current", rps=2.41),
    ),
    why="2P1D -> 1P2D: throughput +12.0%, sure above 3.1%; mode is hold",
)
BRAIN = BrainStatus(
    now_s=NOW_S,
    decision=SMALL,
    left_out=0,
    due_s=NOW_S + 192.0,
    slices_seen=6,
    slices=10,
)
LEARNING = replace(BRAIN, decision=None, slices_seen=3)
CHANGE = Transition(
    number=7,
    generation=41,
    by="planner",
    reason="",
    before="3P6D",
    after="4P5D",
    begun_s=NOW_S - 4.0,
    moves=(
        NodeMove("n4", "D", "P", NOW_S - 4.0, 3, 2, flipped_s=NOW_S - 3.988),
        NodeMove("n5", "D", "P", NOW_S - 4.0, 1, 0),
        NodeMove("n6", "D", "P", NOW_S - 4.0, 1, 0, outcome="settled"),
    ),
)
MOVING = replace(BRAIN, decision=MOVE, draining={"n4": 3, "n5": 1})


def decided(verdict: str, why: str = "") -> BrainStatus:
    """The last decision was that one; those that weigh nothing have no candidates."""
    weighed = verdict in ("move", "stay", "advise")
    told = replace(
        MOVE,
        verdict=verdict,
        chosen="4P5D" if verdict in ("move", "advise", "revert") else "",
        candidates=CANDIDATES if weighed else (),
        why=why or MOVE.why,
    )
    return replace(BRAIN, decision=told)
