"""What each order does that the others do not, in small cases worked out by hand."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from evctl.policy.eviction import (
    Belady,
    Ending,
    EvictionOrder,
    ExpectedUse,
    GapModel,
    Habit,
    Lru,
    RefClass,
    ReferencedLast,
    Retention,
    S3Fifo,
    SessionRelease,
    Sieve,
    make_order,
)


def fill(order: EvictionOrder, path: Iterable[str], now_s: float, branch: str | None) -> None:
    """A request of `branch` with this path."""
    keys = list(path)
    for depth, key in enumerate(keys):
        if key not in order:
            order.insert(key, depth)
    order.access(branch, keys, now_s)


def drain(order: EvictionOrder, now_s: float) -> str:
    """All that is left, first to go first."""
    found = []
    while gone := order.victims(1, now_s):
        found += gone
    assert order.check() == []
    return "".join(str(key) for key in found)


# ---------------------------------------------------------------------------- classes and epochs


def test_the_papers_order_is_class_then_last_access_then_depth() -> None:
    order = ReferencedLast()
    for time_s, path in enumerate(("abc", "de", "fg", "abc")):
        fill(order, path, time_s, path)
    order.classify(1, "c", RefClass.UNREFERENCED)  # used last of all, and yet first to go
    order.classify(2, "de", RefClass.SUSPECT)
    assert drain(order, 9.0) == "cedgfba"


def test_a_class_change_keeps_the_last_access() -> None:
    """Else a block that loses its reference late would outlive those that lost theirs before."""
    order = ReferencedLast()
    for time_s, key in enumerate("xyz"):
        fill(order, key, time_s, key)
    order.classify(1, "z", RefClass.UNREFERENCED)
    order.classify(2, "x", RefClass.UNREFERENCED)
    order.classify(3, "y", RefClass.UNREFERENCED)
    order.classify(4, "y", RefClass.LIVE)
    assert drain(order, 9.0) == "xzy"


@pytest.mark.parametrize("name", ["paper", "expected"])
def test_stale_epochs_are_ignored(name: str) -> None:
    order = make_order(name, 10)
    for time_s, key in enumerate("ab"):
        fill(order, key, time_s, None)
    assert order.classify(5, "b", RefClass.UNREFERENCED) == 1
    assert order.classify(4, "ab", RefClass.LIVE) == 1  # about a, nothing newer was said
    assert order.classify(4, "b", RefClass.SUSPECT) == 0
    assert drain(order, 9.0) == "ba"


@pytest.mark.parametrize("name", ["paper", "expected"])
def test_a_message_older_than_the_block_does_not_apply(name: str) -> None:
    """The block went and came back; what was said of its first life is void."""
    order = make_order(name, 10)
    fill(order, "a", 0.0, None)
    order.classify(7, "z", RefClass.LIVE)
    order.remove("a")
    fill(order, "a", 1.0, None)
    fill(order, "b", 2.0, None)
    assert order.classify(6, "b", RefClass.UNREFERENCED) == 0
    assert order.classify(7, "b", RefClass.UNREFERENCED) == 1
    assert drain(order, 9.0) == "ba"


def test_plain_lru_ignores_classes() -> None:
    order = Lru()
    fill(order, "a", 0.0, None)
    fill(order, "b", 1.0, None)
    order.classify(1, "b", RefClass.UNREFERENCED)
    assert drain(order, 9.0) == "ab"


def test_an_unpinned_block_keeps_its_age() -> None:
    order = Lru()
    for time_s, key in enumerate("abc"):
        fill(order, key, time_s, None)
    order.pin("a")
    order.pin("a")
    order.unpin("a")
    assert order.victims(9, 5.0) == ["b", "c"]
    order.unpin("a")
    fill(order, "d", 6.0, None)
    assert drain(order, 9.0) == "ad"


def test_large_entries_go_whole_and_no_more_than_needed() -> None:
    order = Lru()
    for time_s, key in enumerate("abc"):
        order.insert(key, 0, blocks=4)
        order.access(None, key, time_s)
    assert order.victims(5, 9.0) == ["a", "b"]
    assert order.total_blocks == 4


# ---------------------------------------------------------------------------- session release


def test_a_sessions_own_blocks_go_first_once_it_ends() -> None:
    order = SessionRelease()
    fill(order, "sa", 0.0, "A")
    fill(order, "x", 1.0, "X")
    fill(order, "sb", 2.0, "B")
    order.end("B", 3.0)
    assert order.victims(1, 3.0) == ["b"]  # s belongs to A too
    order.end("A", 4.0)
    assert drain(order, 9.0) == "asx"


def test_a_released_block_that_is_used_again_is_no_longer_released() -> None:
    order = SessionRelease()
    fill(order, "a", 0.0, "A")
    order.end("A", 1.0)
    fill(order, "b", 2.0, "B")
    fill(order, "a", 3.0, "C")
    assert drain(order, 9.0) == "ba"


# ---------------------------------------------------------------------------- time to live


def test_a_tool_call_keeps_its_blocks_for_the_ttl_and_no_longer() -> None:
    for now_s, expected in ((59.0, "ba"), (61.0, "ab")):
        order = Retention({Ending.TOOL_CALL: 60.0, Ending.TURN: 0.0, Ending.UNKNOWN: 0.0})
        fill(order, "a", 0.0, "A")
        order.settle("A", 0.5, Ending.TOOL_CALL)
        fill(order, "b", 0.7, "B")
        order.settle("B", 0.8, Ending.TURN)
        assert drain(order, now_s) == expected


def test_under_pressure_the_lease_that_ends_soonest_goes() -> None:
    order = Retention()
    fill(order, "rb", 0.0, "B")
    order.settle("B", 0.0, Ending.TOOL_CALL, expect_resume_s=900.0)
    fill(order, "ra", 1.0, "A")
    order.settle("A", 1.0, Ending.TOOL_CALL)
    fill(order, "c", 2.0, "C")  # in flight: no end is known
    assert drain(order, 2.0) == "abrc"


def test_an_ended_branch_keeps_nothing() -> None:
    order = Retention()
    fill(order, "a", 0.0, "A")
    order.settle("A", 0.0, Ending.TOOL_CALL)
    fill(order, "b", 1.0, "B")
    order.settle("B", 1.0, Ending.TOOL_CALL)
    order.end("B", 1.0)
    assert drain(order, 2.0) == "ba"


# ---------------------------------------------------------------------------- SIEVE, S3-FIFO


def test_sieve_takes_the_oldest_unused_and_its_hand_stays() -> None:
    order = Sieve()
    for key in "abcde":
        fill(order, key, 0.0, None)
    for key in "abd":
        order.access(None, [key], 1.0)
    # The hand clears a and b and takes c; from there it clears d and takes e; only then does it
    # start over, where a and b are bare now. A CLOCK or a FIFO would take a before e.
    assert order.victims(1, 2.0) == ["c"]
    fill(order, "f", 2.0, None)
    assert order.victims(1, 3.0) == ["e"]
    order.access(None, ["a"], 3.0)
    assert order.victims(1, 4.0) == ["f"]
    assert order.victims(1, 4.0) == ["b"]
    assert drain(order, 5.0) == "da"


def test_sieves_hand_survives_the_removal_of_what_it_points_at() -> None:
    order = Sieve()
    for key in "abc":
        fill(order, key, 0.0, None)
    order.access(None, ["a"], 1.0)
    order.pin("b")
    assert order.victims(1, 2.0) == ["c"]
    order.remove("b")
    order.remove("a")
    fill(order, "d", 3.0, None)
    assert drain(order, 3.0) == "d"


def test_s3_fifo_moves_what_was_used_twice_to_the_main_queue() -> None:
    order = S3Fifo(10)  # one block in the small queue
    for key in "abc":
        fill(order, key, 0.0, None)
    for _ in range(2):
        order.access(None, ["a"], 1.0)
    order.access(None, ["b"], 1.0)  # once is not enough
    assert drain(order, 2.0) == "bca"


def test_s3_fifo_readmits_a_ghost_into_the_main_queue() -> None:
    order = S3Fifo(10)
    for key in "ab":
        fill(order, key, 0.0, None)
    assert order.victims(1, 1.0) == ["a"]
    fill(order, "a", 2.0, None)  # remembered: not a newcomer any more
    fill(order, "c", 3.0, None)
    assert drain(order, 4.0) == "bca"


def test_s3_fifo_forgets_old_ghosts() -> None:
    order = S3Fifo(2)  # ghosts of one block
    for key in "abc":
        fill(order, key, 0.0, None)
    assert order.victims(2, 1.0) == ["a", "b"]
    fill(order, "a", 2.0, None)
    fill(order, "b", 2.0, None)
    assert drain(order, 3.0) == "cab"


def test_s3_fifo_gives_main_entries_as_many_laps_as_uses() -> None:
    order = S3Fifo(10)
    for key in "ab":
        fill(order, key, 0.0, None)
        for _ in range(2):
            order.access(None, [key], 0.0)
    fill(order, "n", 0.0, None)
    assert order.victims(1, 1.0) == ["n"]  # a and b are in the main queue now, without uses
    order.access(None, ["a"], 1.0)
    assert drain(order, 2.0) == "ba"


# ---------------------------------------------------------------------------- expected next use


def learned(gaps_s: Iterable[float], ending: Ending = Ending.TOOL_CALL) -> GapModel:
    model = GapModel()
    for gap_s in gaps_s:
        for _ in range(100):
            model.paused(ending, Habit(), gap_s)
        model.served(1.0)
    return model


def paused(order: ExpectedUse, path: str, at_s: float, ending: Ending = Ending.TOOL_CALL) -> None:
    branch = path[-1].upper()
    fill(order, path, at_s, branch)
    order.settle(branch, at_s, ending)


def test_with_like_gaps_the_one_that_paused_last_goes_first() -> None:
    """What LRU gets wrong: all come back after 30 s, so the longest idle is needed next."""
    order = ExpectedUse(learned([30.0]))
    for at_s, path in enumerate(("ab", "cd", "ef")):
        paused(order, path, at_s * 5.0)
    assert drain(order, 12.0) == "fedcba"


def test_with_heavy_tails_the_longest_idle_goes_first() -> None:
    order = ExpectedUse(learned([5.0, 5.0, 5.0, 5.0, 3000.0]))
    paused(order, "ab", 0.0)
    paused(order, "cd", 100.0)
    assert drain(order, 101.0) == "badc"


def test_without_data_it_is_lru() -> None:
    order = ExpectedUse()
    paused(order, "ab", 0.0)
    paused(order, "cd", 100.0)
    assert drain(order, 101.0) == "badc"


def test_the_ending_tells() -> None:
    gaps = learned([2.0])
    for _ in range(200):
        gaps.paused(Ending.TURN, Habit(), 500.0)
    order = ExpectedUse(gaps)
    paused(order, "t", 0.0, Ending.TOOL_CALL)
    paused(order, "u", 0.0, Ending.TURN)
    assert drain(order, 0.5) == "ut"


def test_what_the_harness_expects_overrides_the_table_until_it_is_overdue() -> None:
    for now_s, expected in ((10.0, "ba"), (100.0, "ab")):
        order = ExpectedUse(learned([50.0, 300.0]))
        fill(order, "a", 0.0, "A")
        order.settle("A", 0.0, Ending.TOOL_CALL, expect_resume_s=60.0)
        paused(order, "b", 0.0)
        # at 10 s: 50 s to go against a mean of 165; at 100 s both are overdue and alike
        assert drain(order, now_s) == expected


def test_of_several_branches_the_earliest_use_counts() -> None:
    order = ExpectedUse(learned([30.0]))
    paused(order, "rsa", 0.0)  # back in 30 - 20 = 10 s
    paused(order, "rsb", 18.0)  # in 28 s
    paused(order, "c", 9.0)  # in 19 s
    # b alone needs only itself; r and s are needed by a, which comes first of all
    assert drain(order, 20.0) == "bcasr"


def test_a_branch_that_ends_no_longer_protects() -> None:
    order = ExpectedUse(learned([30.0]))
    paused(order, "rsa", 0.0)
    paused(order, "rsb", 18.0)
    paused(order, "c", 9.0)
    order.end("A", 20.0)
    order.classify(1, "a", RefClass.UNREFERENCED)
    assert drain(order, 20.0) == "absrc"


def test_a_rewrite_gives_up_what_it_drops() -> None:
    order = ExpectedUse(learned([30.0]))
    paused(order, "rxy", 0.0)
    fill(order, "rz", 1.0, "Y")
    order.classify(1, "xy", RefClass.UNREFERENCED)
    assert order.victims(2, 2.0) == ["y", "x"]
    assert drain(order, 2.0) == "zr"


def test_one_ranking_serves_a_second_of_victims() -> None:
    """A branch that is used meanwhile is safe at once; others wait for the next ranking."""
    order = ExpectedUse(learned([30.0]), rerank_s=1.0)
    paused(order, "ab", 0.0)
    paused(order, "cd", 5.0)
    assert order.victims(1, 10.0) == ["d"]
    fill(order, "c", 10.1, "D")  # now in flight
    assert order.victims(1, 10.2) == ["b"]
    assert order.check() == []


def test_belady_goes_by_the_future_and_leaves_no_hole() -> None:
    future = {"r": 1.0, "a": 1.0, "b": 7.0, "c": float("inf")}
    order = Belady(lambda key: future[str(key)])
    fill(order, "ra", 0.0, "A")
    fill(order, "rb", 0.0, "B")
    fill(order, "c", 0.0, "C")
    assert drain(order, 1.0) == "cbar"


def test_an_unpinned_block_of_a_path_goes_in_its_place() -> None:
    """It comes back behind the others of its visit, which it must not lose by."""
    for order in (Lru(), ReferencedLast(), ExpectedUse(), Belady(lambda _: float("inf"))):
        fill(order, "abc", 0.0, "A")
        order.pin("b")
        order.unpin("b")
        assert drain(order, 1.0) == "cba", order


def test_blocks_of_the_request_under_way_are_newer_than_the_last_one() -> None:
    order = Lru()
    fill(order, "a", 0.0, None)
    order.insert("b", 5)
    assert drain(order, 1.0) == "ab"


def test_expected_keeps_blocks_of_the_request_under_way() -> None:
    """They are put one by one, before access() says whose they are."""
    order = ExpectedUse(learned([30.0]))
    paused(order, "xy", 0.0)
    order.insert("a", 0)
    assert order.victims(1, 1.0) == ["y"]
    order.insert("b", 1)
    assert order.victims(1, 1.0) == ["x"]
    assert drain(order, 1.0) == "ba"


def test_what_a_branch_left_behind_goes_before_what_branches_need() -> None:
    order = ExpectedUse(learned([30.0]))
    fill(order, "rx", 0.0, "A")
    fill(order, "ry", 1.0, "A")
    paused(order, "c", 2.0)
    assert order.victims(1, 3.0) == ["x"]


def test_an_access_moves_unreferenced_blocks_too() -> None:
    """The word that they are needed again comes late; they are not the oldest meanwhile."""
    order = ExpectedUse()
    paused(order, "ab", 0.0)
    paused(order, "cd", 1.0)
    order.classify(1, "bd", RefClass.UNREFERENCED)
    fill(order, "ab", 2.0, "B")
    assert drain(order, 3.0)[:2] == "db"


def test_the_last_access_outlives_the_branch() -> None:
    order = ExpectedUse()
    for at_s, key in enumerate("aba"):
        fill(order, key, float(at_s), key)
    order.end("a", 3.0)
    order.end("b", 3.0)
    order.classify(1, "ab", RefClass.UNREFERENCED)
    assert drain(order, 4.0) == "ba"


def test_an_unpinned_or_reclassified_block_is_found_again_behind_the_others() -> None:
    order = ExpectedUse(learned([30.0]))
    fill(order, "abcde", 0.0, "A")
    order.pin("e")
    order.classify(1, "d", RefClass.SUSPECT)
    order.pin("d")
    assert order.victims(1, 1.0) == ["c"]
    order.unpin("e")
    order.unpin("d")
    order.classify(2, "d", RefClass.LIVE)
    assert drain(order, 1.0) == "edba"


def test_a_request_in_flight_comes_back_after_its_service_and_a_pause() -> None:
    order = ExpectedUse(learned([30.0]))  # services of 1 s
    paused(order, "b", 0.0)
    fill(order, "a", 0.0, "A")
    assert drain(order, 0.0) == "ab"


def test_s3_fifo_takes_one_use_off_at_each_lap() -> None:
    order = S3Fifo(10)
    for key in "abn":
        fill(order, key, 0.0, None)
        order.access(None, [key], 0.0)
        order.access(None, [key], 0.0)
    fill(order, "m", 0.0, None)
    assert order.victims(1, 1.0) == ["m"]
    for uses, key in ((2, "a"), (1, "b")):
        for _ in range(uses):
            order.access(None, [key], 1.0)
    assert drain(order, 2.0) == "nba"
