"""What peers may ask of a node's L2, and what they may answer, whatever they send."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from evctl.core.kv import FetchPiece
from evctl.wire.messages import KvFetched, KvLocated, LocateKv
from evengine.fetch.lender import LONGEST_S, MOST_KEYS, MOST_LOANS
from evengine.fetch.limits import FetchLimits
from tests.fetch.nodes import Node, bytes_of, chain
from tests.fetch.world import Asked, World

PATH = (0, 1, 2, 3)
KEYS = chain(PATH)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    for name in "ab":
        world.start(name, l1_blocks=20, l2_blocks=12, limits=FetchLimits(answer_s=1e9))
    world.nodes["b"].plant(KEYS)
    yield world
    world.close()


def locate(world: World, attempt: int, keys: bytes, hold_s: float = 5.0) -> KvLocated:
    """What b answers a."""
    boot_id = world.nodes["a"].boot_id
    return world.nodes["b"].lender.on_locate("a", LocateKv(boot_id, attempt, keys, hold_s))


def assert_nothing_lent(node: Node) -> None:
    assert (node.pool.pins, node.lender.count) == (0, 0)
    assert node.problems() == []


def test_what_is_lent_stays_where_it_was_named_until_it_is_fetched(world: World) -> None:
    lender = world.nodes["b"]
    answer = locate(world, 1, b"".join([*KEYS[:2], b"x" * 16]))
    assert answer.slots[2] == -1
    for key, slot, generation in zip(KEYS, answer.slots[:2], answer.generations, strict=False):
        assert bytes(lender.pool.data(slot)) == bytes_of(key)
        assert lender.pool.generation(slot) == generation
    assert lender.pool.room() == 12 - 2
    for first in range(100, 120):
        lender.plant(chain((first,)))
    assert [lender.pool.find(key) is not None for key in KEYS] == [True, True, False, False]
    lender.lender.on_fetched("a", KvFetched(world.nodes["a"].boot_id, 1))
    assert_nothing_lent(lender)


@pytest.mark.parametrize(
    ("hold_s", "lasts_s"),
    [
        (2.0, 2.0),
        (0.0, 0.0),
        (-5.0, 0.0),
        (math.nan, 0.0),
        (-math.inf, 0.0),
        (1e300, LONGEST_S),
        (math.inf, LONGEST_S),
    ],
)
def test_a_loan_ends_by_itself(world: World, hold_s: float, lasts_s: float) -> None:
    """However long the peer asks for."""
    lender = world.nodes["b"]
    locate(world, 1, b"".join(KEYS), hold_s)
    if lasts_s:
        lender.lender.tick(lasts_s - 0.01)
        assert lender.pool.pins == len(KEYS)
    lender.lender.tick(lasts_s)
    assert_nothing_lent(lender)
    assert lender.counters["loans_expired"] == 1


def test_only_an_announced_life_borrows(world: World) -> None:
    lender = world.nodes["b"]
    for node, boot_id in (("a", "another life"), ("z", world.nodes["a"].boot_id), ("b", "")):
        message = LocateKv(boot_id, 1, b"".join(KEYS), 5.0)
        assert lender.lender.on_locate(node, message).slots == (-1,) * len(KEYS)
    assert_nothing_lent(lender)


def test_an_attempt_borrows_once(world: World) -> None:
    """A repeated question pins nothing more, and its answer is no harm: the first one counts."""
    lender = world.nodes["b"]
    assert -1 not in locate(world, 1, b"".join(KEYS)).slots
    assert locate(world, 1, b"".join(KEYS)).slots == (-1,) * len(KEYS)
    assert lender.pool.pins == len(KEYS)
    lender.lender.on_fetched("a", KvFetched(world.nodes["a"].boot_id, 1))
    lender.lender.on_fetched("a", KvFetched(world.nodes["a"].boot_id, 1))
    assert_nothing_lent(lender)


@pytest.mark.parametrize("keys", [b"", b"x", KEYS[0] + b"ragged", KEYS[0][:15]])
def test_ragged_keys_are_not_held(world: World, keys: bytes) -> None:
    answer = locate(world, 1, keys)
    assert len(answer.slots) == len(answer.generations) == -(-len(keys) // 16)
    assert [slot >= 0 for slot in answer.slots[:1]] == [keys[:16] == KEYS[0]][: len(answer.slots)]
    assert set(answer.slots[1:]) <= {-1}
    world.nodes["b"].lender.on_fetched("a", KvFetched(world.nodes["a"].boot_id, 1))
    assert_nothing_lent(world.nodes["b"])


def test_questions_and_loans_are_bounded(world: World) -> None:
    lender = world.nodes["b"]
    assert len(locate(world, 1, KEYS[0] * 1_000_000).slots) == MOST_KEYS
    for attempt in range(2, MOST_LOANS + 1):
        assert locate(world, attempt, KEYS[0]).slots[0] >= 0
    assert locate(world, MOST_LOANS + 1, KEYS[0]).slots == (-1,)
    assert lender.lender.count == MOST_LOANS
    lender.peer_lost(world.known["a"])
    assert_nothing_lent(lender)


def test_an_unknown_loan_is_not_given_back(world: World) -> None:
    lender = world.nodes["b"]
    locate(world, 1, KEYS[0])
    boot_id = world.nodes["a"].boot_id
    for node, message in (
        ("a", KvFetched(boot_id, 2)),
        ("a", KvFetched("another life", 1)),
        ("z", KvFetched(boot_id, 1)),
        ("a", KvFetched(boot_id, -(2**63))),
    ):
        lender.lender.on_fetched(node, message)
    assert lender.pool.pins == 1


# ---------------------------------------------------------------- the other direction


@pytest.fixture
def asked(world: World) -> Asked:
    """A request at a that has asked b for four blocks; the answer has not come."""
    asked = world.request(world.nodes["a"], PATH, [FetchPiece(0, 4, ("b",))])
    world.admit(asked)
    world.turn()
    assert len(world.wire) == 1
    return asked


def answer(world: World, **changes: object) -> KvLocated:
    boot_id = world.nodes["b"].boot_id
    values = {"boot_id": boot_id, "attempt": 1, "slots": (0, 1, 2, 3), "generations": (1,) * 4}
    return KvLocated(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("node", "changes"),
    [
        ("b", {"attempt": 2}),
        ("b", {"attempt": -1}),
        ("b", {"boot_id": "another life"}),
        ("z", {}),
        ("a", {}),
    ],
    ids=["not asked", "negative", "another life", "another peer", "itself"],
)
def test_an_answer_to_nothing_is_counted_and_ignored(
    world: World, asked: Asked, node: str, changes: dict[str, object]
) -> None:
    here = world.nodes["a"]
    here.fetcher.flights.on_located(node, answer(world, **changes))
    assert here.counters["late_answers"] == 1
    assert here.transfer.pending == {}
    finish(world, asked, missed=0)


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({"slots": (0, 1, 2)}, 4),
        ({"slots": (), "generations": ()}, 4),
        ({"slots": (0,) * 1000, "generations": (1,) * 1000}, 4),
        ({"generations": (1, 1, 1)}, 4),
        ({"slots": (12, 2**62, -(2**62), -2)}, 4),
        ({"slots": (0, 1, 12, 3)}, 2),
        ({"slots": (0, 1, 2, 2)}, 1),
        ({"slots": (3, 2, 1, 0)}, 4),
        ({"generations": (1, 1, -1, 2**63)}, 2),
        ({"generations": (0, 1, 1, 1)}, 4),
    ],
    ids=range(10),
)
def test_an_answer_that_makes_no_sense_costs_its_blocks_alone(
    world: World, asked: Asked, changes: dict[str, object], missed: int
) -> None:
    """What can be read is read and checked; the blocks before the first bad one are used."""
    here = world.nodes["a"]
    here.fetcher.flights.on_located("b", answer(world, **changes))
    for ticket in list(here.transfer.pending):
        for piece in here.transfer.pending[ticket].pieces:
            assert piece.remote_offset >= world.known["b"].transfer.pool_offset
    finish(world, asked, missed)


def finish(world: World, asked: Asked, missed: int) -> None:
    """The request runs with what is right, and nothing is left on either side."""
    for _ in range(20):
        world.calm()
    assert asked.runnable
    (fact,) = asked.ended()
    assert fact.missed_blocks == missed
    world.finish(asked)
    while not world.calm():
        pass
    world.clock.time_s += LONGEST_S + 1
    world.turn()
    for node in world.nodes.values():
        assert node.problems() == []
        assert {what: left for what, left in node.remains().items() if left} == {}
