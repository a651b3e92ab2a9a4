"""One cluster for all tests of this folder, with two tenants and few places to run in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.live.gateway.cluster import KEYS, UNCACHED_TOKENS, Cluster, allow_sockets
from tests.live.shell import Shell

FILE = f"""\
name: live
nodes: 3
split: 2P1D
model: random-4l256
l1_tokens: 4096
max_running: 2
warm_up_s: 0
gateway: {{port: 0}}
api_keys: {json.dumps(KEYS)}
"""


@pytest.fixture(autouse=True)
def unix_sockets() -> None:
    allow_sockets()


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    allow_sockets()
    shell = Shell(tmp_path_factory.mktemp("live"), FILE, "live")
    try:
        assert shell.json("up live.yaml")["failed"] == {}
        with closing(Cluster(shell, "random-4l256")) as cluster:
            cluster.settle()
            for _ in range(3):  # computed, then cached where it was prefilled and decoded
                cluster.answers_as_before()
            cluster.comes_to_rest()
            yield cluster
    finally:
        shell.end()


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """The cluster, which after each test comes to rest and answers as it did before any."""
    yield running
    if not running.rested:
        running.comes_to_rest()
    running.answers_as_before()


@pytest.fixture
def untouched(running: Cluster) -> Iterator[Cluster]:
    """The cluster, in a test whose requests all end at the gateway: engines are given nothing
    and compute nothing, but for the good requests in between."""
    if not running.rested:
        running.comes_to_rest()
    ended, computed = running.ended(), sum(running.engines("prefill_tokens").values())
    asked = running.asked
    yield running
    running.answers_as_before()
    running.comes_to_rest()
    good = running.asked - asked
    assert running.ended() == {**ended, "done": ended["done"] + good}
    # The good prompt is cached, up to its last block, which is not full.
    more = sum(running.engines("prefill_tokens").values()) - computed
    assert more == good * UNCACHED_TOKENS
