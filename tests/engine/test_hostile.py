"""What a broken or hostile peer sends is refused with a reason, and the engine lives on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from evctl.core.sampling import SamplingParams
from evctl.wire.codec import MAX_MESSAGE_BYTES, PROTOCOL_VERSION, encode
from evctl.wire.keys import KeyPair, generate_keypair
from evctl.wire.messages import (
    BlocksLanded,
    HandOver,
    HandOverResult,
    KvRefused,
    PeerInfo,
    Peers,
    Ping,
    Pong,
    Refused,
    ReleaseKv,
    ReserveKv,
    StartRequest,
    Stop,
)
from tests.engine.driver import Driver
from tests.engine.raw_peer import assert_alive, counter

ATTEMPTS = itertools.count(1)
LIMITS = {"arrival": {"quarantine_s": 3.0}}

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, prepared_model) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("hostile")
    with Driver(
        folder, prepared_model("random-4l256"), names=("a",), l1_blocks=64, limits=LIMITS
    ) as running:
        yield running


def test_an_unknown_key_never_gets_in(driver: Driver, stranger: KeyPair, connect) -> None:
    peer = connect(generate_keypair())
    assert peer.ask(encode(Ping("x", "xx", 1)), timeout_s=3.0) is None
    driver.until(lambda: counter(driver, "wire_peer_denied_key") >= 1, 20.0, "the refusal")
    assert "denied" in driver.nodes["a"].log()
    assert_alive(driver)


def test_a_wrong_server_key_never_gets_in(driver: Driver, stranger: KeyPair, connect) -> None:
    peer = connect(stranger, server_key=generate_keypair().public)
    assert peer.ask(encode(Ping("x", "xx", 1)), timeout_s=3.0) is None
    assert_alive(driver)


def test_another_protocol_version(driver: Driver, stranger: KeyPair, connect) -> None:
    frame = bytearray(encode(Ping("x", "xx", 1)))
    frame[2:4] = (0).to_bytes(2, "big")
    answer = connect(stranger).ask(bytes(frame))
    assert isinstance(answer, Refused)
    assert "protocol 0" in answer.reason
    assert f"protocol {PROTOCOL_VERSION}" in answer.reason
    assert_alive(driver)


@pytest.mark.parametrize("cut", [1, 3, 5, -1])
def test_a_truncated_message(driver: Driver, stranger: KeyPair, connect, cut: int) -> None:
    answer = connect(stranger).ask(encode(Ping("x", "xx", 1))[:cut])
    assert isinstance(answer, Refused)
    assert answer.reason
    assert_alive(driver)


def test_a_hundred_megabytes(driver: Driver, stranger: KeyPair, connect) -> None:
    frame = encode(Ping("x", "xx", 1)) + bytes(100 * 1024 * 1024)
    answer = connect(stranger).ask(frame)
    assert isinstance(answer, Refused)
    assert f"{MAX_MESSAGE_BYTES}" in answer.reason.replace(",", "").replace("_", "")
    assert_alive(driver)


def test_a_message_for_the_other_end(driver: Driver, stranger: KeyPair, connect) -> None:
    peer = connect(stranger)
    answer = peer.ask(encode(Stop()))
    assert isinstance(answer, Refused)
    assert "Stop" in answer.reason
    assert isinstance(peer.ask(encode(Ping("x", "xx", 1))), Pong)
    assert_alive(driver)


def test_a_bad_entry_in_the_list_of_peers_costs_nothing_else(
    driver: Driver, stranger: KeyPair, connect
) -> None:
    """A node with a mistyped address becomes everybody's peer: it must not take them down."""
    hello = driver.nodes["a"].hello
    assert hello is not None
    good = msgspec.structs.replace(hello.peer, node="x", boot_id="xx", public_key=stranger.public)
    bad = [
        msgspec.structs.replace(good, node="b1", endpoint=""),
        msgspec.structs.replace(good, node="b2", endpoint="tcp://nowhere:x:1"),
        msgspec.structs.replace(good, node="b3", public_key=b"short"),
        msgspec.structs.replace(
            good,
            node="b4",
            public_key=generate_keypair().public,
            transfer=msgspec.structs.replace(good.transfer, block_bytes=7),
        ),
    ]
    driver.send("a", Peers(driver.epoch, (*bad, hello.peer, good)))
    assert_alive(driver)
    assert isinstance(connect(stranger).ask(encode(Ping("x", "xx", 1))), Pong)


@pytest.mark.parametrize("keys", [bytes(32), bytes(16) + b"x" * 16], ids=["repeated", "made up"])
def test_keys_that_are_not_the_prompts_are_refused(driver: Driver, keys: bytes) -> None:
    """They would give one prompt's KV to another."""
    driver.submit([5] * 40, request_id="honest", max_tokens=1)
    driver.wait(["honest"])
    assert refused(driver, prompt=(7,) * 40, block_keys=keys) == "EV-2308"
    assert_alive(driver)


