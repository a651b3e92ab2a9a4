"""Prepared models for engine tests, and strangers at the door of an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from evctl.wire.keys import KeyPair, generate_keypair
from evctl.wire.messages import Peers
from tests.engine.driver import Driver
from tests.engine.raw_peer import RawPeer


@pytest.fixture(scope="session")
def prepared_model() -> Callable[[str], Path]:
    """Name -> directory of a model, made or fetched on first use and cached across runs."""
    from evengine.models.store import ensure_model

    return ensure_model


@pytest.fixture
def stranger(driver: Driver) -> KeyPair:
    """A key that the control plane announced as node x."""
    keypair = generate_keypair()
    hello = driver.nodes["a"].hello
    assert hello is not None
    other = msgspec.structs.replace(
        hello.peer, node="x", boot_id="xx", public_key=keypair.public, endpoint="tcp://127.0.0.1:9"
    )
    driver.send("a", Peers(driver.epoch, (hello.peer, other)))
    driver.inspect("a")
    return keypair


@pytest.fixture
def connect(driver: Driver) -> Iterator[Callable[[KeyPair], RawPeer]]:
    opened: list[RawPeer] = []
    hello = driver.nodes["a"].hello
    assert hello is not None

    def open_peer(keypair: KeyPair, server_key: bytes = hello.peer.public_key) -> RawPeer:
        opened.append(RawPeer(hello.peer.endpoint, server_key, keypair))
        return opened[-1]

    yield open_peer
    for peer in opened:
        peer.close()
