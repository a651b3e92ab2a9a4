"""Nonsense about KV in host memory, from peers and the control plane, costs nobody anything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest

from evctl.core.events import FetchAheadEnded, FetchEnded
from evctl.core.kv import FetchPiece
from evctl.wire.codec import encode
from evctl.wire.keys import KeyPair
from evctl.wire.messages import (
    FetchAhead,
    KvFetched,
    KvLocated,
    LocateKv,
    Refused,
)
from evengine.fetch.lender import MOST_KEYS
from tests.engine.driver import Driver
from tests.engine.raw_peer import RawPeer, assert_alive, counter

ATTEMPTS = itertools.count(1)
BLOCK = 16
PROMPT = [i % 250 for i in range(10 * BLOCK + 5)]

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, prepared_model) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("hostile_kv")
    with Driver(
        folder, prepared_model("random-4l256"), names=("a",), l1_blocks=64, l2_blocks=40
    ) as running:
        yield running


@pytest.fixture
def peer(stranger: KeyPair, connect: Callable[[KeyPair], RawPeer]) -> RawPeer:
    """A node of the cluster, by its key; its life is called xx."""
    return connect(stranger)


@pytest.fixture
def held(driver: Driver) -> list[bytes]:
    """Keys of blocks that the engine has in L2."""
    driver.run([PROMPT], max_tokens=2)
    driver.until(lambda: counter(driver, "l2_write_queue_blocks") == 0, 20.0, "L2 to be written")
    keys = list(driver.inventory("a"))
    assert len(keys) >= 10
    return keys


def assert_nothing_left(driver: Driver) -> None:
    """The engine serves, found no fault in its books, and no message broke a handler."""
    driver.until(lambda: counter(driver, "l2_pins") == 0, 40.0, "loans to end")
    assert_alive(driver)
    inspection = driver.inspect("a")
    assert inspection.problems == ()
    for name in ("handler_errors", "loans", "l2_pins", "fetch_bytes_in_flight"):
        assert inspection.counters.get(name, 0) == 0, name


def located(peer: RawPeer, message: LocateKv) -> KvLocated:
    answer = peer.ask(encode(message))
    assert isinstance(answer, KvLocated)
    assert answer.attempt == message.attempt
    return answer


def test_a_peer_that_asks_gets_what_is_there(
    driver: Driver, peer: RawPeer, held: list[bytes]
) -> None:
    """So that the refusals below mean something."""
    message = LocateKv("xx", next(ATTEMPTS), b"".join(held[:4]), 20.0)
    assert min(located(peer, message).slots) >= 0
    assert counter(driver, "l2_pins") == 4
    peer.ask(encode(KvFetched("xx", message.attempt)), timeout_s=0.2)
    driver.until(lambda: counter(driver, "l2_pins") == 0, 5.0, "the loan to end at once")


@pytest.mark.parametrize("hold_s", [-1.0, math.nan, -math.inf, 0.0])
def test_a_hold_time_that_is_none_pins_nothing_for_long(
    driver: Driver, peer: RawPeer, held: list[bytes], hold_s: float
) -> None:
    message = LocateKv("xx", next(ATTEMPTS), b"".join(held[:4]), hold_s)
    assert min(located(peer, message).slots) >= 0
    driver.until(lambda: counter(driver, "l2_pins") == 0, 5.0, "the loan to end")
    assert_nothing_left(driver)


def test_a_hold_time_without_end_ends_with_the_peer(
    driver: Driver, peer: RawPeer, held: list[bytes]
) -> None:
    located(peer, LocateKv("xx", next(ATTEMPTS), held[0], 1e300))
    located(peer, LocateKv("xx", next(ATTEMPTS), held[0], math.inf))
    assert counter(driver, "l2_pins") == 2
    driver.announce()
    assert_nothing_left(driver)


def test_keys_that_are_none(driver: Driver, peer: RawPeer, held: list[bytes]) -> None:
    for keys in (b"", b"x", held[0][:15], b"y" * 33):
        answer = located(peer, LocateKv("xx", next(ATTEMPTS), keys, 5.0))
        assert answer.slots == (-1,) * -(-len(keys) // 16)
    million = held[0] * 1_000_000
    assert len(located(peer, LocateKv("xx", next(ATTEMPTS), million, 0.0)).slots) == MOST_KEYS
    assert_nothing_left(driver)


def test_another_life_and_repeated_attempts_borrow_nothing(
    driver: Driver, peer: RawPeer, held: list[bytes]
) -> None:
    keys = b"".join(held[:3])
    for boot_id in ("", "yy", "x" * 10_000):
        assert located(peer, LocateKv(boot_id, next(ATTEMPTS), keys, 20.0)).slots == (-1,) * 3
    assert counter(driver, "l2_pins") == 0
    message = LocateKv("xx", -5, keys, 2.0)
    assert min(located(peer, message).slots) >= 0
    for _ in range(50):
        assert located(peer, message).slots == (-1,) * 3
    assert counter(driver, "l2_pins") == 3
    assert_nothing_left(driver)


def test_answers_that_nobody_asked_for(driver: Driver, peer: RawPeer) -> None:
    before = counter(driver, "late_answers")
    for attempt, slots, generations in (
        (1, (0,), (1,)),
        (-1, (2**60,), (-1,)),
        (2**62, (), ()),
        (1, (-7,) * 10_000, (0,)),
    ):
        answer = peer.ask(encode(KvLocated("xx", attempt, slots, generations)), timeout_s=0.1)
        assert answer is None or isinstance(answer, Refused)
    for attempt in (0, -1, 2**62):
        peer.ask(encode(KvFetched("xx", attempt)), timeout_s=0.1)
    driver.until(lambda: counter(driver, "late_answers") == before + 4, 10.0, "the answers")
    assert_nothing_left(driver)


ADVICE = {
    "out of range": (
        [FetchPiece(-5, 3, ("x",)), FetchPiece(4, 10**12, ("x",)), FetchPiece(9, 2, ("x",))],
        3,
    ),
    "unknown nodes": ([FetchPiece(0, 20, ("x", "no", "a", "")), FetchPiece(0, 9, ("no",))], 10),
    "many empty": ([FetchPiece(0, 20, ())] * 100_000, 0),
    "many": ([FetchPiece(i % 7, 20, ("nobody",)) for i in range(100_000)], 10),
    "many nodes": ([FetchPiece(0, 20, ("nobody",) * 100_000)], 10),
    "endless": ([FetchPiece(-(2**62), 2**62, ("x",))], 10),
    "none": ([], 0),
}
"""And how many leading blocks of ten it speaks of."""


@pytest.mark.parametrize("name", ADVICE)
def test_advice_that_makes_no_sense(driver: Driver, peer: RawPeer, name: str) -> None:
    """Ahead of a request and with one: nobody there can give anything, so all is computed."""
    pieces, named = ADVICE[name]
    ticket = f"t{next(ATTEMPTS)}"
    for keys in (b"k" * 16 * 20, b"k" * 35):
        driver.send("a", FetchAhead(ticket, bytes(16), keys, tuple(pieces)))

        def ended() -> bool:
            return any(
                isinstance(f, FetchAheadEnded) and f.ticket == ticket for _, f in driver.facts
            )

        driver.until(ended, 20.0, "the end of a fetch ahead")
        driver.facts.clear()
    tenant = f"tenant {ticket}"
    expected = driver.run([PROMPT], tenant=f"plain {ticket}", max_tokens=6)
    asked = driver.submit(PROMPT, tenant=tenant, fetch=pieces, max_tokens=6)
    assert driver.wait([asked])[0].tokens == expected[0]
    if named:
        (fact,) = driver.facts_of(asked, FetchEnded)
        assert (fact.peers, fact.missed_blocks, fact.cause) == ((), named, "unreachable")
    assert_nothing_left(driver)


def test_more_fetches_ahead_than_are_kept_end_all_the_same(driver: Driver, peer: RawPeer) -> None:
    """Each ticket is answered, the repeated one twice."""
    tickets = [f"many{i}" for i in range(300)] + ["many0"]
    for ticket in tickets:
        key = ticket.encode().ljust(16, b".")
        driver.send("a", FetchAhead(ticket, bytes(16), key, (FetchPiece(0, 1, ("x",)),)))

    def told() -> list[str]:
        return [f.ticket for _, f in driver.facts if isinstance(f, FetchAheadEnded)]

    driver.until(lambda: len(told()) >= len(tickets), 20.0, "all to end")
    assert sorted(told()) == sorted(tickets)
    assert_nothing_left(driver)
