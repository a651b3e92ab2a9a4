"""The wrapper's rules against a scripted library: limits, partial failures, no retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from evctl.core.errors import EvctlError
from evctl.wire.messages import TransferAddress
from evengine.pool.memory import KvMemory
from evengine.ports import Outcome, Piece
from evengine.transfer import mooncake, mooncake_client
from evengine.transfer.mooncake import MooncakeTransfer
from evengine.transfer.protocol import MAX_BATCH_PIECES, MAX_PEER_OUTSTANDING_PIECES

from .peers import DONE, FAILED, fresh_boot, wait_for

PEER = TransferAddress("mooncake", "peer", "p1", "10.0.0.1:1", 1 << 40, 1 << 20, 4096)


class ScriptedClient:
    """Batches run until told otherwise. `verdicts`: batch id -> status; 0 while absent."""

    endpoint = "10.0.0.9:1"

    def __init__(self, probed: set[str]) -> None:
        self.probed = probed
        self.submitted: dict[int, tuple[str, int, list[Piece], bool]] = {}
        self.verdicts: dict[int, int] = {}
        self.ended: set[int] = set()
        self.refuse = False
        self.silent_s = 0.0
        self.probes = 0
        self.closed = False

    def probe(self, endpoint: str) -> int:
        self.probes += 1
        self.probed.add(endpoint)
        time.sleep(self.silent_s)
        return 0

    def warm(self, peer: TransferAddress, deadline_s: float) -> bool:
        assert peer.endpoint in self.probed, "a session is opened only after a probe"
        return True

    def submit(self, endpoint: str, base: int, pieces: Sequence[Piece], push: bool) -> int:
        if self.refuse:
            return 0
        batch = len(self.submitted) + 1
        self.submitted[batch] = (endpoint, base, list(pieces), push)
        return batch

    def status(self, batch: int) -> int:
        assert batch not in self.ended, "an id that has ended is never asked again"
        verdict = self.verdicts.get(batch, 0)
        if verdict:
            self.ended.add(batch)
        return verdict

    def close(self) -> None:
        self.closed = True

    def outstanding(self) -> int:
        return sum(len(one[2]) for batch, one in self.submitted.items() if batch not in self.ended)


Scripted = tuple[MooncakeTransfer, list[ScriptedClient]]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    clients: list[ScriptedClient] = []
    probed: set[str] = set()

    def start(memory: KvMemory, host: str, protocol: str) -> ScriptedClient:
        clients.append(ScriptedClient(probed))
        return clients[-1]

    monkeypatch.setattr(mooncake, "MooncakeClient", start)
    monkeypatch.setattr(mooncake, "set_environment", lambda protocol: None)
    boot_id = fresh_boot()
    memory = KvMemory("rules", boot_id, 256, 4096)
    transfer = MooncakeTransfer(memory, "rules", boot_id)
    yield transfer, clients
    transfer.close()
    memory.close()


def pieces(count: int) -> list[Piece]:
    return [Piece(2 * i, 3 * i, 1) for i in range(count)]


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end_s, "did not come about"
        time.sleep(0.001)


def end(transfer: MooncakeTransfer, ticket: int) -> Outcome:
    return wait_for(transfer, [ticket], 5)[ticket]


def test_no_batch_and_no_peer_gets_more_than_its_limit(scripted: Scripted) -> None:
    transfer, (client,) = scripted
    transfer.connect(PEER)
    ticket = transfer.write("peer", "p1", pieces(3_000), 30.0)
    highest = 0
    while len(client.ended) < 6:
        until(lambda: client.outstanding() >= min(1_024, 3_000 - 512 * len(client.ended)))
        time.sleep(0.01)
        highest = max(highest, client.outstanding())
        first = min(set(client.submitted) - client.ended)
        client.verdicts[first] = 1
        until(lambda first=first: first in client.ended)  # type: ignore[misc]
    assert highest == MAX_PEER_OUTSTANDING_PIECES
    assert [len(one[2]) for one in client.submitted.values()] == [MAX_BATCH_PIECES] * 5 + [440]
    assert [piece for one in client.submitted.values() for piece in one[2]] == pieces(3_000)
    assert {(one[0], one[1], one[3]) for one in client.submitted.values()} == {
        (PEER.endpoint, PEER.base, True)
    }
    assert end(transfer, ticket).state is DONE


def test_one_failed_batch_fails_the_ticket_unsettled_and_nothing_follows(
    scripted: Scripted,
) -> None:
    transfer, (client,) = scripted
    transfer.connect(PEER)
    ticket = transfer.read("peer", "p1", pieces(3_000), 30.0)
    waiting = transfer.read("peer", "p1", pieces(1), 30.0)
    until(lambda: len(client.submitted) == 2)
    client.verdicts = {1: 1, 2: -1}
    ended = wait_for(transfer, [ticket, waiting], 5)
    assert (ended[ticket].state, ended[ticket].settled) == (FAILED, False)
    assert (ended[waiting].state, ended[waiting].settled) == (FAILED, True)
    time.sleep(0.05)
    assert len(client.submitted) == 2
    refused = end(transfer, transfer.read("peer", "p1", pieces(1), 30.0))
    assert (refused.state, refused.settled) == (FAILED, True)
    transfer.connect(PEER)
    until(lambda: client.probes == 2)
    transfer.read("peer", "p1", pieces(1), 30.0)
    until(lambda: len(client.submitted) == 3)


def test_a_batch_that_was_not_taken_fails_and_is_not_tried_again(scripted: Scripted) -> None:
    transfer, (client,) = scripted
    client.refuse = True
    transfer.connect(PEER)
    outcome = end(transfer, transfer.write("peer", "p1", pieces(1), 30.0))
    assert (outcome.state, outcome.settled) == (FAILED, False)
    client.refuse = False
    time.sleep(0.05)
    assert client.submitted == {}


def test_a_ticket_past_its_deadline_stays_failed_but_counts_as_outstanding(
    scripted: Scripted,
) -> None:
    transfer, (client,) = scripted
    transfer.connect(PEER)
    late = transfer.write("peer", "p1", pieces(1_024), 0.2)
    until(lambda: len(client.submitted) == 2)
    outcome = end(transfer, late)
    assert (outcome.state, outcome.settled) == (FAILED, False)
    following = transfer.write("peer", "p1", pieces(1), 30.0)
    time.sleep(0.05)
    assert len(client.submitted) == 2  # the library is still busy with 1,024 pieces
    client.verdicts = {1: 1, 2: 1}
    until(lambda: len(client.submitted) == 3)
    client.verdicts[3] = 1
    assert end(transfer, following).state is DONE
    assert transfer.poll() == []


def test_a_new_life_at_a_known_endpoint_gets_a_client_of_its_own(scripted: Scripted) -> None:
    transfer, clients = scripted
    transfer.connect(PEER)
    transfer.write("peer", "p1", pieces(1), 30.0)
    until(lambda: len(clients[0].submitted) == 1)
    second = TransferAddress("mooncake", "peer", "p2", PEER.endpoint, 1 << 41, 1 << 20, 4096)
    transfer.connect(second)
    transfer.write("peer", "p2", pieces(1), 30.0)
    until(lambda: len(clients) == 2 and len(clients[1].submitted) == 1)
    assert clients[1].submitted[1][1] == 1 << 41
    assert len(clients[0].submitted) == 1


def test_a_mute_peer_holds_up_no_other_opening(scripted: Scripted) -> None:
    transfer, (client,) = scripted
    client.silent_s = 1.0
    transfer.connect(PEER)
    until(lambda: client.probes == 1)
    client.silent_s = 0.0
    other = TransferAddress("mooncake", "other", "o", "10.0.0.2:1", 1 << 42, 1 << 20, 4096)
    transfer.connect(other)
    transfer.write("other", "o", pieces(1), 30.0)
    start_s = time.monotonic()
    until(lambda: len(client.submitted) == 1)
    assert time.monotonic() - start_s < 0.5


class BrokenEngine:
    """The binding, with one step that goes wrong."""

    def __init__(self, broken: str) -> None:
        self._broken = broken

    def initialize(self, *arguments: object) -> int:
        return -1 if self._broken == "initialize" else 0

    def get_rpc_port(self) -> int:
        return 1

    def batch_register_memory(self, *arguments: object) -> int:
        return -1 if self._broken == "register" else 0

    def batch_transfer_async_read(self, *arguments: object) -> int:
        return 0 if self._broken == "submit" else 1

    def transfer_check_status(self, batch: int) -> int:
        """Says done; not a byte has moved."""
        return -1 if self._broken == "status" else 1


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("initialize", "initialize returned -1"),
        ("register", "register memory returned -1"),
        ("submit", "did not move its bytes"),
        ("status", "did not move its bytes"),
        ("lies", "did not move its bytes"),
    ],
)
def test_the_start_fails_closed(monkeypatch: pytest.MonkeyPatch, broken: str, why: str) -> None:
    monkeypatch.setattr(mooncake_client, "import_engine", lambda: BrokenEngine(broken))
    memory = KvMemory("rules", boot := fresh_boot(), 1, 4096)
    with pytest.raises(EvctlError) as caught:
        MooncakeTransfer(memory, "rules", boot)
    assert caught.value.code == "EV-4203"
    assert why in caught.value.why
    memory.close()
    assert not memory.path.exists()


def test_a_library_that_is_busy_is_left_alone_and_keeps_the_memory_mapped(
    scripted: Scripted,
) -> None:
    """Tearing it down under a running batch, or unmapping what it writes to, is a crash."""
    transfer, (client,) = scripted
    transfer.connect(PEER)
    transfer.write("peer", "p1", pieces(1), 30.0)
    until(lambda: len(client.submitted) == 1)
    transfer.close()
    assert not client.closed
    assert [outcome.settled for outcome in transfer.poll()] == [False]


def test_an_idle_library_is_torn_down(scripted: Scripted) -> None:
    transfer, (client,) = scripted
    transfer.close()
    assert client.closed


@pytest.mark.system
@pytest.mark.netns
def test_asking_for_rdma_where_tcp_is_taken_is_refused() -> None:
    memory = KvMemory("rules", boot := fresh_boot(), 1, 4096)
    MooncakeTransfer(memory, "rules", boot, protocol="tcp").close()  # sets MC_FORCE_TCP
    with pytest.raises(EvctlError, match="rdma was asked for"):
        MooncakeTransfer(memory, "rules", boot, protocol="rdma")
    memory.close()
