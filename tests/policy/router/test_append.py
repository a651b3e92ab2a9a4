"""Append on decode: few new tokens run where the rest lies, when that is sooner for all."""

from __future__ import annotations

import pytest

from evctl.core.branches import BranchSignal
from evctl.core.costs import Coefficients
from evctl.core.effects import Dispatch
from evctl.core.events import (
    CoefficientsFitted,
    DispatchFailed,
    IterationSample,
    KvEvicted,
    NodeLost,
    NodeReport,
)
from evctl.core.split import Phase
from evctl.policy.links import FetchPrior
from evctl.policy.state import Stage
from tests.policy.cluster import BLOCK_TOKENS, Cluster, keys, of

BRANCH = BranchSignal("b")
PATH = tuple(range(20))
PROMPT = BLOCK_TOKENS * len(PATH)
MODEL = Coefficients(0.0, 1e-3, 0.0, 0.0, 4e-3, 0.0, 1e-3)


def cluster_of(append_tokens: int = 16, **config: object) -> Cluster:
    """1P2D with a branch that n2 has decoded: its prompt is in L1 there and in L2 of n1; what is
    fetched takes 10 s."""
    cluster = Cluster(
        3,
        "1P2D",
        l2_blocks=100,
        append_tokens=append_tokens,
        prior_fetch=FetchPrior(10.0, 0.0),
        **config,
    )
    for name in ("n1", "n2", "n3"):
        cluster.feed(CoefficientsFitted(name, MODEL, "fitted"))
    cluster.arrive("first", PROMPT + 1, keys(*PATH), BRANCH)
    cluster.holds("n1", 2, *PATH)
    cluster.decode("first")
    cluster.holds("n2", 1, *PATH)
    cluster.done("first")
    cluster.arrive("busy", 400)
    return cluster


def again(cluster: Cluster, added: int = 8, name: str = "next") -> Dispatch:
    return cluster.arrive(name, PROMPT + added, keys(*PATH), BRANCH)


def test_few_new_tokens_run_on_the_decode_node() -> None:
    cluster = cluster_of()
    sent = again(cluster)
    assert (sent.prefill_node, sent.decode_node, sent.fetch) == ("n2", "n2", ())
    assert cluster.last is not None
    (why,) = cluster.last.explanations
    assert "behind its prefix there" in why.decision
    terms = why.terms["append n2"]
    assert (terms["cached_tokens"], terms["uncached_tokens"]) == (float(PROMPT), 8.0)
    assert sent.predicted is not None
    assert sent.predicted.ttft_s == pytest.approx(0.008), "nothing decodes there"
    assert "append n3" not in why.terms


@pytest.mark.parametrize(("most", "appends"), [(0, False), (7, False), (8, True)])
def test_the_threshold_is_on_new_tokens(most: int, appends: bool) -> None:
    sent = again(cluster_of(most))
    assert (sent.prefill_node == "n2") is appends


def test_not_when_the_prefill_node_answers_sooner() -> None:
    cluster = cluster_of()
    for fact in (IterationSample(Phase.PREFILL, 0.4, 400, 1.0, 0, 0),):
        cluster.start("busy")
        cluster.fact("n1", fact)
    _decode_on(cluster, "n2", 3)
    sent = again(cluster)
    assert sent.prefill_node == "n1", "8 ms there; here 8, 1.5 iterations, and others wait"


def _decode_on(cluster: Cluster, node: str, count: int) -> None:
    """Requests that decode there, their prompts long computed; the other decode node has no room
    meanwhile."""
    other = "n3" if node == "n2" else "n2"
    cluster.feed(NodeReport(other, "boot1", 0, 0, 0, 0, 1000, 0))
    for number in range(count):
        assert cluster.arrive(f"d{number}", 4).decode_node == node
        cluster.decode(f"d{number}")
    cluster.feed(NodeReport(other, "boot1", 0, 0, 0, 0, 0, 0))


def test_a_short_prompt_without_a_prefix_is_not_appended() -> None:
    cluster = cluster_of()
    assert cluster.arrive("short", 4).prefill_node == "n1"


