"""Changes of the split, and nodes that come and go."""

from __future__ import annotations

import pytest

from evctl.core.effects import Cancel, Dispatch, Fail, Notice, Recall, SetRole
from evctl.core.errors import UsageError
from evctl.core.events import (
    DispatchFailed,
    KvHeld,
    NodeLost,
    Override,
    RecallDenied,
    Recalled,
    RequestCancelled,
    TransferDone,
    TransferFailed,
)
from evctl.core.split import parse_split
from evctl.policy.cluster import ClusterState, PolicyConfig
from evctl.policy.transition import plan_moves
from tests.policy.cluster import Cluster, key, of, sent


def busy_cluster() -> Cluster:
    """2P1D. n1: r1 running, r3 waiting. n2: r2 waiting."""
    cluster = Cluster()
    for name in ("r1", "r2", "r3"):
        cluster.arrive(name)
    cluster.start("r1")
    return cluster


def test_the_node_with_fewest_running_requests_moves_and_gives_back_what_it_has_not_begun() -> (
    None
):
    cluster = busy_cluster()
    effects = cluster.hold("1P2D")
    assert of(effects, SetRole) == [SetRole("n2", "D", 1)]
    assert of(effects, Recall) == [Recall("r2", "n2")]
    assert str(cluster.state.split) == "1P2D"
    assert cluster.state.settled_split == "2P1D"
    effects = cluster.fact("n2", Recalled("r2"))
    assert sent(effects) == [Dispatch("r2", "n1", "n2")]
    assert [n.what for n in of(effects, Notice)] == ["settled as D"]  # type: ignore[union-attr]
    assert cluster.state.settled_split == "1P2D"


def test_a_node_that_turns_to_prefill_takes_its_part_of_what_waits() -> None:
    """n1 runs r1, and r2 to r5 wait behind it: two prompts of five belong to the other node, the
    last ones."""
    cluster = Cluster(3, "1P2D")
    for number in range(1, 6):
        cluster.arrive(f"r{number}")
    cluster.start("r1")
    effects = cluster.hold("2P1D")
    (role,) = of(effects, SetRole)
    assert of(effects, Recall) == [Recall("r4", "n1"), Recall("r5", "n1")]
    for name in ("r4", "r5"):
        (dispatch,) = sent(cluster.fact("n1", Recalled(name)))
        assert dispatch.prefill_node == role.node  # type: ignore[union-attr]
    assert {cluster.state.requests[f"r{n}"].prefill_node for n in (1, 2, 3)} == {"n1"}


def test_nodes_that_stood_in_for_prefill_give_all_that_waits_to_the_one_that_is_there_again() -> (
    None
):
    """The only prefill node is lost, decode nodes serve both phases; then one of them turns."""
    cluster = Cluster(4, "1P3D")
    cluster.feed(NodeLost("n1", cluster.boot("n1"), "gone"))
    for number in range(1, 7):
        cluster.arrive(f"r{number}")
    assert {r.prefill_node for r in cluster.state.requests.values()} == {"n2", "n3", "n4"}
    effects = cluster.hold("2P2D")
    (role,) = of(effects, SetRole)
    called = {(one.request_id, one.node) for one in of(effects, Recall)}  # type: ignore[union-attr]
    elsewhere = {
        (name, r.prefill_node)
        for name, r in cluster.state.requests.items()
        if r.prefill_node != role.node  # type: ignore[union-attr]
    }
    assert called == elsewhere
    for name, node in sorted(called):
        (dispatch,) = sent(cluster.fact(node, Recalled(name)))
        assert dispatch.prefill_node == role.node  # type: ignore[union-attr]


def test_a_late_node_has_no_share_of_what_waits() -> None:
    """It would get nothing: what was called back would only lose its place."""
    cluster = Cluster(3, "1P2D")
    for number in range(1, 6):
        cluster.arrive(f"r{number}")
    cluster.now_s += cluster.state.config.node_late_after_s
    cluster.beat("n1")
    assert of(cluster.hold("2P1D"), Recall) == []


def test_a_short_queue_stays_where_it_is() -> None:
    cluster = Cluster(3, "1P2D")
    cluster.arrive("r1")
    assert of(cluster.hold("2P1D"), Recall) == [], "it is about to begin"


def test_what_was_called_back_already_is_not_called_back_again() -> None:
    cluster = Cluster(3, "1P2D")
    for number in range(1, 6):
        cluster.arrive(f"r{number}")
    assert len(of(cluster.hold("2P1D"), Recall)) == 2
    cluster.hold("1P2D")
    assert of(cluster.hold("2P1D"), Recall) == []


