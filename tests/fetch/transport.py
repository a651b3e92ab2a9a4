"""The edges of a node, driven step by step: reads of peers' memory, letters, copies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from evctl.wire.messages import (
    AnyMessage,
    KvFetched,
    KvLocated,
    LocateKv,
    PeerInfo,
    TransferAddress,
)
from evengine.pool.copier import Checked, Copier, Done, Item
from evengine.pool.memory import KvMemory
from evengine.ports import Clock, Digest, Outcome, Piece, TransferState
from evengine.transfer.protocol import block_checksum, range_fault
from tests.pool.surroundings import Directory

STEP_LIMIT_S = 30.0
LATE_S = 29.0
"""How long after its failure a copy may still write; less than slots rest."""


class How(Enum):
    """What becomes of a read."""

    DONE = "done"
    PARTIAL = "says done, but moved only a part"
    CORRUPT = "says done, with a wrong byte"
    SWAPPED = "says done, with two blocks in each other's place"
    FAILED = "failed having moved a part, and has stopped"
    LATE = "failed, and will write later"


class Read(NamedTuple):
    node: str
    boot_id: str
    pieces: Sequence[Piece]
    deadline_s: float
    digest: Digest | None


class Late(NamedTuple):
    """Bytes that may still land."""

    until_s: float
    offset: int
    data: bytes


class StepTransfer:
    """ports.Transfer whose reads end when and how they are told to. Every other one of them comes
    with checksums of what it brought, as from a backend that copies by itself.

    memory_of(node, boot_id): a peer's bytes in that life, None once it is over.
    """

    def __init__(
        self,
        memory: KvMemory,
        address: TransferAddress,
        clock: Clock,
        memory_of: Callable[[str, str], memoryview | None],
    ) -> None:
        self.address = address
        self.pending: dict[int, Read] = {}
        self.late: list[Late] = []
        self._memory = memory
        self._clock = clock
        self._memory_of = memory_of
        self._outcomes: list[Outcome] = []
        self._next = 0

    def read(
        self,
        node: str,
        boot_id: str,
        pieces: Sequence[Piece],
        deadline_s: float,
        digest: Digest | None = None,
    ) -> int:
        self._next += 1
        digest = digest if self._next % 2 else None
        read = Read(node, boot_id, pieces, self._clock.now_s() + deadline_s, digest)
        there = self._memory_of(node, boot_id)
        size = len(there) if there is not None else 0
        if fault := range_fault(pieces, self._memory.size_bytes, size):
            self._outcomes.append(Outcome(self._next, TransferState.FAILED, fault))
        else:
            self.pending[self._next] = read
        return self._next

    def end(self, ticket: int, how: How) -> None:
        """End a read; to a peer that is gone it can only fail."""
        read = self.pending.pop(ticket)
        there = self._memory_of(read.node, read.boot_id)
        if there is None:
            how = How.LATE if how is How.LATE else How.FAILED
            there = memoryview(bytes(1 << 16))
        data = [bytes(there[p.remote_offset :][: p.length_bytes]) for p in read.pieces]
        places = [piece.local_offset for piece in read.pieces]
        if how is How.SWAPPED:
            places[:2] = reversed(places[:2])
        if how is How.LATE:
            until_s = self._clock.now_s() + LATE_S
            self.late += [Late(until_s, *one) for one in zip(places, data, strict=True)]
            self._fail(ticket, settled=False)
            return
        if how in (How.PARTIAL, How.FAILED):
            places, data = places[:-1], data[:-1]
        for place, part in zip(places, data, strict=True):
            self._memory.view[place : place + len(part)] = part
        if how is How.CORRUPT:
            self._memory.view[places[-1] + len(data[-1]) // 2] ^= 0x40
        if how is How.FAILED:
            self._fail(ticket, settled=True)
        else:
            done = Outcome(ticket, TransferState.DONE, checksums=self._checksums(read))
            self._outcomes.append(done)

    def _checksums(self, read: Read) -> list[int]:
        if read.digest is None:
            return []
        skip, size = read.digest.skip_bytes, read.digest.length_bytes
        starts = [piece.local_offset + skip for piece in read.pieces]
        return [block_checksum(self._memory.view[at : at + size]) for at in starts]

    def write_late(self, index: int) -> None:
        late = self.late.pop(index)
        self._memory.view[late.offset : late.offset + len(late.data)] = late.data

    def forget_late(self) -> None:
        """What is too old writes no more."""
        self.late = [late for late in self.late if late.until_s > self._clock.now_s()]

    def poll(self) -> list[Outcome]:
        now_s = self._clock.now_s()
        for ticket in [t for t, read in self.pending.items() if read.deadline_s <= now_s]:
            self.end(ticket, How.LATE)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def disconnect(self, node: str, boot_id: str) -> None:
        for ticket, read in list(self.pending.items()):
            if (read.node, read.boot_id) == (node, boot_id):
                self.end(ticket, How.LATE)

    def connect(self, peer: TransferAddress) -> None: ...

    def write(self, node: str, boot_id: str, pieces: Sequence[Piece], deadline_s: float) -> int:
        raise AssertionError("a fetch writes to nobody")

    def when_ended(self, call: Callable[[], None]) -> None: ...

    def close(self) -> None: ...

    def _fail(self, ticket: int, *, settled: bool) -> None:
        self._outcomes.append(Outcome(ticket, TransferState.FAILED, "told to", settled))


class StepCopier(Copier):
    """The real one, whose thread does one job for each step()."""

    def __init__(self, *arguments: object) -> None:
        self._permits = threading.Semaphore(0)
        self._waiting = 0
        super().__init__(*arguments)  # type: ignore[arg-type]

    def submit(self, items: Sequence[Item], done: Done) -> None:
        self._waiting += 1
        super().submit(items, done)

    def step(self) -> bool:
        """The next job is done, though not polled, when this returns. False without one."""
        if not self._waiting:
            return False
        self._waiting -= 1
        with self._changed:
            before = len(self._ended)
            self._permits.release()
            ended = self._changed.wait_for(
                lambda: len(self._ended) > before or self._error is not None, STEP_LIMIT_S
            )
        assert ended, "the copier does not move"
        return True

    def close(self) -> None:
        self._permits.release(self._waiting + 1)
        super().close()

    def _run(self, items: Sequence[Item]) -> list[Checked]:
        self._permits.acquire()
        return super()._run(items)


class Letter(NamedTuple):
    """A message on its way."""

    source: str
    target: str
    message: AnyMessage


class Mailbox(Directory):
    """A node's Outlet. `known`: lives that the control plane announced; silent: nodes that must
    answer before they are asked again; asked: keys by attempt, until KvFetched is sent; flying:
    attempt by key, of those that may still come."""

    def __init__(self, name: str, known: dict[str, PeerInfo], wire: list[Letter]) -> None:
        super().__init__()
        self.name = name
        self.known = known
        self.wire = wire
        self.silent: set[str] = set()
        self.asked: dict[int, list[bytes]] = {}
        self.flying: dict[bytes, int] = {}
        self.told: list[object] = []

    def fact(self, fact: object) -> None:
        super().fact(fact)
        self.told.append(fact)

    def to_peer(self, node: str, message: AnyMessage) -> bool:
        if isinstance(message, LocateKv):
            keys = [message.keys[at : at + 16] for at in range(0, len(message.keys), 16)]
            assert len(set(keys)) == len(keys), "a block is asked for twice in one go"
            assert not self.flying.keys() & set(keys), "a block that flies is asked for again"
            self.asked[message.attempt] = keys
            self.flying |= dict.fromkeys(keys, message.attempt)
        if isinstance(message, KvFetched):
            assert message.attempt in self.asked, "an attempt ended twice"
            self._land(message.attempt, self.asked.pop(message.attempt))
        if node not in self.known:
            return False
        self.wire.append(Letter(self.name, node, message))
        return True

    def hear(self, message: KvLocated, read_slots: set[int]) -> None:
        """An answer was taken in: what is not read from there does not fly."""
        asked = zip(self.asked.get(message.attempt, []), message.slots, strict=False)
        self._land(message.attempt, [key for key, slot in asked if slot not in read_slots])

    def _land(self, attempt: int, keys: list[bytes]) -> None:
        for key in keys:
            if self.flying.get(key) == attempt:
                del self.flying[key]

    def peer(self, node: str) -> PeerInfo | None:
        return None if node in self.silent else self.announced(node)

    def announced(self, node: str) -> PeerInfo | None:
        return self.known.get(node) if node != self.name else None

    def recheck_peer(self, node: str) -> None:
        self.silent.add(node)
