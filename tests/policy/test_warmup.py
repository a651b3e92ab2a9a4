"""Warm-up in the reducer: a node without a model serves both phases until it has one."""

from __future__ import annotations

import math

import msgspec
import pytest

from evctl.core.costs import Coefficients
from evctl.core.effects import WarmUp
from evctl.core.events import CoefficientsFitted, IterationSample
from evctl.core.split import Phase
from tests.policy.cluster import Cluster, of

MODEL = Coefficients(0.01, 1e-4, 1e-8, 0.0, 0.01, 0.0, 1e-3)
DECODES = IterationSample(Phase.DECODE, 0.02, 0, 100.0, 0, 4)


def prefilled(tokens: int, restored: int = 0) -> IterationSample:
    return IterationSample(Phase.PREFILL, 0.1, tokens, 1.0, restored, 0)


def fitted(cluster: Cluster, name: str, source: str = "fitted") -> list[object]:
    return of(cluster.feed(CoefficientsFitted(name, MODEL, source)), WarmUp)  # type: ignore[return-value]


def test_it_is_off_unless_asked_for() -> None:
    cluster = Cluster()
    assert of(cluster.log, WarmUp) == []
    assert {cluster.arrive(f"r{i}").decode_node for i in range(4)} == {"n3"}


def test_nodes_are_told_and_get_work_of_both_phases() -> None:
    cluster = Cluster(warm_up_s=60.0)
    assert of(cluster.log, WarmUp) == [WarmUp(n, on=True) for n in ("n1", "n2", "n3")]
    sent = [cluster.arrive(f"r{i}") for i in range(9)]
    assert {d.prefill_node for d in sent} == {"n1", "n2", "n3"}
    assert {d.decode_node for d in sent} == {"n1", "n2", "n3"}


def test_a_model_ends_it_for_its_node_only() -> None:
    cluster = Cluster(warm_up_s=60.0)
    assert fitted(cluster, "n3") == [WarmUp("n3", on=False)]
    assert fitted(cluster, "n3") == []
    sent = [cluster.arrive(f"r{i}") for i in range(9)]
    assert {d.prefill_node for d in sent} == {"n1", "n2"}
    assert {d.decode_node for d in sent} == {"n1", "n2", "n3"}


def test_a_node_that_changes_role_takes_only_its_new_work() -> None:
    """Its old work must end, or the move would never settle."""
    cluster = Cluster(warm_up_s=60.0)
    for index in range(9):
        cluster.arrive(f"old{index}")
        cluster.start(f"old{index}")
    cluster.hold("1P2D")
    (moving,) = [n for n in cluster.state.nodes.values() if n.role is not n.settled_role]
    sent = [cluster.arrive(f"r{index}") for index in range(9)]
    assert moving.name not in {d.prefill_node for d in sent}
    assert moving.name in {d.decode_node for d in sent}
    others = {"n1", "n2", "n3"} - {moving.name}
    assert {d.prefill_node for d in sent} == others  # they warm up still
    for index in range(9):
        cluster.first_token(f"old{index}")
    assert moving.role is moving.settled_role


def test_a_node_that_joins_again_with_its_model_needs_none() -> None:
    cluster = Cluster(warm_up_s=60.0)
    fitted(cluster, "n1", "kept")
    assert of(cluster.join("n1", "boot2"), WarmUp) == []
    assert not cluster.state.nodes["n1"].warming
    assert of(cluster.join("n2", "boot2"), WarmUp) == [WarmUp("n2", on=True)]


@pytest.mark.parametrize("busy_s", [0.01, math.nan])
def test_it_ends_some_time_without_a_model(busy_s: float) -> None:
    """After five times warm_up_s of work; idle hours before and between do not count. An engine
    whose clock is broken is no reason to warm up for ever."""
    decodes = msgspec.structs.replace(DECODES, busy_s=busy_s)
    cluster = Cluster(warm_up_s=60.0)
    for idle_s in (3600.0, 7200.0):
        cluster.now_s += idle_s
        for _ in range(31):
            assert of(cluster.fact("n1", decodes), WarmUp) == []
            cluster.now_s += 4.8
    assert of(cluster.fact("n1", decodes), WarmUp) == []
    cluster.now_s += 4.8
    assert of(cluster.fact("n1", decodes), WarmUp) == [WarmUp("n1", on=False)]
    assert of(cluster.fact("n1", decodes), WarmUp) == []
    assert cluster.state.nodes["n2"].warming


# ---------------------------------------------------------------- what the mix decides


def test_m_is_measured_on_iterations_that_left_work_behind() -> None:
    """A lone short prompt says nothing of how full iterations are when the node is busy."""
    cluster = Cluster(2, "1P1D")
    node = cluster.state.nodes["n1"]
    cluster.arrive("short", tokens=30)
    cluster.start("short")
    cluster.fact("n1", prefilled(30))
    assert node.tokens_per_iteration == 0.0
    cluster.arrive("long", tokens=600)
    cluster.start("long")
    cluster.fact("n1", prefilled(256))
    assert node.tokens_per_iteration == 256.0
    cluster.fact("n1", DECODES)
    cluster.fact("n1", prefilled(256))
    cluster.fact("n1", prefilled(88))
    assert node.tokens_per_iteration == 256.0


def test_m_follows_the_mix() -> None:
    cluster = Cluster(2, "1P1D")
    node = cluster.state.nodes["n1"]
    cluster.arrive("much", tokens=4000)
    cluster.arrive("waits", tokens=4000)
    cluster.start("much")
    for _ in range(10):
        cluster.fact("n1", prefilled(256))
    for _ in range(300):
        cluster.fact("n1", prefilled(4))
    assert node.tokens_per_iteration == pytest.approx(4.0, abs=1.0)


def test_tokens_that_wait_behind_a_fetch_do_not_hide_what_runs() -> None:
    """A request in front that has not begun takes none of an iteration's tokens."""
    cluster = Cluster(2, "1P1D")
    cluster.arrive("fetching", tokens=500)
    cluster.arrive("runs", tokens=300)
    cluster.start("runs")
    cluster.fact("n1", prefilled(200))
    requests = cluster.state.requests
    assert (requests["fetching"].remaining_tokens, requests["runs"].remaining_tokens) == (500, 100)


def test_the_share_of_restored_tokens_is_measured() -> None:
    cluster = Cluster(2, "1P1D")
    node = cluster.state.nodes["n1"]
    assert node.restored_share == 0.0
    for index in range(200):
        cluster.arrive(f"r{index}", tokens=100)
        cluster.start(f"r{index}", cached=80)
        cluster.fact("n1", prefilled(20, restored=20))
        cluster.first_token(f"r{index}")
        cluster.hand_over(f"r{index}")
        cluster.done(f"r{index}")
    assert node.restored_share == pytest.approx(0.25, abs=0.03)


def test_prefill_seconds_use_the_model_and_m() -> None:
    cluster = Cluster(2, "1P1D")
    node = cluster.state.nodes["n1"]
    fitted(cluster, "n1")
    alone_s = cluster.state.prefill_s(node, 1000.0, 1e6)
    assert alone_s == pytest.approx(0.01 + 0.1 + 0.01)
    node.tokens_per_iteration = 250.0
    assert cluster.state.prefill_s(node, 1000.0, 1e6) == pytest.approx(0.04 + 0.1 + 0.01)