def test_a_fixed_session_waits_where_it_is() -> None:
    cluster = Cluster(3, "1P2D", routing="session")
    for number in range(1, 6):
        cluster.arrive(f"r{number}")
    assert of(cluster.hold("2P1D"), Recall) == []


def test_what_has_begun_finishes_in_place() -> None:
    cluster = busy_cluster()
    cluster.start("r2")
    cluster.start("r3")
    assert of(cluster.hold("1P2D"), Recall) == []
    assert cluster.state.nodes["n2"].settled_role == "P"
    assert cluster.arrive("new").prefill_node == "n1"
    cluster.first_token("r2")
    assert cluster.state.nodes["n2"].settled_role == "D"


def test_a_denied_recall_changes_nothing() -> None:
    cluster = busy_cluster()
    cluster.hold("1P2D")
    cluster.fact("n2", RecallDenied("r2"))
    cluster.start("r2")
    cluster.first_token("r2")
    cluster.hand_over("r2")
    cluster.done("r2")
    assert cluster.state.tallies.done == 1


def test_requests_to_be_decoded_on_a_node_that_turns_to_prefill_keep_it() -> None:
    cluster = Cluster(3, "1P2D")
    cluster.arrive("r1")
    cluster.arrive("r2")
    assert cluster.state.requests["r2"].decode_node == "n3"
    cluster.decode("r1")
    effects = cluster.hold("2P1D")
    assert of(effects, SetRole) == [SetRole("n3", "P", 1)]
    assert of(effects, Recall) == []
    cluster.decode("r2")
    assert cluster.state.requests["r2"].decode_node == "n3"
    assert cluster.state.nodes["n3"].settled_role == "D"
    cluster.done("r2")
    assert cluster.state.nodes["n3"].settled_role == "P"


def test_a_second_override_supersedes_the_first() -> None:
    cluster = busy_cluster()
    cluster.hold("1P2D")
    effects = cluster.hold("2P1D")
    (back,) = of(effects, SetRole)
    assert back == SetRole("n2", "P", 2), "n2 runs nothing; n3 would be next"
    assert sent(cluster.fact("n2", Recalled("r2"))) == [Dispatch("r2", "n2", "n3")]
    assert str(cluster.state.split) == cluster.state.settled_split == "2P1D"


def test_an_override_to_the_same_split_holds_it_and_moves_nothing() -> None:
    cluster = busy_cluster()
    effects = cluster.hold("2P1D")
    assert of(effects, SetRole) == []
    assert (cluster.state.mode, cluster.state.generation) == ("hold", 1)
    cluster.feed(Override("advise", "", "me", ""))
    assert (cluster.state.mode, cluster.state.generation) == ("advise", 2)


@pytest.mark.parametrize("override", [("hold", "3P1D"), ("hold", "junk"), ("dance", "1P2D")])
def test_an_impossible_override_changes_nothing(override: tuple[str, str]) -> None:
    cluster = busy_cluster()
    effects = cluster.feed(Override(override[0], override[1], "me", ""))
    assert [type(e) for e in effects] == [Notice]
    assert cluster.state.generation == 0


def test_plans_name_the_moves_and_refuse_another_size() -> None:
    cluster = busy_cluster()
    (move,) = plan_moves(cluster.state, parse_split("1P2D"))
    assert (move.node, move.before, move.after, move.running, move.queued) == (
        "n2",
        "P",
        "D",
        0,
        1,
    )
    with pytest.raises(UsageError) as caught:
        plan_moves(cluster.state, parse_split("4P5D"))
    assert caught.value.code == "EV-1103"


def test_a_cancel_while_recalled_ends_it_once() -> None:
    cluster = busy_cluster()
    cluster.hold("1P2D")
    assert of(cluster.feed(RequestCancelled("r2")), Cancel) == [Cancel("r2", ("n2", "n3"))]
    assert sent(cluster.fact("n2", Recalled("r2"))) == []
    assert cluster.state.tallies.cancelled == 1


def test_a_refusal_while_recalled_sends_it_elsewhere() -> None:
    cluster = busy_cluster()
    cluster.hold("1P2D")
    effects = cluster.feed(DispatchFailed("r2", "n2", "EV-2307", "full", retry=True))
    assert sent(effects) == [Dispatch("r2", "n1", "n2")]
    cluster.fact("n2", RecallDenied("r2"))


