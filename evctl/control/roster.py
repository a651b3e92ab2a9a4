"""Which engines are connected, and over which connection each."""

from __future__ import annotations

from evctl.control.statedir import NodeProcess
from evctl.wire.messages import Hello, InventoryBlock, Load


class Engine:
    """A node's present connection. heard_s: when it last said something, on the hub's clock.
    process: that runs it, where that is known."""

    def __init__(
        self, peer: bytes, hello: Hello, heard_s: float, process: NodeProcess | None
    ) -> None:
        self.peer = peer
        self.process = process
        self.hello = hello
        self.heard_s = heard_s
        self.load: Load | None = None
        self.inventory: list[InventoryBlock] = []
        """Pages that came, until the last one."""
        self.counters: dict[str, float] = {}

    @property
    def node(self) -> str:
        return self.hello.peer.node

    @property
    def boot_id(self) -> str:
        return self.hello.peer.boot_id


class Roster:
    """`present`: by node, those that are in. An engine that fell silent is kept apart under its
    connection, for it may speak again."""

    def __init__(self) -> None:
        self.present: dict[str, Engine] = {}
        self._by_peer: dict[bytes, Engine] = {}
        self._silent: dict[bytes, Engine] = {}

    def add(self, engine: Engine) -> None:
        """The node's engine from now on."""
        self.drop(engine.node)
        self.present[engine.node] = engine
        self._by_peer[engine.peer] = engine

    def drop(self, node: str) -> None:
        """Forget whatever connection the node had."""
        gone = self.present.pop(node, None)
        if gone is not None:
            del self._by_peer[gone.peer]
        for engine in self.silent(node):
            del self._silent[engine.peer]

    def silence(self, engine: Engine) -> None:
        """The engine is given up, but its connection is remembered."""
        self.drop(engine.node)
        self._silent[engine.peer] = engine

    def excuse(self, gap_s: float, now_s: float) -> None:
        """Nobody listened for so long: that was not the engines' silence."""
        for engine in self.present.values():
            engine.heard_s = min(now_s, engine.heard_s + gap_s)

    def by_peer(self, peer: bytes) -> Engine | None:
        return self._by_peer.get(peer)

    def wake(self, peer: bytes) -> Engine | None:
        """The silent engine behind a connection, which is so no longer."""
        return self._silent.pop(peer, None)

    def has_silent(self, process: NodeProcess) -> bool:
        return any(engine.process == process for engine in self._silent.values())

    def silent(self, node: str) -> list[Engine]:
        return [engine for engine in self._silent.values() if engine.node == node]
