"""One test a row of the rule table of section 3, and what the text below it adds."""

from __future__ import annotations

from tests.policy.directory.chains import ROOT, Cluster, D, P, chain, last


def test_a_new_branch_counts_on_every_block_where_it_is_held() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0")
    assert c.refs("p0", "xyz") == [1, 1, 1]
    assert c.refs("d0", "xyz") == [1, 1, 1]


def test_a_fork_counts_on_what_it_shares_and_a_sub_agent_leaves_the_parent_alone() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0")
    c.run("f", "xyw", "p0", "d0", op="fork", parent="a")
    assert c.refs("p0", "xyz") == [2, 2, 1]
    c.run("s", "q", "p0", "d0", op="spawn", parent="a", kind="subagent")
    assert c.refs("p0", "xyz") == [2, 2, 1]
    assert c.refs("p0", "q") == [1]
    c.directory.end("t", "a")
    assert c.refs("p0", "xyz") == [1, 1, 0]


def test_the_next_request_counts_on_what_it_adds_only() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0")
    c.run("a", "xyzuv", "p0", "d0")
    assert c.refs("p0", "xyzuv") == [1, 1, 1, 1, 1]
    assert c.directory.tallies.implicit_rewrites == 0


def test_output_belongs_to_the_branch_at_once() -> None:
    c = Cluster()
    c.run("a", "xy", "p0", "d0", output="zz")
    assert c.refs("d0", "xyzz") == [1, 1, 1, 1]
    assert c.directory.ledger.branches["t", "a"].end == 4
    c.run("a", "xyzzk", "p1", "d1")
    assert c.refs("d0", "xyzz") == [0, 0, 0, 0]
    assert c.refs("p1", "xyzzk") == [1] * 5


def test_a_rewrite_drops_the_old_and_leaves_the_shared_prefix_untouched() -> None:
    for version, tally in ((1, "rewrites"), (0, "implicit_rewrites"), (None, "implicit_rewrites")):
        c = Cluster()
        c.run("a", "xyz", "p0", "d0")
        c.check()
        c.told.clear()
        c.run("a", "xk", "p0", "d0", version=version)
        assert c.refs("p0", "xyz") == [1, 0, 0]
        assert c.refs("p0", "xk") == [1, 1]
        assert getattr(c.directory.tallies, tally) == 1
        assert ("p0", last("x")) not in c.told, "nobody is told about what did not change"


def test_a_signalled_rewrite_is_not_an_implicit_one() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0")
    assert c.directory.rewrite("t", "a", 1, 0.0)
    assert not c.directory.rewrite("t", "a", 1, 0.0), "idempotent"
    assert c.refs("p0", "xyz") == [1, 1, 1], "only the next prompt says what is dropped"
    c.run("a", "xk", "p0", "d0")
    assert (c.directory.tallies.rewrites, c.directory.tallies.implicit_rewrites) == (1, 0)


def test_the_end_drops_all_references_in_both_phases() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0")
    assert c.directory.end("t", "a")
    assert not c.directory.end("t", "a")
    assert c.refs("p0", "xyz") == c.refs("d0", "xyz") == [0, 0, 0]
    c.run("a", "xyz", "p0", "d0")
    assert c.refs("p0", "xyz") == [0, 0, 0], "an ended branch stays ended"
    assert c.directory.tallies.ended_branch == 2


def test_the_final_request_ends_its_branch_once_it_is_answered() -> None:
    c = Cluster()
    rid = c.ask("a", "xyz", final=True)
    c.directory.closed(rid, 0.0, completed=False)
    assert ("t", "a") in c.directory.ledger.branches
    c.run("a", "xyz", "p0", "d0", final=True)
    assert ("t", "a") not in c.directory.ledger.branches


