"""What status tells of the brain: little, whole, and fit for JSON."""

from __future__ import annotations

import math

import msgspec

from evctl.control.brain import MOST_CANDIDATES, MOST_RPS, brain_status, without_bulk
from evctl.core.brain_status import BrainStatus
from evctl.core.events import Override, PrefillStarted
from evctl.core.planning import Candidate, Forecast, PlanDecision, SliceRecord
from evctl.core.split import Split
from evctl.policy.planner import PlannerConfig
from tests.policy.cluster import Cluster

replace = msgspec.structs.replace
SLICE = SliceRecord(0, 60, 100, 100, 900.0, 9e4, 8e7, 10.0, 300.0, 1.0, 2000.0, 12.0, 0.0, 1.0)


def decision(candidates: list[Candidate], chosen: str = "", current: str = "4P5D") -> PlanDecision:
    verdict = "move" if chosen else "stay"
    return PlanDecision(
        1, 90.0, "auto", current, verdict, chosen, tuple(candidates), (SLICE,) * 10,
        {"n1": "fitted"}, (), "why",
    )  # fmt: skip


def candidate(split: str, gain: float, verdict: str = "unsure", rps: float = 2.0) -> Candidate:
    return Candidate(split, Forecast(rps), gain, 0.01, verdict, "x")


def test_before_anything_there_is_no_decision_but_a_time_for_it() -> None:
    cluster = Cluster()
    told = brain_status(cluster.state, cluster.now_s)
    assert (told.decision, told.left_out, told.slices_seen, told.slices) == (None, 0, 0, 10)
    assert told.due_s == cluster.now_s + 600.0
    assert (told.cooldown_ends_s, told.barred, told.trial) == (None, "", "")


def test_the_next_decision_comes_at_the_end_of_the_window() -> None:
    cluster = Cluster(planner=PlannerConfig(window_s=100.0, slices=10))
    begun_s = cluster.now_s
    for _ in range(7):
        cluster.now_s += 5.0
        cluster.beat()
    told = brain_status(cluster.state, cluster.now_s)
    assert told.slices_seen == 3
    assert told.due_s == begun_s + 100.0
    for _ in range(14):
        cluster.now_s += 5.0
        cluster.beat()
    told = brain_status(cluster.state, cluster.now_s)
    assert told.decision is not None
    assert told.decision.verdict == "idle"
    assert told.decision.slices == ()
    assert told.due_s == begun_s + 200.0


def test_a_cooldown_and_what_is_barred_are_told_while_they_last() -> None:
    cluster = Cluster()
    planner = cluster.state.planner
    planner.settled_s, planner.barred = 100.0, (Split(1, 2), 300.0)
    told = brain_status(cluster.state, 150.0)
    assert (told.cooldown_ends_s, told.barred, told.barred_until_s) == (220.0, "1P2D", 300.0)
    told = brain_status(cluster.state, 301.0)
    assert (told.cooldown_ends_s, told.barred, told.barred_until_s) == (None, "", None)


def test_of_many_candidates_those_that_matter_are_told_in_their_order() -> None:
    many = [candidate(f"{p}P{40 - p}D", -abs(p - 12) / 10) for p in range(1, 40)]
    many[29] = candidate("30P10D", 0.0, "current")
    many[34] = candidate("35P5D", -3.0, "chosen")
    many[12] = replace(many[12], verdict="bounded", gain=0.0)
    told = without_bulk(decision(many, chosen="35P5D", current="30P10D"))
    splits = [each.split for each in told.candidates]
    assert len(splits) == MOST_CANDIDATES
    assert splits == sorted(splits, key=lambda split: int(split.partition("P")[0]))
    assert {"30P10D", "35P5D", "12P28D", "11P29D"} < set(splits)
    assert "13P27D" not in splits, "it is out of bounds"


def test_it_goes_through_json_and_stays_small() -> None:
    cluster = Cluster(nodes=9, split="4P5D")
    everything = [candidate(f"{p}P{9 - p}D", 0.1, rps=math.inf) for p in range(1, 9)]
    cluster.state.planner.kept(decision(everything))
    told = brain_status(cluster.state, 100.0)
    encoded = msgspec.json.encode(told)
    assert msgspec.json.decode(encoded, type=BrainStatus) == told
    assert b"null" not in msgspec.json.encode(told.decision).replace(
        b'"ttft_s":null,"e2e_s":null,"prefill_wait_p95_s":null', b""
    )
    assert told.decision is not None
    assert told.decision.candidates[0].forecast.throughput_rps == MOST_RPS
    assert len(encoded) < 8_000


def test_what_a_node_still_has_of_its_old_role_is_counted() -> None:
    cluster = Cluster(nodes=4, split="2P2D")
    for request in ("r1", "r2", "r3"):
        node = cluster.arrive(request).prefill_node
        cluster.fact(node, PrefillStarted(request, 0, 40))
    before = {node.name: len(node.requests) for node in cluster.state.nodes.values()}
    cluster.feed(Override("hold", "1P3D", "ann", ""))
    told = brain_status(cluster.state, cluster.now_s)
    (moved,) = told.draining
    assert told.draining[moved] == before[moved] > 0