def test_a_short_prompt_that_only_l2_holds_is_not_appended() -> None:
    cluster = cluster_of()
    cluster.holds("n3", 2, *PATH[:3])
    cluster.arrive("short", 16, keys(*PATH[:3]))
    assert cluster.last is not None
    assert "append n3" not in cluster.last.explanations[0].terms


def test_what_running_decodes_lose_counts() -> None:
    cluster = cluster_of()
    _decode_on(cluster, "n2", 5)
    again(cluster)
    assert cluster.last is not None
    terms = cluster.last.explanations[0].terms["append n2"]
    assert terms["interfering_s"] == pytest.approx(5 * 0.008)
    assert terms["own_s"] == pytest.approx(0.008 + 1.5 * (4e-3 + 5e-3))
    assert terms["total_s"] == pytest.approx(terms["own_s"] + terms["interfering_s"])


def test_only_what_l1_holds_counts_as_held() -> None:
    """What wrong code would pass? One that asks for copies in any tier."""
    cluster = cluster_of()
    cluster.holds("n2", 2, *PATH)
    cluster.fact("n2", KvEvicted(1, keys(*PATH[10:])))
    assert again(cluster).prefill_node == "n1"


def test_a_prefix_with_a_hole_ends_at_the_hole() -> None:
    cluster = cluster_of()
    cluster.fact("n2", KvEvicted(1, keys(PATH[3])))
    assert again(cluster).prefill_node == "n1"


def test_not_without_room() -> None:
    cluster = cluster_of()
    cluster.feed(NodeReport("n2", "boot1", 0, 0, 0, 0, 985, 0))
    assert again(cluster).prefill_node == "n1"


def test_not_where_it_was_refused() -> None:
    cluster = cluster_of()
    again(cluster)
    effects = cluster.feed(DispatchFailed("next", "n2", "EV-2307", "full", retry=True))
    (sent,) = of(effects, Dispatch)
    assert isinstance(sent, Dispatch)
    assert sent.prefill_node == "n1"
    assert not cluster.state.requests["next"].appended


def test_a_decode_node_with_a_longer_iteration_must_be_worth_it() -> None:
    """Outputs are 1,000 tokens on average, each 1 ms later on n2 than on n3: that is more than
    the 0.4 s that n1 makes it wait."""
    cluster = cluster_of()
    _decode_on(cluster, "n2", 1)
    cluster.state.output_tokens = 1000.0
    assert again(cluster).prefill_node == "n1"
    cluster.state.output_tokens = 10.0
    assert again(cluster, name="other").prefill_node == "n2"


def test_references_for_prefill_stay_and_those_for_decode_grow() -> None:
    """Section 3: nothing moved within prefill. What wrong code would pass? One that places both
    phases here: n1's copies would be nobody's, and the first to go."""
    cluster = cluster_of()
    life = cluster.state.directory.nodes
    before = {name: list(life[name].classes) for name in ("n1", "n2")}
    assert before["n1"][2] == len(PATH)
    longer = keys(*PATH, 20, 21)
    cluster.arrive("next", PROMPT + 9, longer, BRANCH)
    assert cluster.state.requests["next"].prefill_node == "n2"
    cluster.start("next", PROMPT)
    cluster.holds("n2", 1, *PATH, 20, 21)
    cluster.first_token("next")
    assert cluster.state.requests["next"].stage is Stage.DECODE
    assert list(life["n1"].classes) == before["n1"]
    assert life["n2"].classes[2] == before["n2"][2] + 2
    cluster.done("next")
    assert list(life["n1"].classes) == before["n1"]


def test_it_goes_elsewhere_when_its_node_is_lost_before_it_began() -> None:
    cluster = cluster_of()
    again(cluster)
    effects = cluster.feed(NodeLost("n2", "boot1", "gone"))
    (sent,) = of(effects, Dispatch)
    assert isinstance(sent, Dispatch)
    assert (sent.prefill_node, sent.decode_node) == ("n1", "n3")
    cluster.decode("next")
    cluster.done("next")


def test_it_stays_when_its_node_becomes_a_prefill_node() -> None:
    cluster = cluster_of()
    again(cluster)
    cluster.hold("2P1D")
    moved = [n.name for n in cluster.state.nodes.values() if n.role == "P"]
    cluster.decode("next")
    cluster.done("next")
    assert "n1" in moved
