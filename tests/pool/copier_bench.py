"""A copier over small real memory, whose jobs can be held up, and what they said."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from evctl.core.kv import KvLayout
from evengine.pool.copier import Checked, Copier, Item
from evengine.pool.headers import Header, read_header, slot_stride, write_header
from evengine.pool.l2 import HostPool
from evengine.pool.memory import KvMemory
from evengine.pool.pages import Pages
from evengine.transfer.protocol import block_checksum
from evengine.wake import Wake

LAYOUT = KvLayout(n_layers=1, planes=1, row_elements=5, dtype="float32", block_tokens=4)
BLOCK = LAYOUT.block_bytes
STRIDE = slot_stride(BLOCK)
L1, L2 = 4, 4
KEY, OTHER = b"k" * 16, b"o" * 16
LIMIT_S = 20.0
"""Nothing here waits so long unless it is broken."""


def data_of(key: bytes) -> bytes:
    return bytes((key[0] * 31 + i) % 256 for i in range(BLOCK))


def checksum_of(key: bytes) -> int:
    return block_checksum(memoryview(data_of(key)))


class GatedPages(Pages):
    """Copies out of L1 wait until they may: a job that is under way when the copier closes."""

    def __init__(self, layout: KvLayout, memory: KvMemory) -> None:
        super().__init__(layout, memory)
        self.reached = threading.Event()
        self.may = threading.Event()
        self.may.set()

    def copy_out(self, slot: int, target: memoryview) -> None:
        self.reached.set()
        assert self.may.wait(LIMIT_S)
        super().copy_out(slot, target)


class Bench:
    """A copier over small real memory, and what its jobs said."""

    def __init__(self) -> None:
        self.memory = KvMemory("copier", f"b{id(self)}", L1, BLOCK, pool_bytes=L2 * STRIDE)
        self.pages = GatedPages(LAYOUT, self.memory)
        self.pool = HostPool("boot", self.memory.pool(), L2, BLOCK)
        self.wake = Wake()
        self.copier = Copier(self.pages, self.pool, self.wake)
        self.ended: list[tuple[str, list[Checked], int]] = []

    def submit(self, name: str, items: Sequence[Item]) -> None:
        def done(results: Sequence[Checked]) -> None:
            self.ended.append((name, list(results), threading.get_ident()))

        self.copier.submit(items, done)

    def until(self, jobs: int) -> None:
        """Poll until so many jobs have ended in all."""
        while len(self.ended) < jobs:
            self.copier.wait(LIMIT_S)
            assert self.copier.poll(), "no job ended in time"

    def run(self, item: Item) -> Checked:
        """One block's job, to its end."""
        done = len(self.ended)
        self.submit("one", [item])
        self.until(done + 1)
        (result,) = self.ended[-1][1]
        return result

    def fill(self, l1_slot: int, key: bytes) -> None:
        self.memory.block(l1_slot)[:] = data_of(key)

    def land(self, l2_slot: int, key: bytes, header: Header) -> None:
        """As a read from a peer leaves it."""
        write_header(self.pool.view, l2_slot * STRIDE, header)
        self.pool.data(l2_slot)[:] = data_of(key)

    def found(self, l2_slot: int) -> Header:
        return read_header(self.pool.view, l2_slot * STRIDE)

    def close(self) -> None:
        self.pages.may.set()
        self.copier.close()
        self.wake.close()
        self.memory.close()
