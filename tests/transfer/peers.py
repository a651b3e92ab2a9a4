"""Real peers for transfer tests: a spawned process that owns a KvMemory and takes orders.

The same file is both halves: `Peer` drives, `main` is what the process runs. Orders and answers
are JSON lines over its stdin and stdout.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from evctl.wire.messages import TransferAddress
from evengine.pool.memory import KvMemory
from evengine.ports import Outcome, Piece, Transfer, TransferState
from evengine.transfer import open_transfer

BLOCKS = 2048
BLOCK_BYTES = 4096
SIZE_BYTES = BLOCKS * BLOCK_BYTES
ROOT = Path(__file__).resolve().parents[2]
DONE, FAILED = TransferState.DONE, TransferState.FAILED
_boots = itertools.count()


def pattern(seed: int, length_bytes: int = SIZE_BYTES) -> bytes:
    return random.Random(seed).randbytes(length_bytes)


def digest(data: bytes | memoryview) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def fresh_boot() -> str:
    return f"boot{os.getpid()}x{next(_boots)}"


def wait_for(transfer: Transfer, tickets: Sequence[int], limit_s: float) -> dict[int, Outcome]:
    """Poll until all tickets have ended. Fails if one takes longer or ends twice."""
    ended: dict[int, Outcome] = {}
    end_s = time.monotonic() + limit_s
    while set(tickets) - set(ended):
        assert time.monotonic() < end_s, f"{set(tickets) - set(ended)} have not ended"
        for outcome in transfer.poll():
            assert outcome.ticket not in ended, f"ticket {outcome.ticket} ended twice"
            ended[outcome.ticket] = outcome
        time.sleep(0.001)
    return ended


class Peer:
    """One life of a node in a process of its own."""

    def __init__(
        self, backend: str, node: str, blocks: int = BLOCKS, ports: tuple[int, int] | None = None
    ) -> None:
        self.node = node
        self.boot_id = fresh_boot()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        if ports:
            environment |= {"MC_MIN_RPC_PORT": str(ports[0]), "MC_MAX_RPC_PORT": str(ports[1])}
        command = [sys.executable, "-m", "tests.transfer.peers", backend, node, self.boot_id]
        self.process = subprocess.Popen(
            [*command, str(blocks)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=ROOT,
            text=True,
        )
        self.address = msgspec.convert(self.answer(), TransferAddress)

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.node} ended with {self.process.wait()}"
        return json.loads(line)

    def order(self, name: str, *arguments: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([name, *arguments]) + "\n")
        self.process.stdin.flush()

    def call(self, name: str, *arguments: object) -> Any:
        self.order(name, *arguments)
        return self.answer()

    def connect(self, address: TransferAddress) -> None:
        self.call("connect", msgspec.to_builtins(address))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """End the process as a crash would, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Served:
    """What the peer's process does with its orders."""

    def __init__(self, backend: str, node: str, boot_id: str, blocks: int) -> None:
        self.memory = KvMemory(node, boot_id, blocks, BLOCK_BYTES)
        self.transfer = open_transfer(backend, self.memory, node, boot_id)

    def connect(self, address: dict[str, Any]) -> str:
        self.transfer.connect(msgspec.convert(address, TransferAddress))
        return "ok"

    def fill(self, seed: int) -> str:
        self.memory.view[:] = pattern(seed, self.memory.size_bytes)
        return "ok"

    def digest(self, offset: int = 0, length: int | None = None) -> str:
        end = self.memory.size_bytes if length is None else offset + length
        return digest(self.memory.view[offset:end])

    def copy(self, push: bool, node: str, boot_id: str, pieces: list[list[int]]) -> list[str]:
        start = self.transfer.write if push else self.transfer.read
        ticket = start(node, boot_id, [Piece(*piece) for piece in pieces], 20.0)
        outcome = wait_for(self.transfer, [ticket], 30.0)[ticket]
        return [outcome.state.value, outcome.reason]


def main() -> None:
    backend, node, boot_id, blocks = sys.argv[1:]
    served = Served(backend, node, boot_id, int(blocks))
    print(json.dumps(msgspec.to_builtins(served.transfer.address)), flush=True)
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(served, name)(*arguments)), flush=True)
    served.transfer.close()
    served.memory.close()


if __name__ == "__main__":
    main()
