"""What nodes report: the cases that other directories were probed with, and worse ones."""

from __future__ import annotations

import random

import pytest

from evctl.policy.directory.runs import Run
from evctl.policy.directory.views import block, branch, branches, copies_of, summary
from evctl.policy.directory.views import reference_histogram as histogram
from tests.policy.directory.chains import ROOT, Cluster, D, P, chain, last


def test_prefixes_gaps_and_misses() -> None:
    c = Cluster()
    c.store("p0", "abcd")
    assert c.lead("abcd") == {"p0": 4}
    assert c.lead("ab") == {"p0": 2}
    assert c.lead("acd") == {"p0": 1}
    assert c.lead("z") == c.lead("") == {}


def test_storing_twice_is_storing_once() -> None:
    c = Cluster()
    assert c.store("p0", "abcd")
    assert c.store("p0", "abcd")
    assert (c.directory.tree.runs, c.directory.tree.blocks) == (1, 4)


def test_an_unknown_parent_is_dropped_and_counted() -> None:
    c = Cluster()
    assert not c.store("p0", "cd", after="ab")
    assert c.directory.tallies.unknown_parent == 1
    assert c.directory.tree.runs == 0


def test_a_parent_known_from_another_node_only() -> None:
    c = Cluster()
    c.store("p0", "ab")
    assert c.store("p1", "cd", after="ab")
    assert c.lead("abcd") == {"p0": 2}
    assert c.directory.match(chain("abcd")).stored == 4, "somewhere, all of it is"
    c.store("p1", "ab")
    assert c.lead("abcd") == {"p0": 2, "p1": 4}


def test_removing_the_leaf_and_the_middle() -> None:
    c = Cluster()
    c.store("p0", "abcd")
    assert c.evict("p0", "d", after="abc") == 1
    assert c.lead("abcd") == {"p0": 3}
    assert c.evict("p0", "b", after="a") == 1
    assert c.lead("abcd") == {"p0": 1}, "what lies behind a gap does not lead anywhere"


def test_remove_block_2_of_4_and_store_it_again() -> None:
    c = Cluster()
    c.store("p0", "abcd")
    c.evict("p0", "b", after="a")
    c.store("p0", "b", after="a")
    assert c.lead("abcd") == {"p0": 4}


def test_removing_what_is_not_there() -> None:
    c = Cluster()
    c.store("p0", "abcd")
    assert c.evict("p0", "z") == 0
    assert c.evict("p1", "abcd") == 0
    assert c.evict("p0", "abcd", tier=1) == 0
    assert c.lead("abcd") == {"p0": 4}
    assert c.directory.tallies.unknown_evicted == 9


def test_eviction_before_storing_leaves_no_trace() -> None:
    c = Cluster()
    assert c.evict("p0", "abcd") == 0
    c.store("p0", "abcd")
    assert c.lead("abcd") == {"p0": 4}


def test_two_nodes_of_different_depth_and_one_that_leaves() -> None:
    c = Cluster()
    c.store("p0", "abcd")
    c.store("p1", "ab")
    assert c.lead("abcd") == {"p0": 4, "p1": 2}
    c.directory.node_lost("p0", "1")
    c.check()
    assert c.lead("abcd") == {"p1": 2}
    assert c.directory.tree.blocks == 2


def test_what_a_lost_node_leaves_is_pruned_little_by_little() -> None:
    c = Cluster()
    for at in range(100):
        c.directory.stored("p0", "1", 2, ROOT, chain(chr(at + 200)))
    c.directory.node_lost("p0", "1")
    assert c.directory.match(chain(chr(200))).stored == 0, "gone at once for whoever asks"
    left = [c.directory.tree.runs]
    while left[-1]:
        c.directory.deltas()
        left.append(c.directory.tree.runs)
    assert left == [100, 68, 36, 4, 0]
    assert not c.directory.tree.doubtful


def test_a_node_that_comes_back_starts_empty_and_can_store() -> None:
    c = Cluster()
    c.store("p0", "abcd")
    c.directory.node_joined("p0", "2")
    assert c.lead("abcd") == {}
    assert c.directory.stored("p0", "2", 2, ROOT, chain("abcd"))
    assert c.lead("abcd") == {"p0": 4}