def test_a_move_within_a_phase_takes_the_branch_along_and_leaves_its_siblings() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0")
    c.run("b", "xyz", "p0", "d0")
    assert c.refs("p0", "xyz") == [2, 2, 2]
    rid = c.ask("a", "xyz")
    c.directory.place(rid, P, "p1")
    c.store("p1", "xyz", rid=rid)
    assert c.refs("p0", "xyz") == [2, 2, 2], "until it is verified, the source keeps it"
    assert c.refs("p1", "xyz") == [0, 0, 0]
    c.directory.moved(rid, P)
    assert c.refs("p0", "xyz") == c.refs("p1", "xyz") == [1, 1, 1]


def test_a_failed_or_cancelled_move_changes_nothing() -> None:
    for cancelled in (True, False):
        c = Cluster()
        c.run("a", "xyz", "p0", "d0")
        rid = c.ask("a", "xyz")
        c.directory.place(rid, P, "p1")
        c.directory.place(rid, D, "d1")
        c.store("p1", "xy", rid=rid)
        if cancelled:
            c.directory.closed(rid, 0.0, completed=False)
        else:
            c.directory.failed(rid, P)
            c.directory.moved(rid, P)
        assert c.refs("p0", "xyz") == c.refs("d0", "xyz") == [1, 1, 1]
        assert c.refs("p1", "xy") == [0, 0]


def test_a_push_counts_on_both_sides_and_drops_the_old_decode_node() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0")
    c.run("a", "xyzu", "p0", "d1")
    assert c.refs("p0", "xyzu") == [1, 1, 1, 1]
    assert c.refs("d1", "xyzu") == [1, 1, 1, 1]
    assert c.refs("d0", "xyz") == [0, 0, 0]


def test_both_phases_at_one_node_count_twice() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "p0")
    assert c.refs("p0", "xyz") == [2, 2, 2]


def test_decode_to_prefill_resets_the_nodes_d_references_and_keeps_its_l2() -> None:
    c = Cluster()
    c.run("a", "xy", "p0", "d0", output="zz")
    assert c.directory.role_changed("d0", P) == 1
    assert c.refs("d0", "xyzz") == [0, 0, 0, 0]
    assert c.refs("p0", "xy") == [1, 1]
    c.directory.l1_emptied("d0", "1")
    c.check()
    assert c.refs("d0", "xyzz") == [-1, -1, 0, 0]
    assert c.directory.sources(chain("xyzz"), 2) == [(0, 2, ("p0",)), (2, 4, ("d0",))]


def test_relabel_keeps_the_only_copy_of_what_was_generated() -> None:
    c = Cluster(relabel=True)
    c.run("a", "xy", "p0", "d0", output="zz")
    c.directory.role_changed("d0", P)
    c.check()
    assert c.refs("d0", "xyzz") == [0, 0, 1, 1]
    assert c.directory.tallies.relabelled == 1


def test_prefill_to_decode_keeps_counts_and_kv() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0")
    assert c.directory.role_changed("p0", D) == 0
    assert c.refs("p0", "xyz") == [1, 1, 1]


def test_a_lost_node_takes_its_copies_and_references_along_and_nothing_else() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0")
    assert c.directory.node_lost("p0", "1")
    assert not c.directory.node_lost("p0", "1")
    c.check()
    assert c.lead("xyz") == {"d0": 3}
    assert c.refs("d0", "xyz") == [1, 1, 1]
    assert c.directory.node_joined("p0", "2")
    assert not c.directory.node_joined("p0", "1"), "a past life does not come back"
    assert not c.store("p0", "xyz"), "nor do its facts count"
    assert c.directory.tallies.stale_boot == 2
    c.directory.stored("p0", "2", 2, ROOT, chain("xyz"))
    assert c.refs("p0", "xyz") == [0, 0, 0]


def test_a_late_request_is_served_and_changes_no_count() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0", version=3)
    c.run("a", "xq", "p1", "d1", version=2)
    assert c.refs("p0", "xyz") == [1, 1, 1]
    assert c.refs("p1", "xq") == [0, 0]
    assert c.directory.tallies.late_version == 1


