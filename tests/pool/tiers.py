"""One node's tiers under requests, the control plane's words, and a peer that borrows."""

from __future__ import annotations

import random
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from evctl.core.kv import KvLayout
from evctl.core.sampling import SamplingParams
from evctl.policy.eviction import RefClass, make_order
from evctl.wire.messages import KvFetched, LocateKv, StartRequest
from evengine.blockstore import BlockStore
from evengine.fetch.fetcher import Fetcher
from evengine.fetch.lender import LONGEST_S, Lender
from evengine.fetch.limits import FetchLimits
from evengine.outlet import Counters
from evengine.pool.copier import Copier
from evengine.pool.headers import slot_stride
from evengine.pool.l1 import L1Cache
from evengine.pool.l2 import HostPool
from evengine.pool.memory import KvMemory
from evengine.pool.pages import Pages
from evengine.request import Sequence
from evengine.wake import Wake
from tests.pool.pauses import Pauses
from tests.pool.surroundings import PEER, ROOT, Branch, Directory, FakeClock

LAYOUT = KvLayout(n_layers=4, planes=2, row_elements=64, dtype="float32", block_tokens=4)
TOGETHER = 5
"""Requests that hold slots at the same time."""
MOST_BLOCKS = 24


class Tiers:
    def __init__(
        self, seed: int, *, l1_blocks: int = 160, l2_blocks: int = 512, eviction: str = "paper"
    ) -> None:
        self.rng = random.Random(seed)
        self.clock = FakeClock()
        self.directory = Directory()
        self.counters: Counters = Counter()
        self.pauses = Pauses()
        size = LAYOUT.block_bytes
        self.memory = KvMemory(
            "churn",
            f"s{seed}.{id(self)}",
            l1_blocks,
            size,
            pool_bytes=l2_blocks * slot_stride(size),
        )
        self.wake = Wake()
        pages = Pages(LAYOUT, self.memory)
        order = make_order(eviction, l2_blocks)
        self.pool = HostPool("boot", self.memory.pool(), l2_blocks, size, order=order)
        self.copier = Copier(pages, self.pool, self.wake)
        parts: dict[str, Any] = {
            "pool": self.pool,
            "outlet": self.directory,
            "clock": self.clock,
            "counters": self.counters,
        }
        self.store = BlockStore(pages=pages, l1=L1Cache(l1_blocks), copier=self.copier, **parts)
        self.lender = Lender("boot", **parts)
        self.fetcher = Fetcher(
            boot_id="boot",
            store=self.store,
            copier=self.copier,
            transfer=None,  # type: ignore[arg-type]  # nobody names a peer to fetch from
            limits=FetchLimits(),
            **parts,
        )
        self.branches = [Branch(number) for number in range(l2_blocks // 2)]
        self.running: deque[tuple[Sequence, Branch]] = deque()
        self.loans: deque[int] = deque()
        self.made = 0
        self.epoch = 0
        self.operations = 0
        self.problems: list[str] = []

    # ------------------------------------------------------------ what happens

    def step(self) -> None:
        self.clock.time_s += 0.02
        self.request(self.some_branch())
        if self.rng.random() < 0.5:
            self.reclassify()
        if self.rng.random() < 0.7:
            self.borrow()
        self.timed("lender.tick", self.lender.tick, self.clock.now_s())
        self.timed("announce_evictions", self.store.announce_evictions)

    def request(self, branch: Branch) -> None:
        """Restore or compute a branch's context; the oldest of the running requests leaves."""
        branch.steps += [self.fresh() for _ in range(self.rng.randrange(4))]
        if len(branch.steps) > MOST_BLOCKS or self.rng.random() < 0.1:
            branch.steps = branch.steps[: self.rng.randrange(3, 8)]
        seq = self.sequence(branch)
        self.timed("fetcher.arrived", self.fetcher.arrived, seq)
        while not self.timed("take_prefix", self.store.take_prefix, seq, 0):
            self.leave()
        self.timed("fetcher.admitted", self.fetcher.admitted, seq)
        while seq.intake is not None:
            self.copier.wait(1.0)
            self.take_copies()
        self.compare(seq)
        self.compute(seq)
        self.running.append((seq, branch))
        if len(self.running) >= TOGETHER:
            self.leave()

    def take_copies(self) -> None:
        self.timed("copier.poll", self.copier.poll)
        self.timed("fetcher.tick", self.fetcher.tick, self.clock.now_s())

    def compare(self, seq: Sequence) -> None:
        """What was found, in L1 or through L2, is what was computed once."""
        for key, slot in zip(seq.keys[: seq.published], seq.slots, strict=False):
            if bytes(self.memory.block(slot)) != self.bytes_of(key):
                self.problems.append(f"block {key.hex()} came back as another")

    def compute(self, seq: Sequence) -> None:
        """Blocks that were not found, a few in each iteration."""
        while seq.published < len(seq.keys):
            end = min(seq.published + 4, len(seq.keys))
            for block in range(seq.published, end):
                self.memory.block(seq.slots[block])[:] = self.bytes_of(seq.keys[block])
            seq.computed = end * LAYOUT.block_tokens
            self.timed("store.publish", self.store.publish, seq)
            self.take_copies()
        self.operations += len(seq.keys)

    def leave(self) -> None:
        if not self.running:
            self.copier.wait(1.0)  # slots that are still copied from come back
            self.take_copies()
            return
        seq, _ = self.running.popleft()
        self.timed("store.release", self.store.release, seq)
        self.timed("store.settle", self.store.settle, seq)

    def reclassify(self) -> None:
        self.epoch += 1
        keys = self.some_branch().keys()
        ref_class = self.rng.choice(list(RefClass))
        self.timed("reclassify", self.store.reclassify, self.epoch, ref_class, b"".join(keys))
        self.operations += len(keys)

    def borrow(self) -> None:
        """A peer locates blocks; one in ten never says that it is done."""
        self.made += 1
        keys = self.some_branch().keys()
        message = LocateKv(PEER.boot_id, self.made, b"".join(keys), self.rng.choice([0.1, 1.0]))
        answer = self.timed("lender.on_locate", self.lender.on_locate, PEER.node, message)
        for key, slot, generation in zip(keys, answer.slots, answer.generations, strict=True):
            if slot >= 0 and (
                bytes(self.pool.data(slot)) != self.bytes_of(key)
                or self.pool.generation(slot) != generation
            ):
                self.problems.append(f"block {key.hex()} was lent as another")
        self.operations += sum(slot >= 0 for slot in answer.slots)
        if self.rng.random() < 0.9:
            self.loans.append(self.made)
        if len(self.loans) > 3:
            done = KvFetched(PEER.boot_id, self.loans.popleft())
            self.timed("lender.on_fetched", self.lender.on_fetched, PEER.node, done)

    # ------------------------------------------------------------ small things

    def some_branch(self) -> Branch:
        """Half of the time one of a few that fit into L2 together."""
        among = len(self.branches) // (10 if self.rng.random() < 0.5 else 1)
        return self.branches[self.rng.randrange(among)]

    @staticmethod
    def bytes_of(key: bytes) -> bytes:
        return key * (LAYOUT.block_bytes // len(key))

    def fresh(self) -> int:
        self.made += 1
        return self.made << 8

    def sequence(self, branch: Branch) -> Sequence:
        keys = branch.keys()
        self.made += 1
        start = StartRequest(
            request_id=str(self.made),
            tenant="t",
            branch=branch.name,
            generation=0,
            epoch=0,
            prompt=(0,) * (len(keys) * LAYOUT.block_tokens + 1),
            root_key=ROOT,
            block_keys=b"".join(keys),
            sampling=SamplingParams(max_tokens=1),
            prefill_node="churn",
            decode_node="churn",
        )
        return Sequence(start, b"", LAYOUT.block_tokens, self.clock.now_s())

    def timed(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        result = call(*arguments)
        cpu_s = time.thread_time() - began_cpu_s
        self.pauses.add(name, time.perf_counter() - began_s, cpu_s)
        return result

    def audit(self) -> list[str]:
        """Everything recounted, every byte of both tiers checked, and what was told of L2."""
        found = self.store.check_integrity() + self.pool.check_integrity(verify_bytes=True)
        found += self.fetcher.check_integrity()
        self.store.announce_evictions()
        held = {block.key for block in self.pool.blocks()}
        if self.directory.in_l2 != held:
            found.append(f"{len(self.directory.in_l2 ^ held)} blocks of L2 were told wrongly")
        return found

    def quiesce(self) -> list[str]:
        """Let everything end; whatever is still pinned or half filled then is lost for good."""
        while self.running:
            self.leave()
        while self.copier.blocks_under_way:
            self.copier.wait(1.0)
            self.take_copies()
        self.clock.time_s += LONGEST_S + 1
        self.lender.tick(self.clock.now_s())
        left = {
            "pins": self.pool.pins,
            "loans": self.lender.count,
            "slots half filled": self.pool.used_blocks - self.pool.held_blocks,
            "L1 slots in use": self.store.l1.used_blocks,
        }
        return self.audit() + [
            f"{number} {what} are left" for what, number in left.items() if number
        ]

    def close(self) -> None:
        self.copier.close()
        self.wake.close()
        self.memory.close()