def test_tiers_are_kept_apart_and_count_together() -> None:
    c = Cluster()
    c.store("p0", "ab", tier=1)
    c.store("p0", "cd", after="ab", tier=2)
    assert c.lead("abcd") == {"p0": 4}
    assert c.directory.tier_coverage(chain("abcd"), 1) == {"p0": 2}
    assert c.directory.tier_coverage(chain("abcd"), 2) == {}
    assert not c.store("p0", "ab", tier=3)
    assert c.directory.tallies.unknown_tier == 1


@pytest.mark.parametrize("hinted", [True, False])
def test_a_parent_in_the_middle_of_a_run_is_found(hinted: bool) -> None:
    c = Cluster()
    rid = c.ask("a", "abcdefgh")
    if not hinted:
        c.store("p0", "abcdefgh")
    assert c.store("p0", "xy", after="abc", rid=rid if hinted else "")
    c.store("p0", "abc")
    assert c.lead("abcxy") == {"p0": 5}


def test_a_parent_where_a_requests_blocks_begin_is_found_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    c = Cluster()
    for prompt in ("abcd", "abcdxyef"):  # d0 has generated "xy", so that its copy goes on
        rid = c.ask("b", prompt)
        for phase, node in ((P, "p0"), (D, "d0")):
            c.directory.place(rid, phase, node)
        for search in ("find", "find_last"):
            monkeypatch.setattr(Run, search, lambda *_: pytest.fail("a run was searched"))
        at = prompt[:-4]
        assert c.store("p0", prompt[-4:], after=at, rid=rid)
        assert c.store("d0", prompt[-4:], after=at, rid=rid)
        monkeypatch.undo()
        if not at:
            assert c.store("d0", "xy", after=prompt, rid=rid)
        c.directory.closed(rid, 0.0)
    assert c.lead("abcdxyef") == {"p0": 8, "d0": 8}


def test_what_a_branch_generates_is_not_told_twice() -> None:
    c = Cluster()
    c.run("b", "abcd", "p0", "d0")
    rid = c.ask("b", "abcd")
    c.directory.place(rid, D, "d0")
    assert c.directory.stored("d0", "1", 1, last("abcd"), chain("abcdxy")[4 * 16 :], rid)
    assert c.directory.deltas() == [], "a copy has class 2 until told otherwise"
    assert c.refs("d0", "abcdxy")[4:] == [1, 1]


def test_roots_are_bounded_and_a_request_keeps_its_own() -> None:
    c = Cluster()
    rid = c.ask("b", "ab")
    for number in range(20_000):
        c.directory.add_root(number.to_bytes(16, "big"))
    assert not c.directory.stored("p0", "1", 2, ROOT, chain("zz"))
    assert c.directory.stored("p0", "1", 2, ROOT, chain("ab"), rid)
    c.directory.add_root(ROOT)
    assert c.directory.stored("p0", "1", 2, ROOT, chain("zz")), "a rebuild names it again"
    c.check()


def test_a_long_eviction_that_comes_twice_is_told_apart() -> None:
    c = Cluster()
    c.store("p0", "abcdefgh")
    c.store("p1", "abcdefghi")
    assert c.evict("p0", "bcdefg", after="a") == 6
    assert c.evict("p0", "bcdefg", after="a") == 0
    assert c.lead("abcdefghi") == {"p0": 1, "p1": 9}


def test_the_tree_cuts_and_joins_runs() -> None:
    c = Cluster()
    c.store("p0", "abcdef")
    c.store("p1", "abcxy")
    assert c.directory.tree.runs == 3
    c.evict("p1", "xy", after="abc")
    assert c.directory.tree.runs == 1, "one child is no reason for a cut"
    assert c.lead("abcdef") == {"p0": 6, "p1": 3}


def test_promises_are_seen_apart_from_copies() -> None:
    c = Cluster()
    c.store("p0", "ab")
    rid = c.ask("", "abcd")
    c.directory.promise(rid, "p0", 2)
    match = c.directory.match(chain("abcdz"))
    assert (match.known, match.stored, match.expected) == (4, 2, 4)
    assert (match.coverage, match.promised) == ({"p0": 2}, {"p0": 4})
    c.directory.release(rid)
    c.directory.release(rid)
    assert c.directory.match(chain("abcd")).expected == 2
    c.directory.closed(rid, 0.0)
    c.check()
    assert c.directory.tree.blocks == 2, "nobody needs the rest"