def test_of_two_moves_the_later_requests_wins() -> None:
    c = Cluster()
    first, second = c.ask("a", "xyz"), c.ask("a", "xyz")
    for rid, node in ((first, "p0"), (second, "p1")):
        c.directory.place(rid, P, node)
        c.store(node, "xyz", rid=rid)
    c.directory.moved(second, P)
    c.directory.moved(first, P)
    assert c.refs("p1", "xyz") == [1, 1, 1]
    assert c.refs("p0", "xyz") == [0, 0, 0]
    assert c.directory.tallies.late_moves == 1


def test_a_fork_signal_holds_the_parents_context_until_the_first_prompt() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0")
    assert c.directory.fork("t", "f", "a", 0.0)
    assert not c.directory.fork("t", "f", "a", 0.0)
    assert c.refs("p0", "xyz") == [2, 2, 2]
    c.directory.end("t", "a")
    assert c.refs("p0", "xyz") == [1, 1, 1]
    c.run("f", "xyk", "p0", "d0")
    assert c.refs("p0", "xyz") == [1, 1, 0]
    assert c.directory.tallies.implicit_rewrites == 0


def test_a_silent_branch_is_suspect_until_it_speaks() -> None:
    c = Cluster(suspect_after_s={"root": 60.0})
    c.run("a", "xy", "p0", "d0")
    c.run("f", "x", "p0", "d0", op="fork", parent="a")
    assert c.directory.mark_silent(59.0) == 0
    assert c.directory.mark_silent(60.0) == 1, "a fork never is, for want of a threshold"
    c.check()
    assert [c.told.get(("p0", last(path)), 2) for path in ("x", "xy")] == [2, 1]
    c.now_s = 61.0
    c.ask("a", "xy")
    assert [c.told.get(("p0", last(path)), 2) for path in ("x", "xy")] == [2, 2]
    assert c.directory.mark_silent(9999.0) == 0, "it is being served"


def test_branch_ids_are_the_tenants_own() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0", tenant="one")
    c.run("a", "xyz", "p0", "d0", tenant="two")
    assert c.refs("p0", "xyz") == [2, 2, 2]
    c.directory.end("one", "a")
    assert c.refs("p0", "xyz") == [1, 1, 1]
    assert not c.directory.fork("one", "f", "a", 0.0), "its parent is another tenant's"


def test_a_lease_keeps_what_a_transfer_reads() -> None:
    c = Cluster()
    c.store("p0", "xyz")
    rid = c.ask("a", "xyz")
    c.directory.place(rid, P, "p1")
    c.directory.lease(rid, P, "p0", 0, 2)
    c.check()
    assert [c.told.get(("p0", last(p)), 2) for p in ("x", "xy", "xyz")] == [2, 2, 0]
    assert c.refs("p0", "xyz") == [0, 0, 0]
    c.directory.moved(rid, P)
    c.check()
    assert [c.told.get(("p0", last(p)), 2) for p in ("x", "xy", "xyz")] == [0, 0, 0]


def test_tombstones_are_bounded() -> None:
    c = Cluster(tombstones=3)
    for at in range(9):
        c.ask(f"b{at}", "x")
        c.directory.end("t", f"b{at}")
    assert len(c.directory.ledger.ended) == 3


def test_nothing_is_left_when_everything_is_over() -> None:
    c = Cluster()
    for at in range(20):
        text = "abcdefghijklmnop"[: at % 7 + 1] + "xyz"[at % 3] * (at % 5)
        c.run(f"b{at % 6}", text, f"p{at % 2}", f"d{at % 2}", output="uv")
    for at in range(6):
        c.directory.end("t", f"b{at}")
    c.check()
    assert c.directory.tree.blocks > 0
    for node in ("p0", "p1", "d0", "d1"):
        c.directory.node_lost(node, "1")
    c.check()
    tree = c.directory.tree
    assert (tree.runs, tree.blocks, tree.index) == (0, 0, {})
