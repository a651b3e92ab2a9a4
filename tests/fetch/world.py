"""Nodes in one process that fetch from each other, and the network and time between them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq

from evctl.core.events import FetchEnded
from evctl.core.kv import FetchPiece
from evctl.core.sampling import SamplingParams
from evctl.wire.messages import PeerInfo, StartRequest
from evengine.request import Sequence
from tests.fetch.nodes import LAYOUT, ROOT, Node, bytes_of, chain
from tests.fetch.transport import How, Letter
from tests.pool.surroundings import FakeClock


class Asked:
    """A request on a node. planned: whether it ever waited for KV."""

    def __init__(self, node: Node, seq: Sequence) -> None:
        self.node = node
        self.seq = seq
        self.planned = False
        self.admitted = False
        self.cancelled = False

    @property
    def runnable(self) -> bool:
        return self.admitted and self.seq.intake is None

    def ended(self) -> list[FetchEnded]:
        return [
            fact
            for fact in self.node.mailbox.told
            if isinstance(fact, FetchEnded) and fact.request_id == self.seq.request_id
        ]


class World:
    """All nodes. Nothing moves but by a call."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.known: dict[str, PeerInfo] = {}
        self.wire: list[Letter] = []
        self.nodes: dict[str, Node] = {}
        self._requests = itertools.count(1)

    def memory_of(self, name: str, boot_id: str) -> memoryview | None:
        node = self.nodes.get(name)
        return node.memory.view if node is not None and node.boot_id == boot_id else None

    def start(self, name: str, **options: object) -> Node:
        node = self.nodes[name] = Node(
            name, self.clock, self.known, self.wire, self.memory_of, **options
        )  # type: ignore[arg-type]
        self.known[name] = node.info
        return node

    def vanish(self, name: str) -> None:
        """The control plane says that a node is gone; what it sent may still be under way."""
        node = self.nodes.pop(name)
        del self.known[name]
        for other in self.nodes.values():
            other.peer_lost(node.info)
        node.close()

    def deliver(self, index: int, *, again: bool = False) -> None:
        """A letter arrives, perhaps not for the last time."""
        letter = self.wire[index] if again else self.wire.pop(index)
        node = self.nodes.get(letter.target)
        answer = node.take(letter) if node is not None else None
        if answer is not None:
            self.wire.append(Letter(letter.target, letter.source, answer))

    def turn(self) -> None:
        for node in self.nodes.values():
            node.turn(self.clock.now_s())

    def calm(self) -> bool:
        """One round in which everything goes well; whether there was nothing to do."""
        busy = bool(self.wire)
        while self.wire:
            self.deliver(0)
        for node in self.nodes.values():
            node.mailbox.silent.clear()
            for ticket in list(node.transfer.pending):
                node.transfer.end(ticket, How.DONE)
                busy = True
            while node.copier.step():
                busy = True
        self.turn()
        for node in self.nodes.values():  # what the turn began
            busy |= bool(node.transfer.pending or node.copier.blocks_under_way)
        return not (busy or self.wire)

    def request(
        self, node: Node, path: Seq[int], pieces: Seq[FetchPiece] = (), arrive: bool = True
    ) -> Asked:
        """One with a token more than the blocks of `path`."""
        start = StartRequest(
            request_id=f"q{next(self._requests)}",
            tenant="t",
            branch="",
            generation=0,
            epoch=0,
            prompt=(0,) * (len(path) * LAYOUT.block_tokens + 1),
            root_key=ROOT,
            block_keys=b"".join(chain(path)),
            sampling=SamplingParams(max_tokens=1),
            prefill_node=node.name,
            decode_node=node.name,
            fetch=tuple(pieces),
        )
        seq = Sequence(start, b"", LAYOUT.block_tokens, self.clock.now_s())
        asked = Asked(node, seq)
        if arrive:
            node.fetcher.arrived(seq)
            asked.planned = seq.intake is not None
        return asked

    def admit(self, asked: Asked) -> bool:
        """False if L1 has no room."""
        node, seq = asked.node, asked.seq
        asked.admitted = node.store.take_prefix(seq, 0)
        if asked.admitted:
            node.fetcher.admitted(seq)
            asked.planned |= seq.intake is not None or bool(asked.ended())
        return asked.admitted

    def finish(self, asked: Asked) -> None:
        """It computes what did not come, and leaves."""
        node, seq = asked.node, asked.seq
        assert asked.runnable
        for key, slot in zip(seq.keys[: seq.published], seq.slots, strict=False):
            assert bytes(node.memory.block(slot)) == bytes_of(key), "it runs with wrong KV"
        for block in range(seq.published, len(seq.keys)):
            node.memory.block(seq.slots[block])[:] = bytes_of(seq.keys[block])
        seq.computed = len(seq.keys) * LAYOUT.block_tokens
        node.store.publish(seq)
        self._leave(asked)

    def cancel(self, asked: Asked) -> None:
        asked.cancelled = True
        asked.node.fetcher.cancel(asked.seq)
        self._leave(asked)

    def _leave(self, asked: Asked) -> None:
        asked.node.store.release(asked.seq)
        asked.node.store.settle(asked.seq)

    def close(self) -> None:
        for node in self.nodes.values():
            node.close()