def test_eviction_in_any_order_of_many_blocks() -> None:
    text = "abcdefghijklmnopqrstuvwxyz"
    for order in (slice(None), slice(None, None, -1)):
        c = Cluster()
        c.store("p0", text)
        keys = [chain(text)[at : at + 16] for at in range(0, 26 * 16, 16)][order]
        assert c.directory.evicted("p0", "1", 2, b"".join(keys[3:23])) == 20
        c.check()
        assert c.directory.evicted("p0", "1", 2, b"".join(keys)) == 6
        c.check()
        assert c.directory.tree.runs == 0


def test_lies_and_nonsense_stop_nobody() -> None:
    """Blocks that are not chained, at several places, below themselves: check() may complain of
    the index, but nothing is raised, and what is taken back is gone."""
    lies = random.Random(5)
    for _ in range(60):
        c = Cluster()
        pool = [bytes([at]) * 16 for at in range(6)] + [ROOT]
        for _ in range(60):
            node, tier = lies.choice(("p0", "d0")), lies.choice((1, 2))
            keys = b"".join(lies.choices(pool, k=lies.randint(0, 4)))
            keys += bytes(lies.choice((0, 0, 0, 7)))
            if lies.random() < 0.6:
                c.directory.stored(node, "1", tier, lies.choice(pool), keys, "r1")
            else:
                c.directory.evicted(node, "1", tier, keys)
            if lies.random() < 0.2:
                c.directory.arrive("r1", "t", ROOT, keys, 0.0)
                c.directory.promise("r1", node)
            if lies.random() < 0.2:
                c.directory.closed("r1", 0.0)
            c.directory.match(keys)
        c.directory.closed("r1", 0.0)
        for node in ("p0", "p1", "d0", "d1"):
            c.directory.node_lost(node, "1")
        while c.directory.tree.doubtful:
            c.directory.deltas()
        assert (c.directory.tree.runs, c.directory.tree.blocks) == (0, 0)
        assert not c.directory.tree.root.kids


def test_operators_see_branches_blocks_and_counts() -> None:
    c = Cluster()
    c.run("a", "xyz", "p0", "d0", output="u")
    c.run("f", "xyw", "p0", "d1", op="fork", parent="a")
    c.run("g", "q", "p1", "d1", tenant="other")
    d = c.directory
    assert [(row.tenant, row.branch) for row in branches(d)] == [
        ("other", "g"), ("t", "a"), ("t", "f"),
    ]  # fmt: skip
    assert [row.branch for row in branches(d, after=("t", "a"), limit=1)] == ["f"]
    assert [row.branch for row in branches(d, node="d1", tenant="t")] == ["f"]
    assert [row.branch for row in branches(d, kind="fork", state="live")] == ["f"]
    detail = branch(d, "t", "a")
    assert detail is not None
    assert detail.children == ("f",)
    assert [(i.start, i.end, i.node, i.verified) for i in detail.intervals["D"]] == [
        (0, 4, "d0", 4)
    ]
    assert branch(d, "other", "a") is None
    view = block(d, last("xy"))
    assert view is not None
    assert view.branches == (("t", "a"), ("t", "f"))
    assert {copy.node: copy.live for copy in view.copies} == {"p0": 2, "d0": 1, "d1": 1}
    assert view.copies[-1].by_phase == {"P": 2, "D": 0}
    assert block(d, bytes(16)) is None
    assert sum(blocks * refs for refs, blocks in histogram(d).items()) == 3 + 4 + 3 + 3 + 1 + 1
    assert summary(d).classes["p0"] == (0, 0, 4)
    assert {piece.block_class for piece in copies_of(d, "p0")} == {2}
    rid = c.ask("", "xy")
    d.promise(rid, "p1")
    seen = block(d, last("x"))
    assert seen is not None
    assert seen.promised_by == (rid,)
    assert d.place(rid, P, "nowhere") is False
