"""A process whose L2 holds blocks: `python -m evengine.benches.source BACKEND BLOCKS BLOCK_BYTES`.

Prints its address, then obeys lines: a number damages the block in that slot, or repairs it the
second time; the end of stdin ends it.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import subprocess
import sys

import msgspec

from evctl.wire.messages import TransferAddress
from evengine.pool.headers import HEADER_BYTES, boot_digest, slot_stride, write_header
from evengine.pool.l2 import HostPool
from evengine.pool.memory import KvMemory, sweep_stale
from evengine.transfer import open_transfer
from evengine.transfer.protocol import block_checksum

NODE = "source"
DAMAGED_BYTE = 1000


def block_key(slot: int) -> bytes:
    """Of the block that lies in a source's slot."""
    return slot.to_bytes(16, "big")


def fill(pool: HostPool, boot_id: str) -> None:
    """Put a block of random bytes into every slot."""
    slots = pool.take(pool.total_blocks, 0.0)
    assert slots is not None, "the pool is empty"
    rng = random.Random(1)
    for slot in slots:
        data = pool.data(slot)
        data[:] = rng.randbytes(pool.block_bytes)
        header = pool.header(slot, block_key(slot), block_checksum(data))
        assert header.boot == boot_digest(boot_id)
        write_header(pool.view, slot * pool.stride, header)


class Source:
    """The process, from outside: its address, and orders to it."""

    def __init__(self, backend: str, blocks: int, block_bytes: int) -> None:
        command = [sys.executable, "-m", "evengine.benches.source"]
        self.process = subprocess.Popen(
            [*command, backend, str(blocks), str(block_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = msgspec.convert(json.loads(self._answer()), TransferAddress)

    def damage(self, slot: int) -> None:
        """Flip a byte of a block, header unchanged; again: flip it back."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{slot}\n")
        self.process.stdin.flush()
        self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the source of blocks ended with {self.process.wait()}")
        return line


def main() -> None:
    backend, blocks, block_bytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    sweep_stale()
    boot_id = f"{os.getpid()}.{secrets.token_hex(4)}"
    memory = KvMemory(NODE, boot_id, 1, block_bytes, pool_bytes=blocks * slot_stride(block_bytes))
    pool = HostPool(boot_id, memory.pool(), blocks, block_bytes, offset=memory.pool_offset)
    fill(pool, boot_id)
    transfer = open_transfer(backend, memory, NODE, boot_id)
    address = msgspec.structs.replace(
        transfer.address, pool_offset=memory.pool_offset, pool_blocks=blocks
    )
    print(json.dumps(msgspec.to_builtins(address)), flush=True)
    for line in sys.stdin:
        pool.view[int(line) * pool.stride + HEADER_BYTES + DAMAGED_BYTE] ^= 1
        print("ok", flush=True)
    transfer.close()
    memory.path.unlink()


if __name__ == "__main__":
    main()