@pytest.mark.parametrize("waited_s", [-1.0, float("nan"), float("inf")])
def test_a_wait_that_cannot_be_is_refused(driver: Driver, waited_s: float) -> None:
    """It would put the request before, or between, all others for good."""
    assert refused(driver, prompt=(7,) * 3, block_keys=b"", waited_s=waited_s) == "EV-2309"
    assert_alive(driver)


def refused(driver: Driver, **changes: Any) -> str:
    """The code by which the engine refuses a request like that."""
    start = StartRequest(
        request_id="odd",
        tenant="t",
        branch="",
        generation=0,
        epoch=driver.epoch,
        root_key=bytes(16),
        sampling=SamplingParams(max_tokens=2),
        prefill_node="a",
        decode_node="a",
        **changes,
    )
    driver.refused.clear()
    driver.send("a", start)
    driver.until(lambda: bool(driver.refused), 10.0, "a refusal")
    return driver.refused[0].code


def reserve(info: PeerInfo, **changes: object) -> ReserveKv:
    values: dict[str, object] = {
        "request_id": "q",
        "boot_id": info.boot_id,
        "attempt": next(ATTEMPTS),
        "tenant": "t",
        "blocks": 1,
        "prompt_tokens": 3,
        "output_tokens": 4,
        "block_keys": b"",
        **changes,
    }
    return ReserveKv(**values)  # type: ignore[arg-type]


def test_hand_overs_that_make_no_sense(driver: Driver, stranger: KeyPair, connect) -> None:
    """Counts that disagree, room that can never be, a hand-over out of nowhere."""
    hello = driver.nodes["a"].hello
    assert hello is not None
    info = msgspec.structs.replace(hello.peer, node="x", boot_id="xx", public_key=stranger.public)
    peer = connect(stranger)
    for message in (
        reserve(info, blocks=5),
        reserve(info, block_keys=bytes(16)),
        reserve(info, block_keys=bytes(7)),
        reserve(info, prompt_tokens=0, blocks=0),
        reserve(info, output_tokens=0),
        reserve(info, prompt_tokens=16 * 65, blocks=65, block_keys=bytes(16 * 65)),
        reserve(info, blocks=-1, prompt_tokens=-16),
    ):
        answer = peer.ask(encode(message))
        assert isinstance(answer, KvRefused | Refused), message
    answer = peer.ask(encode(BlocksLanded("nobody", "xx", 1, 0, ())))
    assert isinstance(answer, KvRefused | Refused)
    assert driver.quiet("a").load.l1_used_blocks == 0
    assert_alive(driver)


def test_a_reservation_is_freed_by_release_and_rests_when_its_writer_vanishes(
    driver: Driver, stranger: KeyPair, connect
) -> None:
    hello = driver.nodes["a"].hello
    assert hello is not None
    info = msgspec.structs.replace(hello.peer, node="x", boot_id="xx", public_key=stranger.public)
    peer = connect(stranger)
    first = reserve(info)
    peer.ask(encode(first))
    assert driver.inspect("a").load.l1_used_blocks == 1
    peer.ask(encode(ReleaseKv("q", "xx", first.attempt + 99)), timeout_s=0.2)
    assert driver.inspect("a").load.l1_used_blocks == 1, "another attempt was released"
    peer.ask(encode(ReleaseKv("q", "xx", first.attempt)), timeout_s=0.2)
    driver.quiet("a")
    peer.ask(encode(reserve(info)))
    driver.send("a", Peers(driver.epoch, (hello.peer,)))
    # the writer may still be copying: its slots are nobody's until the quarantine ends
    assert driver.inspect("a").load.l1_used_blocks == 1
    assert driver.run([[1, 2, 3, 4]], max_tokens=3)
    driver.quiet("a")


def test_a_hand_over_of_another_request(driver: Driver, stranger: KeyPair, connect) -> None:
    """Room was reserved for one prompt; another cannot be slipped in."""
    hello = driver.nodes["a"].hello
    assert hello is not None
    info = msgspec.structs.replace(hello.peer, node="x", boot_id="xx", public_key=stranger.public)
    peer = connect(stranger)
    asked = reserve(info)
    peer.ask(encode(asked))
    driver.submit([1, 2, 3], request_id="shape")
    driver.wait(["shape"])
    start = StartRequest(
        request_id="q",
        tenant="t",
        branch="",
        generation=0,
        epoch=1,
        prompt=(9, 9, 9, 9),
        root_key=bytes(16),
        block_keys=b"",
        sampling=SamplingParams(max_tokens=4),
        prefill_node="x",
        decode_node="a",
    )
    answer = peer.ask(encode(HandOver("q", "xx", asked.attempt, start, (1,), (), 0)))
    assert isinstance(answer, HandOverResult)
    assert not answer.accepted
    peer.ask(encode(ReleaseKv("q", "xx", asked.attempt)), timeout_s=0.2)
    assert_alive(driver)
