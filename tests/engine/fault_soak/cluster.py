"""Three engines that can be told to misbehave, and a small directory of who holds what."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from evctl.core.blocks import KEY_BYTES, KvNamespace, block_keys, root_key
from evctl.core.events import FetchEnded, KvEvicted, KvStored, TransferDone
from evctl.core.kv import FetchPiece
from evctl.wire.messages import AnyMessage, Facts, Heartbeat, Hello, Tokens
from tests.engine.driver import Driver, Node
from tests.engine.fault_orders import NoteReader, Orders, TimedNote, give_orders
from tests.engine.nursery import Born, Nursery

NAMES = ("a", "b", "c")
QUARANTINE_S = 2.5
L1_BLOCKS, L2_BLOCKS = 90, 80
"""Tight, so that what is freed too early is soon in other use."""
LIMITS = {
    "chunk_tokens": 32,
    "max_running": 16,
    "push": {"reserve_s": 3.0, "transfer_s": 2.0, "answer_s": 2.0, "retry_s": 0.02},
    "arrival": {"quarantine_s": QUARANTINE_S, "ask_s": 0.5, "idle_s": 20.0},
    "fetch": {
        "deadline_s": 4.0,
        "answer_s": 1.0,
        "transfer_s": 2.0,
        "hold_s": 4.0,
        "batch_blocks": 4,
        "quarantine_s": QUARANTINE_S,
    },
}
"""Short, so that what they bound is over soon. hold_s is above answer_s + transfer_s: a peer that
keeps its word never finds a slot reused under its read."""
QUIET = Orders()


class QuickNode(Node):
    """An engine out of a nursery: it is back soon after it was killed."""

    def __init__(self, node: Node, nursery: Nursery) -> None:
        super().__init__(node.name, node.keypair, node.config_path, node.entry)
        self._nursery = nursery

    def spawn(self) -> None:
        arguments = [*self.entry, "--config", str(self.config_path)]
        self.process = self._nursery.spawn(arguments, self.log_path)  # type: ignore[assignment]


class Cluster(Driver):
    """A driver that knows what its engines hold, and which of them are down."""

    def __init__(
        self, folder: Path, model: Path, backend: str, options: Sequence[str] = ()
    ) -> None:
        """options: of tests.engine.faulty_engine, for all three."""
        self.orders = {name: folder / f"{name}.orders" for name in NAMES}
        for path in self.orders.values():
            give_orders(path, QUIET)
        entries = {name: [*options, "--orders", str(path)] for name, path in self.orders.items()}
        super().__init__(
            folder,
            model,
            NAMES,
            entries=entries,
            transfer=backend,
            l1_blocks=L1_BLOCKS,
            l2_blocks=L2_BLOCKS,
            limits=LIMITS,
        )
        self._nursery = Nursery()
        self.nodes = {name: QuickNode(n, self._nursery) for name, n in self.nodes.items()}
        self.down: set[str] = set()
        """Killed or stopped: nothing is sent there."""
        self.holders: dict[bytes, set[str]] = {}
        self.transferred: set[str] = set()
        """Requests that their prefill node has handed over."""
        self.speakers: dict[str, set[str]] = {}
        """Who has sent tokens of a request."""
        self.wrong_repeats: list[str] = []
        self.peer_blocks = 0
        self.handovers_to: dict[str, int] = dict.fromkeys(NAMES, 0)
        self._readers = {name: NoteReader(path) for name, path in self.orders.items()}

    # ------------------------------------------------------------ faults

    def order(self, orders: Orders, *names: str) -> None:
        for name in names or NAMES:
            give_orders(self.orders[name], orders)

    def fresh_notes(self) -> list[tuple[str, TimedNote]]:
        """What the engines' transfers did since the last call."""
        return [(name, note) for name in NAMES for note in self._readers[name].fresh()]

    def kill(self, name: str) -> float:
        """End an engine as a crash would; returns when it was gone."""
        engine = self._engine(name)
        self.down.add(name)
        engine.kill()
        engine.wait()
        gone_s = time.monotonic()
        self.nodes[name].hello = None  # what of its words is still unread is of no life any more
        self.forget(name)
        return gone_s

    def pause(self, name: str) -> float:
        """Stop an engine; returns when it stood still."""
        self.down.add(name)
        engine = self._engine(name)
        engine.send_signal(signal.SIGSTOP)
        end_s = time.monotonic() + 5.0
        while not engine.stands_still():
            assert time.monotonic() < end_s, f"{name} does not stop"
        return time.monotonic()

    def resume(self, name: str) -> None:
        self._engine(name).send_signal(signal.SIGCONT)
        self.down.discard(name)

    def revive(self, name: str) -> None:
        """Begin to start a killed engine again; it is back once back() says so."""
        self.nodes[name].spawn()

    def back(self, name: str) -> bool:
        return self.nodes[name].hello is not None

    def stop(self) -> None:
        for name in self.down:
            self._engine(name).send_signal(signal.SIGCONT)
        super().stop()
        self._nursery.close()

    def _engine(self, name: str) -> Born:
        engine = self.nodes[name].process
        assert isinstance(engine, Born)
        return engine

    # ------------------------------------------------------------ the directory

    def forget(self, name: str) -> None:
        for nodes in self.holders.values():
            nodes.discard(name)

    def root_of(self, tenant: str) -> bytes:
        hello = next(node.hello for node in self.nodes.values() if node.hello)
        return root_key(self.kv_secret, KvNamespace(tenant, hello.weights_hash))

    def keys_of(self, prompt: Sequence[int], tenant: str) -> list[bytes]:
        hello = next(node.hello for node in self.nodes.values() if node.hello)
        root = self.root_of(tenant)
        return block_keys(self.kv_secret, root, prompt, hello.layout.block_tokens)

    def pieces(self, prompt: Sequence[int], tenant: str, without: str) -> list[FetchPiece]:
        """Where the blocks of a prompt lie, one node aside."""
        pieces: list[FetchPiece] = []
        for depth, key in enumerate(self.keys_of(prompt, tenant)):
            nodes = tuple(sorted(self.holders.get(key, set()) - {without}))
            if pieces and pieces[-1].nodes == nodes:
                pieces[-1] = FetchPiece(pieces[-1].start, depth + 1, nodes)
            else:
                pieces.append(FetchPiece(depth, depth + 1, nodes))
        return [piece for piece in pieces if piece.nodes]

    # ------------------------------------------------------------ wire

    def handed_over(self, request_id: str) -> bool:
        return request_id in self.transferred

    def send(self, name: str, message: AnyMessage) -> None:
        if name not in self.down:
            super().send(name, message)

    def announce(self, without: Iterable[str] = ()) -> None:
        """Also to stopped ones: they are not gone."""
        stopped = self.down - set(without)
        self.down -= stopped
        super().announce(without)
        self.down |= stopped

    def _handle(self, peer: bytes, public_key: bytes, message: AnyMessage) -> None:
        node = next(n for n in self.nodes.values() if n.keypair.public == public_key)
        if isinstance(message, Facts):
            self._note(node.name, message)
            return
        if isinstance(message, Hello):
            self.down.discard(node.name)  # a new life, which is to be welcomed
        if isinstance(message, Heartbeat) and node.hello is None:
            return  # the last words of a life that has been killed
        if isinstance(message, Tokens):
            if message.token_ids or message.finish:
                self.speakers.setdefault(message.request_id, set()).add(node.name)
            try:
                super()._handle(peer, public_key, message)
            except AssertionError:
                self.wrong_repeats.append(message.request_id)
            return
        super()._handle(peer, public_key, message)

    def _note(self, name: str, facts: Facts) -> None:
        hello = self.nodes[name].hello
        if hello is None or hello.peer.boot_id != facts.boot_id:
            return
        for fact in facts.events:
            if isinstance(fact, KvStored) and fact.tier == 2:
                for key in split(fact.keys):
                    self.holders.setdefault(key, set()).add(name)
            elif isinstance(fact, KvEvicted) and fact.tier == 2:
                for key in split(fact.keys):
                    self.holders.get(key, set()).discard(name)
            elif isinstance(fact, TransferDone):
                self.transferred.add(fact.request_id)
                self.handovers_to[fact.destination] += 1
            elif isinstance(fact, FetchEnded):
                self.peer_blocks += sum(source.blocks for source in fact.peers)


def split(packed: bytes) -> list[bytes]:
    return [packed[at : at + KEY_BYTES] for at in range(0, len(packed), KEY_BYTES)]