def test_a_lost_node_takes_its_requests_along_and_no_others() -> None:
    cluster = Cluster(4, "2P2D")
    for name in ("r1", "r2", "r3", "r4"):
        cluster.arrive(name)
    placed = {r.request_id: r.nodes for r in cluster.state.requests.values()}
    assert placed["r1"] == ("n1", "n3")
    assert placed["r3"][0] == "n1"
    cluster.decode("r1")
    cluster.start("r3")
    cluster.arrive("r5")
    assert cluster.state.requests["r5"].prefill_node == "n1"
    effects = cluster.feed(NodeLost("n3", "boot1", "its process died"))
    assert [e.request_id for e in of(effects, Fail)] == ["r1"]  # type: ignore[union-attr]
    assert "n3 was lost: its process died" in of(effects, Fail)[0].reason  # type: ignore[union-attr]
    survivors = {r.request_id: r.nodes for r in cluster.state.requests.values()}
    assert all("n3" not in nodes for nodes in survivors.values())
    effects = cluster.feed(NodeLost("n1", "boot1", "its process died"))
    lost = {e.request_id for e in of(effects, Fail)}  # type: ignore[union-attr]
    assert lost == {"r3"}, "what had begun there"
    (again,) = of(effects, Dispatch)
    assert (again.request_id, again.prefill_node) == ("r5", "n2")  # type: ignore[union-attr]
    assert Cancel("r5", ("n1",)) in effects
    assert cluster.feed(NodeLost("n1", "boot1", "again")) == []


def test_a_hand_over_to_a_node_that_was_lost_meanwhile_is_a_failure() -> None:
    cluster = Cluster(4, "2P2D")
    cluster.arrive("r1")
    cluster.start("r1")
    cluster.first_token("r1")
    cluster.feed(NodeLost("n3", "boot1", "gone"))
    assert cluster.state.requests["r1"].decode_node == "n1"
    effects = cluster.fact("n1", TransferDone("r1", "n3", 1, 1, 0))
    assert [e.request_id for e in of(effects, Fail)] == ["r1"]  # type: ignore[union-attr]


def test_a_failed_hand_over_decodes_in_place() -> None:
    cluster = Cluster()
    cluster.arrive("r1")
    cluster.start("r1")
    cluster.fact("n1", TransferFailed("r1", "n3", "no room"))
    cluster.first_token("r1")
    assert cluster.state.requests["r1"].nodes == ("n1",)
    assert cluster.state.requests["r1"].stage == "decode"


def test_a_survivor_serves_both_phases_until_there_is_a_choice() -> None:
    cluster = Cluster()
    effects = cluster.feed(NodeLost("n3", "boot1", "gone"))
    assert any("no node is left for decode" in n.what for n in of(effects, Notice))  # type: ignore[union-attr]
    assert cluster.arrive("r1").decode_node in ("n1", "n2")
    effects = cluster.join("n3", "boot2")
    assert any("serves decode again" in n.what for n in of(effects, Notice))  # type: ignore[union-attr]
    assert cluster.arrive("r2").decode_node == "n3"


def test_with_a_lost_node_an_override_keeps_an_alive_one_on_either_side() -> None:
    cluster = Cluster()
    cluster.feed(NodeLost("n2", "boot1", "gone"))
    assert of(cluster.hold("1P2D"), SetRole) == [SetRole("n2", "D", 1)]
    cluster.join("n2", "boot2")
    assert cluster.state.nodes["n2"].role == "D"


def test_a_new_life_forgets_the_old_one() -> None:
    cluster = Cluster()
    cluster.holds("n1", 1, 1)
    cluster.arrive("r1")
    cluster.start("r1")
    effects = cluster.join("n1", "boot2")
    assert [e.request_id for e in of(effects, Fail)] == ["r1"]  # type: ignore[union-attr]
    assert cluster.leading("n1", 1) == 0
    assert cluster.state.nodes["n1"].boot_id == "boot2"


def test_facts_of_an_old_life_are_ignored() -> None:
    from evctl.core.events import FromNode, NodeReport

    cluster = Cluster()
    cluster.join("n1", "boot2")
    cluster.feed(FromNode("n1", "boot1", KvHeld(1, b"", key(1))))
    cluster.feed(NodeReport("n1", "boot1", 0, 0, 0, 0, 0, 0))
    assert cluster.leading("n1", 1) == 0
    assert cluster.state.tallies.ignored == 2


def test_roles_of_an_earlier_life_rule() -> None:
    roles = {"n1": "D", "n2": "P", "n3": "D"}
    state = ClusterState(PolicyConfig(("n1", "n2", "n3"), "2P1D", roles=roles, generation=7))
    assert str(state.split) == "1P2D"
    assert state.generation == 7
    broken = ClusterState(PolicyConfig(("n1", "n2", "n3"), "2P1D", roles={"n1": "D"}))
    assert str(broken.split) == "2P1D", "half an answer is none"
    with pytest.raises(UsageError):
        ClusterState(PolicyConfig(("n1", "n2"), "2P1D"))
