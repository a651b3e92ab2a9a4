"""What the client makes of a library that tells the state of a batch's first piece only."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

from evengine.pool.memory import KvMemory
from evengine.ports import Piece
from evengine.transfer import mooncake_client
from evengine.transfer.mooncake_client import MooncakeClient

from .peers import fresh_boot

THREE = [Piece(offset, offset, 64) for offset in (0, 128, 256)]


class FirstPieceEngine:
    """The binding of 0.3.13: transfer_check_status looks at the first piece of a batch.

    states: of the pieces in the order they came, 0 running. takes: how many it accepts.
    """

    def __init__(self) -> None:
        self.states: list[int] = []
        self.takes = 1 << 30
        self._first: list[int] = []
        self._freed: set[int] = set()

    def initialize(self, *arguments: object) -> int:
        return 0

    def get_rpc_port(self) -> int:
        return 1

    def batch_register_memory(self, *arguments: object) -> int:
        return 0

    def batch_transfer_async_read(
        self, endpoint: str, local: list[int], remote: list[int], lengths: list[int]
    ) -> int:
        if len(self.states) >= self.takes:
            return 0
        self._first.append(len(self.states))
        own = not self.states  # the self-test, which moves bytes within this process
        for to, start, length in zip(local, remote, lengths, strict=True):
            if own:
                ctypes.memmove(to, start, length)
            self.states.append(int(own))
        return len(self._first)

    def transfer_check_status(self, batch: int) -> int:
        assert batch not in self._freed, "an id that has ended is never asked again"
        state = self.states[self._first[batch - 1]]
        if state:
            self._freed.add(batch)
        return state


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[MooncakeClient, FirstPieceEngine]]:
    engine = FirstPieceEngine()
    monkeypatch.setattr(mooncake_client, "import_engine", lambda: engine)
    monkeypatch.setattr(mooncake_client, "_talks_tcp_to_itself", lambda: True)
    memory = KvMemory("batches", fresh_boot(), 1, 4096)
    yield MooncakeClient(memory, "127.0.0.1", "tcp"), engine
    memory.close()


Client = tuple[MooncakeClient, FirstPieceEngine]


@pytest.mark.parametrize("last", [0, 1, 2])
def test_a_batch_is_done_when_its_last_piece_is(client: Client, last: int) -> None:
    here, engine = client
    batch = here.submit("peer:1", 1 << 40, THREE, push=False)
    for piece in {0, 1, 2} - {last}:
        assert here.status(batch) == 0
        engine.states[1 + piece] = 1
    assert here.status(batch) == 0
    engine.states[1 + last] = 1
    assert here.status(batch) == 1


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_one_piece_that_fails_fails_the_batch_once_all_have_ended(
    client: Client, failing: int
) -> None:
    here, engine = client
    batch = here.submit("peer:1", 1 << 40, THREE, push=False)
    engine.states[1 + failing] = -1
    assert here.status(batch) == 0
    engine.states[1:] = [-1 if piece == failing else 1 for piece in range(3)]
    assert here.status(batch) == -1


def test_a_batch_of_which_nothing_is_taken_is_none(client: Client) -> None:
    here, engine = client
    engine.takes = len(engine.states)
    assert here.submit("peer:1", 1 << 40, THREE, push=False) == 0


def test_a_batch_of_which_a_part_is_taken_fails_once_that_part_has_ended(client: Client) -> None:
    here, engine = client
    engine.takes = len(engine.states) + 2
    batch = here.submit("peer:1", 1 << 40, THREE, push=False)
    assert batch > 0
    engine.states[1] = 1
    assert here.status(batch) == 0
    engine.states[2] = 1
    assert here.status(batch) == -1
