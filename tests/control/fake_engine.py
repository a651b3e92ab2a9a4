"""An engine on the wire that computes nothing: it says what a test tells it to."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import zmq

from evctl.control.plane import ControlPlane
from evctl.core.events import EngineFact
from evctl.core.kv import KvLayout
from evctl.wire.keys import KeyPair, load_keypair
from evctl.wire.messages import (
    AnyMessage,
    Facts,
    GetInventory,
    Heartbeat,
    Hello,
    Inventory,
    InventoryBlock,
    Load,
    PeerInfo,
    StartRequest,
    Tokens,
    TransferAddress,
    Welcome,
)
from evctl.wire.sockets import Dialer
from tests.control.state import BLOCK_TOKENS

WEIGHTS = "w" * 64
LAYOUT = KvLayout(4, 2, 128, "float32", BLOCK_TOKENS)


def write_model(directory: Path) -> Path:
    """The one file of a prepared model that the control plane reads."""
    directory.mkdir()
    (directory / "config.json").write_text(
        f'{{"name": "random-4l256", "weights_hash": "{WEIGHTS}", "context_tokens": 4096,'
        ' "vocab_size": 320, "eos_ids": [256]}'
    )
    return directory


class FakeEngine:
    def __init__(
        self, plane: ControlPlane, name: str, *, keypair: KeyPair | None = None, **hello: Any
    ) -> None:
        self.name = name
        self.boot_id = secrets.token_hex(4)
        self.received: list[AnyMessage] = []
        self.blocks: tuple[InventoryBlock, ...] = ()
        self.mute = False
        self.l2_used_blocks = 0
        self.counters: dict[str, float] = {"turns": 1.0}
        self._plane = plane
        root = plane.settings.directory
        self._keys = keypair or load_keypair(root / "keys" / f"{name}.key")
        server = load_keypair(root / "control.key").public
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dialer = Dialer(self._context, self._keys, server, plane.endpoint, name=name)
        self._hello_changes = hello
        self._greeted = 0
        self._task = asyncio.create_task(self._run())

    @property
    def public_key(self) -> bytes:
        return self._keys.public

    def hello(self) -> Hello:
        address = TransferAddress("shm", self.name, self.boot_id, "x", 0, 1, 1)
        peer = PeerInfo(self.name, self.boot_id, "tcp://127.0.0.1:1", self._keys.public, address)
        fields: dict[str, Any] = {
            "cluster": "test",
            "peer": peer,
            "model": "random-4l256",
            "weights_hash": WEIGHTS,
            "numerics": "exact/1",
            "layout": LAYOUT,
            "l1_blocks": 256,
            "l2_blocks": 0,
            "max_running": 8,
            "epoch": 0,
            **self._hello_changes,
        }
        return Hello(**fields)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._dialer.close()
        self._context.destroy(linger=0)

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.received if isinstance(message, kind)]

    def started(self) -> list[str]:
        return [message.request_id for message in self.of(StartRequest)]

    def send(self, message: AnyMessage) -> None:
        assert self._dialer.send(message)

    def tokens(self, request_id: str, start: int, *ids: int, finish: str | None = None) -> None:
        self.send(Tokens(request_id, start, ids, finish=finish))

    def fact(self, *facts: EngineFact) -> None:
        self.send(Facts(self.name, self.boot_id, 1, facts))

    def beat(self) -> None:
        l2_blocks = self._hello_changes.get("l2_blocks", 0)
        load = Load(0, 0, 0, 0, 10, 0, 256, self.l2_used_blocks, l2_blocks, 0)
        self.send(Heartbeat(self.name, self.boot_id, 1, 0, load, self.counters))

    async def _run(self) -> None:
        ticks = 0
        while True:
            for received in self._dialer.receive(100):
                self.received.append(received.message)
                if isinstance(received.message, GetInventory):
                    self.send(Inventory(self.name, self.boot_id, 0, self.blocks, True))
            if self._dialer.connections != self._greeted and self._dialer.send(self.hello()):
                self._greeted = self._dialer.connections
            if self.of(Welcome) and not self.mute and ticks % 20 == 0:
                self.beat()
            ticks += 1
            await asyncio.sleep(0.01)
