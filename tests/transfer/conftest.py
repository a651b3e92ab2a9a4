"""Fixtures of the transfer tests, and the network namespace that Mooncake's run in.

Mooncake listens on all interfaces and asks nobody who they are, so a test marked `netns` runs
in a pytest of its own inside a fresh namespace that has nothing but a loopback (needs root).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from evengine.pool.memory import KvMemory, sweep_stale
from evengine.ports import Transfer
from evengine.transfer import open_transfer

from .peers import BLOCK_BYTES, BLOCKS, Peer, fresh_boot

INSIDE = "EVCTL_TEST_NETNS"
NAMESPACE_TEST_LIMIT_S = 180
# No TIME_WAIT, so that a restarted peer can be given its old port at once.
ENTER = "ip link set lo up && sysctl -qw net.ipv4.tcp_max_tw_buckets=0 && exec \"$@\""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "system: starts real processes")
    config.addinivalue_line("markers", "netns: runs in a network namespace of its own; root")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("netns") and INSIDE not in os.environ:
            move_into_namespace(item)


def move_into_namespace(item: pytest.Item) -> None:
    """Replace an item's body, fixtures included, by a run of the same item in a namespace."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", item.nodeid]

    def run() -> None:
        ended = subprocess.run(
            ["unshare", "-n", "sh", "-c", ENTER, "sh", *command],
            env={**os.environ, INSIDE: "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=item.config.rootpath,
            capture_output=True,
            text=True,
            timeout=NAMESPACE_TEST_LIMIT_S,
        )
        passed = ended.returncode == 0 and "1 passed" in ended.stdout
        assert passed, f"in its namespace:\n{ended.stdout}\n{ended.stderr}"

    item.setup = lambda: None  # type: ignore[method-assign]
    item.runtest = run  # type: ignore[method-assign]


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
    sweep_stale()


