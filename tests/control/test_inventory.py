"""What a node held when it joined: each block once, and all of it found again."""

from __future__ import annotations

import random
import time

import pytest

from evctl.control.inventory import held_paths
from evctl.core.events import FromNode, KvHeld, NodeJoined
from evctl.policy.state import ClusterState, PolicyConfig, check, step
from evctl.wire.messages import InventoryBlock
from tests.policy.cluster import key, keys

ROOT = key(10_000)


def block(number: int, parent: bytes, *tiers: int) -> list[InventoryBlock]:
    return [InventoryBlock(key(number), tier, 0, 0, parent) for tier in tiers or (1,)]


def path(numbers: range, parent: bytes, *tiers: int) -> list[InventoryBlock]:
    blocks = []
    for number in numbers:
        blocks += block(number, parent, *tiers)
        parent = key(number)
    return blocks


def joined() -> ClusterState:
    state = ClusterState(PolicyConfig(("n1", "n2"), "1P1D"))
    for name in ("n1", "n2"):
        step(state, NodeJoined(name, "b", 10**6, 16, 8, 10**6, 10**6), 1.0)
    return state


def taken_in(state: ClusterState, blocks: list[InventoryBlock], *roots: bytes) -> list[KvHeld]:
    held = list(held_paths(blocks, roots))
    for fact in held:
        step(state, FromNode("n1", "b", fact), 1.0)
    assert check(state) == []
    return held


def test_a_trunk_is_told_once_and_its_forks_from_the_leaf_up() -> None:
    blocks = path(range(10), ROOT)
    blocks += path(range(20, 22), key(3)) + path(range(30, 32), key(6)) + block(40, key(6))
    assert list(held_paths(blocks)) == [
        KvHeld(1, ROOT, keys(*range(10))),
        KvHeld(1, key(6), keys(30, 31), from_root=False),
        KvHeld(1, key(6), keys(40), from_root=False),
        KvHeld(1, key(3), keys(20, 21), from_root=False),
    ]
    state = joined()
    taken_in(state, blocks)
    assert state.directory.nodes["n1"].blocks[1] == 15
    found = state.directory.match(keys(*range(7), 30, 31))
    assert found.coverage == {"n1": 9}


def test_tiers_that_hold_different_parts_are_told_apart_and_joined() -> None:
    blocks = (
        path(range(4), ROOT, 1) + path(range(4, 8), key(3), 2) + path(range(8, 9), key(7), 1, 2)
    )
    held = list(held_paths(blocks))
    assert held == [
        KvHeld(1, ROOT, keys(0, 1, 2, 3)),
        KvHeld(2, key(3), keys(4, 5, 6, 7, 8), from_root=False),
        KvHeld(1, key(7), keys(8), from_root=False),
    ]
    state = joined()
    taken_in(state, blocks)
    assert state.directory.match(keys(*range(9))).coverage == {"n1": 9}
    assert state.directory.tier_coverage(keys(*range(9)), 1) == {"n1": 4}


def test_first_blocks_of_l2_need_a_root_that_is_known() -> None:
    blocks = path(range(4), ROOT, 2)
    state = joined()
    assert taken_in(state, blocks) == [KvHeld(2, ROOT, keys(*range(4)), from_root=False)]
    assert state.directory.tallies.unknown_parent == 1
    assert state.directory.nodes["n1"].blocks == [0, 0, 0]
    taken_in(state, blocks, ROOT)
    assert state.directory.match(keys(*range(4))).coverage == {"n1": 4}


def test_what_has_lost_its_ancestors_is_dropped_unless_somebody_has_them() -> None:
    """As on a decode node, whose L2 holds what it generated and not the prompts."""
    state = joined()
    orphan = path(range(5, 8), key(4), 2)
    taken_in(state, orphan, ROOT)
    assert state.directory.tallies.unknown_parent == 1
    step(state, FromNode("n2", "b", KvHeld(1, ROOT, keys(*range(5)))), 1.0)
    taken_in(state, orphan, ROOT)
    assert state.directory.tallies.unknown_parent == 1
    pieces = state.directory.sources(keys(*range(8)), 2)
    assert pieces == [(0, 5, ()), (5, 8, ("n1",))]


def test_nonsense_is_left_out() -> None:
    no_parent = block(1, b"") + block(2, key(1))
    circle = block(3, key(4)) + block(4, key(3))
    assert list(held_paths(no_parent + circle)) == []


@pytest.mark.parametrize("forks", [500, 2000])
def test_thousands_of_forks_cost_what_their_blocks_cost(forks: int) -> None:
    """A trunk of 2,000 blocks with so many forks of 8, in any order: by paths from the root it
    would be two million blocks. Every copy is found where it belongs."""
    chance = random.Random(forks)
    blocks = path(range(2000), ROOT, 1, 2)
    parents = {}
    for fork in range(forks):
        first = 10**5 + 10 * fork
        parents[fork] = chance.randrange(2000)
        blocks += path(range(first, first + 8), key(parents[fork]), 1 if fork % 3 else 2)
    chance.shuffle(blocks)
    state = joined()
    before_s = time.perf_counter()
    held = taken_in(state, blocks)
    print(f"{len(held)} facts, {len(blocks)} copies: {time.perf_counter() - before_s:.3f} s")
    assert sum(len(fact.keys) for fact in held) == 16 * len(blocks)
    assert len(held) <= 2 + 2 * forks
    assert state.directory.tallies.unknown_parent == 0
    tier2 = 8 * len(range(0, forks, 3))
    assert state.directory.nodes["n1"].blocks == [0, 2000 + 8 * forks - tier2, 2000 + tier2]
    for fork in chance.sample(sorted(parents), 50):
        first = 10**5 + 10 * fork
        prompt = keys(*range(parents[fork] + 1), *range(first, first + 8))
        assert state.directory.match(prompt).coverage == {"n1": parents[fork] + 9}


@pytest.mark.parametrize("seed", range(30))
def test_any_tree_comes_back_whole(seed: int) -> None:
    chance = random.Random(seed)
    parents: dict[int, bytes] = {}
    for number in range(chance.randrange(1, 60)):
        above = chance.choice([None, *parents]) if chance.random() < 0.5 else number - 1
        parents[number] = ROOT if above is None or above < 0 else key(above)
    blocks = [
        b
        for n, parent in parents.items()
        for b in block(n, parent, *chance.choice([(1,), (1, 2)]))
    ]
    chance.shuffle(blocks)
    state = joined()
    taken_in(state, blocks)
    assert sum(state.directory.nodes["n1"].blocks) == len(blocks)
    assert state.directory.tallies.unknown_parent == 0
