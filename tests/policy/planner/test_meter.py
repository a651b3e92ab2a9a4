"""The meter within the reducer against a plain recount of what was fed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evctl.core.branches import BranchSignal
from evctl.core.events import (
    FetchEnded,
    FirstToken,
    IterationSample,
    NodeLost,
    PrefillStarted,
    RequestCancelled,
    RequestDone,
    Tick,
)
from evctl.core.kv import FetchSource
from evctl.core.planning import SliceRecord
from evctl.core.split import Phase
from evctl.policy.planner import PlannerConfig
from evctl.policy.planner.meter import pooled
from tests.policy.cluster import BLOCK_TOKENS, Cluster

SLICE_S = 2.0
CONFIG = PlannerConfig(window_s=2000 * SLICE_S, slices=2000, least_requests=3)

DEEDS = (
    *("arrive", "start", "token", "move", "done"),
    *("cancel", "again", "fetch", "lose", "tick", "iterate"),
)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(DEEDS),
        st.integers(0, 7),
        st.sampled_from([0.0, 0.1, 0.7, 1.9, 2.0, 7.3]),
    ),
    max_size=80,
)


class Recount(Cluster):
    """Does as it is told, and notes what counts, with its time, the plain way."""

    def __init__(self) -> None:
        self.notes: list[tuple[float, str, float]] = []
        self.counts: list[tuple[float, list[int]]] = []
        self.restored: dict[str, int] = {}
        self.came_s: dict[str, float] = {}
        self.numbers = 0
        super().__init__(3, "2P1D", planner=CONFIG)

    def feed(self, event: Any) -> Any:
        effects = super().feed(event)
        stages = [r.stage.value for r in self.state.requests.values()]
        kinds = ("waiting", "prefill", "handover", "decode")
        self.counts.append((self.now_s, [stages.count(kind) for kind in kinds]))
        return effects

    def note(self, what: str, value: float) -> None:
        self.notes.append((self.now_s, what, value))

    def act(self, what: str, index: int) -> None:
        names = sorted(self.state.requests)
        name = names[index % len(names)] if names else ""
        record = self.state.requests.get(name)
        if what == "arrive" and self.state.waiting < 200:
            self.numbers += 1
            self.came_s[f"r{self.numbers}"] = self.now_s
            self.arrive(f"r{self.numbers}", 40)
        elif what == "lose" and all(n.alive for n in self.state.nodes.values()):
            self.feed(NodeLost(f"n{index % 3 + 1}", "boot1", "test"))
        elif what == "tick":
            self.feed(Tick())
        elif what == "iterate":
            sample = IterationSample(Phase.PREFILL, 0.1, 8 * index, 0.0, 0, 0)
            if self.state.nodes["n1"].alive:
                self.fact("n1", sample)
                if index:
                    self.note("iteration", 8 * index)
        elif record is not None:
            self._on_request(what, index, record)

    def _on_request(self, what: str, index: int, record: Any) -> None:
        name, node = record.request_id, record.prefill_node
        if what == "fetch" and record.stage == "waiting":
            peers = (FetchSource("n2", index, 64),)
            self.fact(node, FetchEnded(name, 0, 2, peers, 0.1, 0.0, 0))
            self.restored[name] = (2 + index) * BLOCK_TOKENS
        elif what in ("start", "again") and record.awaits_prefill:
            if record.stage == "waiting":
                self.note("begun", 40 - index)
                self.note("cached", index)
                self.note("pairs", (40 - index) * index + (40 - index) * (41 - index) / 2)
                self.note("restored", self.restored.get(name, 0))
                self.note("wait", self.now_s - self.came_s[name])
            self.fact(node, PrefillStarted(name, index, 40 - index))
        elif what == "token" and record.stage == "prefill":
            self.fact(node, FirstToken(name, 40))
        elif what == "move" and record.stage == "handover":
            self.hand_over(name)
        elif what == "done" and record.stage == "decode":
            self.note("done", index + 1)
            node = record.decode_node
            self.fact(node, RequestDone(name, "length", 40, 0, index + 1))
            self.fact(node, RequestDone(name, "length", 40, 0, index + 1))
            self.fact(node, PrefillStarted(name, 0, 40))
        elif what == "cancel":
            self.feed(RequestCancelled(name))

    # ------------------------------------------------------------ the recount

    def values(self, what: str, start_s: float, end_s: float) -> list[float]:
        return [v for at_s, name, v in self.notes if name == what and start_s <= at_s < end_s]

    def areas(self, start_s: float, end_s: float) -> list[float]:
        """Request-seconds by stage: each count holds until the next event."""
        totals = [0.0] * 4
        ends = [at_s for at_s, _ in self.counts[1:]] + [end_s]
        for (at_s, counts), until_s in zip(self.counts, ends, strict=True):
            held_s = max(0.0, min(until_s, end_s) - max(at_s, start_s))
            totals = [t + c * held_s for t, c in zip(totals, counts, strict=True)]
        return totals


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


@settings(max_examples=150, deadline=None)
@given(ACTIONS)
def test_slices_are_what_a_recount_says(actions: list[tuple[str, int, float]]) -> None:
    """Repeated starts and ends, facts of requests that are over, lost nodes: each counts once or
    not at all, in the slice that it came in."""
    cluster = Recount()
    for what, index, passed_s in actions:
        cluster.now_s += passed_s
        cluster.act(what, index)
    cluster.now_s += 2 * SLICE_S
    cluster.feed(Tick())
    slices = cluster.state.planner.meter.slices
    assert slices
    assert slices[0].start_s == 100.0
    for one in slices:
        assert one.end_s == pytest.approx(one.start_s + SLICE_S)
        compare(cluster, one)


def compare(cluster: Recount, one: SliceRecord) -> None:
    def found(what: str) -> list[float]:
        return cluster.values(what, one.start_s, one.end_s)

    assert one.arrivals == len(found("begun"))
    assert one.completions == len(found("done"))
    assert one.thin == (min(one.arrivals, one.completions) < 3)
    assert one.uncached_tokens == pytest.approx(mean(found("begun")))
    assert one.cached_tokens == pytest.approx(mean(found("cached")))
    assert one.attention_pairs == pytest.approx(mean(found("pairs")))
    assert one.restored_tokens == pytest.approx(mean(found("restored")))
    assert one.wait_s == pytest.approx(mean(found("wait")))
    assert one.output_tokens == pytest.approx(mean(found("done")))
    assert one.tokens_per_iteration == pytest.approx(mean(found("iteration")))
    waiting, prefill, handover, decode = cluster.areas(one.start_s, one.end_s)
    assert one.prefill_queue == pytest.approx(waiting / SLICE_S)
    assert one.prefill_running == pytest.approx(prefill / SLICE_S)
    assert one.decode_queue == pytest.approx(handover / SLICE_S)
    assert one.in_flight == pytest.approx((waiting + prefill + handover + decode) / SLICE_S)


def test_a_pause_is_from_the_end_of_a_branchs_last_request_to_its_next() -> None:
    """Two requests of b at once: it pauses only when both have ended. A branch that ended pauses
    no more, and requests without a branch have no pause."""
    cluster = Cluster(3, "2P1D", planner=PlannerConfig(window_s=100, slices=10))
    cluster.arrive("r1", branch=BranchSignal("b"))
    cluster.arrive("r2", branch=BranchSignal("b"))
    cluster.arrive("r3", branch=BranchSignal("c", final=True))
    cluster.arrive("r4")
    for name in ("r1", "r2", "r3", "r4"):
        cluster.decode(name)
    cluster.done("r1")
    cluster.now_s += 1.0
    for name in ("r2", "r3", "r4"):
        cluster.done(name)
    cluster.now_s += 4.0
    cluster.arrive("r5", branch=BranchSignal("b"))
    cluster.arrive("r6", branch=BranchSignal("c"))
    cluster.arrive("r7")
    cluster.now_s = 110.0
    cluster.feed(Tick())
    (one,) = cluster.state.planner.meter.slices
    assert one.pause_s == pytest.approx(4.0)
    # 1 s of four requests less r1, 5 s of three, and one pause of 4 s in a slice of 10 s
    assert one.in_flight == pytest.approx((3 * 1.0 + 3 * 5.0) / 10)
    assert one.branches == pytest.approx(one.in_flight + 0.4)


def test_a_silence_longer_than_what_is_kept_leaves_no_slices() -> None:
    cluster = Cluster(3, "2P1D", planner=PlannerConfig(window_s=20, slices=10))
    cluster.arrive("r1")
    cluster.now_s += 1e6
    cluster.feed(Tick())
    assert len(cluster.state.planner.meter.slices) == 0
    assert cluster.state.planner.meter.start_s == cluster.now_s


def slice_of(arrivals: int, mean_s: float, variation: float, **more: float) -> SliceRecord:
    values = dict.fromkeys(SliceRecord.__struct_fields__, 1.0) | more
    values |= {"arrivals": arrivals, "completions": arrivals, "thin": False}
    values |= {"service_s": mean_s, "squared_variation": variation}
    return SliceRecord(**values)  # type: ignore[arg-type]


def test_pooled_slices_are_one_slice_of_all_requests() -> None:
    """The variation of the whole holds what is within slices and what is between them."""
    first = slice_of(3, 2.0, 0.5, start_s=0.0, end_s=1.0, in_flight=4.0, uncached_tokens=10.0)
    second = slice_of(1, 6.0, 0.0, start_s=1.0, end_s=4.0, in_flight=8.0, uncached_tokens=30.0)
    whole = pooled((first, second))
    assert whole.arrivals == 4
    assert whole.uncached_tokens == pytest.approx(15.0)
    assert whole.in_flight == pytest.approx(7.0)
    assert whole.service_s == pytest.approx(3.0)
    squares = (3 * (0.5 + 1) * 4.0 + 1 * 36.0) / 4
    assert whole.squared_variation == pytest.approx(squares / 9.0 - 1.0)
