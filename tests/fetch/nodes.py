"""One node with both tiers, a fetcher and a lender; its surroundings are told what to do."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from hashlib import blake2b

from evctl.core.kv import KvLayout
from evctl.wire.messages import (
    KvFetched,
    KvLocated,
    LocateKv,
    PeerInfo,
    TransferAddress,
)
from evengine.blockstore import BlockStore
from evengine.fetch.fetcher import Fetcher
from evengine.fetch.lender import Lender
from evengine.fetch.limits import FetchLimits
from evengine.pool.headers import slot_stride, write_header
from evengine.pool.l1 import L1Cache
from evengine.pool.l2 import HeldBlock, HostPool
from evengine.pool.memory import KvMemory
from evengine.pool.pages import Pages
from evengine.ports import Clock
from evengine.transfer.protocol import block_checksum
from evengine.wake import Wake
from tests.fetch.transport import Letter, Mailbox, StepCopier, StepTransfer

LAYOUT = KvLayout(n_layers=1, planes=1, row_elements=4, dtype="float32", block_tokens=4)
BLOCK = LAYOUT.block_bytes
STRIDE = slot_stride(BLOCK)
ROOT = b"r" * 16
_lives = itertools.count()


def chain(path: Seq[int]) -> list[bytes]:
    """Keys of the blocks along `path`; equal prefixes give equal keys."""
    return [
        blake2b(bytes(path[: depth + 1]), digest_size=16).digest() for depth in range(len(path))
    ]


def bytes_of(key: bytes) -> bytes:
    """What a block with this key holds, wherever it is."""
    return key * (BLOCK // len(key))


class Node:
    """One life of a node: both tiers, a fetcher and a lender, as the loop puts them together."""

    def __init__(
        self,
        name: str,
        clock: Clock,
        known: dict[str, PeerInfo],
        wire: list[Letter],
        memory_of: Callable[[str, str], memoryview | None],
        *,
        l1_blocks: int = 14,
        l2_blocks: int = 10,
        limits: FetchLimits = FetchLimits(),  # noqa: B008  # frozen
    ) -> None:
        self.name = name
        self.boot_id = f"{os.getpid()}x{next(_lives)}"
        self.memory = KvMemory(name, self.boot_id, l1_blocks, BLOCK, pool_bytes=l2_blocks * STRIDE)
        address = TransferAddress(
            backend="step",
            node=name,
            boot_id=self.boot_id,
            endpoint="",
            base=0,
            size_bytes=self.memory.size_bytes,
            block_bytes=BLOCK,
            pool_offset=self.memory.pool_offset,
            pool_blocks=l2_blocks,
        )
        self.info = PeerInfo(name, self.boot_id, "", b"", address)
        self.counters: Counter[str] = Counter()
        self.mailbox = Mailbox(name, known, wire)
        self.transfer = StepTransfer(self.memory, address, clock, memory_of)
        self.pool = HostPool(
            self.boot_id,
            self.memory.pool(),
            l2_blocks,
            BLOCK,
            offset=self.memory.pool_offset,
        )
        pages = Pages(LAYOUT, self.memory)
        self.wake = Wake()
        self.copier = StepCopier(pages, self.pool, self.wake)
        self.l1 = L1Cache(l1_blocks)
        self.store = BlockStore(
            pages, self.l1, self.pool, self.copier, self.mailbox, clock, self.counters
        )
        self.lender = Lender(self.boot_id, self.pool, self.mailbox, clock, self.counters)
        self.fetcher = Fetcher(
            boot_id=self.boot_id,
            store=self.store,
            pool=self.pool,
            copier=self.copier,
            transfer=self.transfer,
            outlet=self.mailbox,
            clock=clock,
            counters=self.counters,
            limits=limits,
        )
        self.limits = limits
        self.spoiled: dict[bytes, HeldBlock] = {}
        """Blocks whose bytes in L2 have gone bad since they were kept."""

    def turn(self, now_s: float) -> None:
        """What the loop does before anything else."""
        self.copier.poll()
        outcomes = self.transfer.poll()
        self.lender.tick(now_s)
        self.fetcher.on_outcomes(outcomes)
        self.fetcher.tick(now_s)
        self.store.announce_evictions()

    def plant(self, keys: Seq[bytes]) -> None:
        """Have blocks in L2, as if they had been computed here."""
        for depth, key in enumerate(keys):
            slots = None if self.pool.find(key) else self.pool.take(1, 0.0)
            if not slots:
                continue
            checksum = block_checksum(memoryview(bytes_of(key)))
            self.pool.data(slots[0])[:] = bytes_of(key)
            header = self.pool.header(slots[0], key, checksum)
            write_header(self.pool.view, slots[0] * STRIDE, header)
            parent = keys[depth - 1] if depth else ROOT
            self.pool.hold(slots[0], key, parent, depth, checksum)
            self.store.tell_stored("", 2, parent, [key])

    def peer_lost(self, info: PeerInfo) -> None:
        self.transfer.disconnect(info.node, info.boot_id)
        self.lender.peer_lost(info.node, info.boot_id)
        self.fetcher.peer_lost(info.node, info.boot_id)

    def take(self, letter: Letter) -> KvLocated | None:
        """A message from a peer; the answer to it."""
        message = letter.message
        if isinstance(message, LocateKv):
            return self.lender.on_locate(letter.source, message)
        if isinstance(message, KvFetched):
            self.lender.on_fetched(letter.source, message)
        elif isinstance(message, KvLocated):
            self._located(letter.source, message)
        return None

    def _located(self, source: str, message: KvLocated) -> None:
        before, late = set(self.transfer.pending), self.counters["late_answers"]
        self.fetcher.flights.on_located(source, message)
        if self.counters["late_answers"] > late:
            return
        begun = [read for ticket, read in self.transfer.pending.items() if ticket not in before]
        offset = self.mailbox.known[source].transfer.pool_offset
        pieces = [piece for read in begun for piece in read.pieces]
        self.mailbox.hear(message, {(p.remote_offset - offset) // STRIDE for p in pieces})

    def problems(self) -> list[str]:
        """Everything that is not as it must be at any time."""
        found = self.store.check_integrity() + self.fetcher.check_integrity()
        held = self.pool.blocks()
        for block in held:
            bad = self.spoiled.get(block.key) is block
            if bytes(self.pool.data(block.slot)) != bytes_of(block.key) and not bad:
                found.append(f"L2 holds other bytes than those of {block.key.hex()}")
        for cached in self.l1.blocks():
            if bytes(self.memory.block(cached.slot)) != bytes_of(cached.key):
                found.append(f"L1 holds other bytes than those of {cached.key.hex()}")
        flying = sum(len(keys) for keys in self.mailbox.asked.values()) * STRIDE
        if self.fetcher.flights.bytes_in_flight != flying:
            found.append(f"{flying} bytes are asked for")
        if flying >= self.limits.bytes_in_flight + self.limits.batch_blocks * STRIDE:
            found.append(f"{flying} bytes are in flight")
        return found

    def remains(self) -> dict[str, float]:
        """What must be nothing once nothing is under way."""
        return {
            "pins": self.pool.pins,
            "L2 slots half filled": self.pool.used_blocks - self.pool.held_blocks,
            "bytes in flight": self.fetcher.flights.bytes_in_flight,
            "batches": self.fetcher.flights.under_way,
            "fetches": self.fetcher.count,
            "loans": self.lender.count,
            "L1 slots in use": self.l1.used_blocks,
            "attempts not ended": len(self.mailbox.asked),
            "L2 blocks told wrongly": len(
                self.mailbox.in_l2 ^ {block.key for block in self.pool.blocks()}
            ),
        }

    def close(self) -> None:
        self.copier.close()
        self.wake.close()
        self.memory.close()
