"""An engine that says what cannot be costs no more than its own word."""

from __future__ import annotations

import math
from typing import Any

import pytest

from evctl.core.costs import Coefficients
from evctl.core.events import (
    CoefficientsFitted,
    FetchEnded,
    IterationSample,
    PrefillStarted,
    RequestDone,
    Tick,
    TransferDone,
)
from evctl.core.kv import FetchSource
from evctl.core.split import Phase
from evctl.policy.links import FetchPrior
from tests.policy.cluster import Cluster, keys
from tests.policy.planner.test_planning import SHORT, Flow

MODEL = Coefficients(0.0, 0.001, 0.0, 0.0, 0.01, 0.0, 0.0)
HUGE = 2**63 - 1


def sample(**what: Any) -> IterationSample:
    values = {"busy_s": 0.1, "prefill_tokens": 40, "attention_pairs": 800.0} | what
    return IterationSample(
        phase=Phase.PREFILL, **{"restored_tokens": 0, "decode_requests": 0, **values}
    )


@pytest.mark.parametrize(
    "what",
    [
        {"busy_s": math.nan},
        {"busy_s": math.inf},
        {"busy_s": -1.0},
        {"busy_s": 1e300},
        {"prefill_tokens": -HUGE, "decode_requests": 1},
        {"prefill_tokens": HUGE},
        {"restored_tokens": -1},
        {"attention_pairs": math.nan},
    ],
)
@pytest.mark.parametrize("model", [None, MODEL])
def test_an_iteration_that_cannot_be_teaches_nothing(
    what: dict[str, Any], model: Coefficients | None
) -> None:
    """Two prompts are there, so that the iteration would tell what a busy one holds."""
    cluster, twin = Cluster(), Cluster()
    for one in (cluster, twin):
        if model is not None:
            for name in one.state.nodes:
                one.feed(CoefficientsFitted(name, model, "fitted"))
        for request_id in ("a", "b", "c", "d"):
            one.arrive(request_id, 100)
            one.start(request_id)
    for name in cluster.state.nodes:
        cluster.fact(name, sample(**what))
    assert cluster.state.tallies.ignored == 3
    assert cluster.arrive("e").predicted == twin.arrive("e").predicted


def test_numbers_of_a_request_are_taken_for_what_they_can_be_at_most() -> None:
    cluster = Flow(planner=SHORT, model=MODEL)
    cluster.arrive("a", 40)
    node = cluster.state.requests["a"].prefill_node
    peers = (FetchSource("n9", HUGE, 1),)
    cluster.fact(node, FetchEnded("a", 0, -HUGE, (), math.nan, 0.0, -HUGE))
    cluster.fact(node, FetchEnded("a", 0, HUGE, peers, math.nan, 0.0, HUGE))
    cluster.fact(node, PrefillStarted("a", HUGE, -HUGE))
    cluster.first_token("a")
    cluster.hand_over("a")
    decode = cluster.state.requests["a"].decode_node
    cluster.fact(decode, RequestDone("a", "length", HUGE, HUGE, HUGE))
    cluster.arrive("b", 40)
    cluster.decode("b")
    cluster.fact(cluster.state.requests["b"].decode_node, RequestDone("b", "stop", 0, 0, -HUGE))
    cluster.now_s += 2.0
    cluster.feed(Tick())
    (slice_,) = cluster.state.planner.meter.slices
    assert (slice_.uncached_tokens, slice_.cached_tokens) == (20.0, 20.0)
    assert slice_.restored_tokens == 20.0
    assert slice_.output_tokens == 8.0
    assert slice_.service_s == pytest.approx(0.02)


def test_a_hand_over_before_the_first_token_leaves_nothing_at_its_prefill_node() -> None:
    """Else the node would have to compute it for ever, and no change of its role would settle."""
    cluster = Cluster()
    cluster.arrive("a")
    record = cluster.state.requests["a"]
    cluster.fact(record.prefill_node, TransferDone("a", record.decode_node, 1, 1, 0))
    assert cluster.state.prefills_of(cluster.state.nodes[record.prefill_node]) == []
    cluster.done("a")
    cluster.hold("1P2D")
    assert cluster.state.settled_split == "1P2D"


@pytest.mark.parametrize(
    "what",
    [{"fetch_s": math.inf}, {"fetch_s": 1e9}, {"exposed_s": math.nan}, {"queued_s": -1.0}],
)
def test_a_fetch_that_cannot_be_ends_and_teaches_nothing(what: dict[str, float]) -> None:
    """Nodes that never fetched are judged by what all others took."""
    speeds = []
    for times in (what, None):
        cluster = Cluster(4, "3P1D", l2_blocks=100)
        cluster.holds("n4", 2, 1, 2, 3, 4)
        dispatch = cluster.arrive("a", 80, keys(1, 2, 3, 4))
        assert dispatch.fetch
        if times is not None:
            told = {"fetch_s": 0.1, "exposed_s": 0.0, "queued_s": 0.0} | times
            peers = (FetchSource("n4", 4, 64),)
            fact = FetchEnded("a", 0, 0, peers, missed_blocks=0, **told)
            cluster.fact(dispatch.prefill_node, fact)
            record = cluster.state.requests["a"]
            assert record.fetch_blocks == 0, "it is over all the same"
        speeds.append(cluster.state.fetches.fetch_s(64, FetchPrior()))
    assert speeds[0] == speeds[1]
