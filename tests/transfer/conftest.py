"""Fixtures of the transfer tests: a node in this process, and peers in others."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from evengine.pool.memory import SHM_DIRECTORY, KvMemory, segment_name
from evengine.ports import Transfer
from evengine.transfer import open_transfer

from .peers import BLOCK_BYTES, BLOCKS, Peer, fresh_boot


@pytest.fixture(
    params=["shm", pytest.param("mooncake", marks=pytest.mark.netns)],
)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Node:
    """The side under test: a KvMemory and a transfer over it in this process."""

    def __init__(self, backend: str, name: str, blocks: int = BLOCKS) -> None:
        self.boot_id = fresh_boot()
        self.memory = KvMemory(name, self.boot_id, blocks, BLOCK_BYTES)
        self.transfer: Transfer = open_transfer(backend, self.memory, name, self.boot_id)

    def close(self) -> None:
        self.transfer.close()
        self.memory.close()


@pytest.fixture
def node(backend: str) -> Iterator[Node]:
    here = Node(backend, "here")
    yield here
    here.close()


@pytest.fixture
def spawn(backend: str) -> Iterator[Callable[..., Peer]]:
    """Start peers of the backend under test; they are killed at the end."""
    started: list[Peer] = []

    def start(name: str, blocks: int = BLOCKS, ports: tuple[int, int] | None = None) -> Peer:
        started.append(Peer(backend, name, blocks, ports))
        return started[-1]

    yield start
    for peer in started:
        peer.kill()
        (SHM_DIRECTORY / segment_name(peer.node, peer.boot_id)).unlink(missing_ok=True)
