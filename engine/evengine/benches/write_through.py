"""What copying finished blocks into L2 costs decode.

`python -m evengine.benches.write_through MODEL_DIRECTORY --pairs N`. Two loops of one process over
the same weights decode the same batch, one of them with an L2 that is too small for all of it, so
that blocks are evicted as they are in a pool that has been in use for long. They take turns, so
many iterations each, first one and then the other in front: whatever else the machine does hits
both. A turn ends when its last copy has. Prints a line of JSON a pair: wall and CPU seconds of the
process for the tokens of one turn.
"""

from __future__ import annotations

import argparse
import json
import random
import secrets
import select
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import torch

from evctl.core.blocks import KvNamespace, block_keys, root_key
from evctl.core.events import EngineFact
from evctl.core.kv import KvLayout
from evctl.core.sampling import SamplingParams
from evctl.wire.messages import AnyMessage, PeerInfo, StartRequest, Tokens
from evengine.blockstore import BlockStore
from evengine.clock import SystemClock
from evengine.limits import LoopLimits
from evengine.loop import Loop
from evengine.main import SWITCH_S
from evengine.models.store import load_model_config
from evengine.models.weights import load_weights
from evengine.pool.copier import Copier
from evengine.pool.headers import slot_stride
from evengine.pool.l1 import L1Cache
from evengine.pool.l2 import HostPool
from evengine.pool.memory import KvMemory, sweep_stale
from evengine.pool.pages import Pages
from evengine.ports import Batch, Executor, Sampled
from evengine.runner.executor import TorchExecutor, kv_layout
from evengine.transfer import open_transfer
from evengine.wake import Wake

BLOCK_TOKENS = 16
PROMPT_TOKENS = 200
WAIT_S = 0.005
SETTLE_ITERATIONS = 2 * BLOCK_TOKENS


class Gate:
    """An executor that runs as many iterations as it was allowed to, and then waits."""

    def __init__(self, inner: Executor) -> None:
        self.layout: KvLayout = inner.layout
        self.context_tokens = inner.context_tokens
        self.vocab_size = inner.vocab_size
        self._inner = inner
        self._allowed = threading.Semaphore(0)

    def allow(self, iterations: int) -> None:
        self._allowed.release(iterations)

    def run(self, batch: Batch) -> Sampled:
        self._allowed.acquire()
        return self._inner.run(batch)


class Deaf:
    """An outlet that is connected to nobody."""

    def tokens(self, message: Tokens) -> None: ...

    def fact(self, fact: EngineFact) -> None: ...

    def to_peer(self, node: str, message: AnyMessage) -> bool:
        del node, message
        return False

    def peer(self, node: str) -> PeerInfo | None:
        del node
        return None

    def announced(self, node: str) -> PeerInfo | None:
        del node
        return None

    def recheck_peer(self, node: str) -> None: ...


class Side:
    """One engine without its sockets: a loop, its memory, and L2 of `l2_blocks`."""

    def __init__(
        self, model: Path, weights: dict[str, torch.Tensor], l1_blocks: int, l2_blocks: int
    ) -> None:
        config = load_model_config(model)
        self._weights_hash = config.weights_hash
        layout = kv_layout(config, BLOCK_TOKENS)
        node, boot_id = f"bench{l2_blocks}", secrets.token_hex(8)
        pool_bytes = l2_blocks * slot_stride(layout.block_bytes)
        self._memory = memory = KvMemory(
            node, boot_id, l1_blocks, layout.block_bytes, pool_bytes=pool_bytes
        )
        pages = Pages(layout, memory)
        self._wake = Wake()
        self.pool: HostPool | None = None
        self._copier: Copier | None = None
        if l2_blocks:
            self.pool = HostPool(boot_id, memory.pool(), l2_blocks, layout.block_bytes)
            self._copier = Copier(pages, self.pool, self._wake)
        self._transfer = transfer = open_transfer("shm", memory, node, boot_id)
        clock, counters = SystemClock(), Counter[str]()
        store = BlockStore(
            pages, L1Cache(l1_blocks), self.pool, self._copier, Deaf(), clock, counters
        )
        self._gate = Gate(TorchExecutor(config, weights, memory.region(0), BLOCK_TOKENS))
        self.counters = counters
        self._loop = Loop(
            me=PeerInfo(node, boot_id, "", b"", transfer.address),
            executor=self._gate,
            store=store,
            copier=self._copier,
            transfer=transfer,
            clock=clock,
            wake=self._wake,
            outlet=Deaf(),
            counters=counters,
            eos_ids=frozenset(),
            decode_text=lambda _: "",
            limits=LoopLimits(),
        )
        self._loop.kv_secret = secrets.token_bytes(32)
        self._node = node

    def begin(self, rows: int, output_tokens: int) -> None:
        """Submit `rows` requests and run them until all of them decode."""
        rng = random.Random(1)
        secret = self._loop.kv_secret
        root = root_key(secret, KvNamespace("t", self._weights_hash))
        for number in range(rows):
            prompt = tuple(rng.randrange(256) for _ in range(PROMPT_TOKENS))
            self._loop.submit(
                StartRequest(
                    request_id=f"r{number}",
                    tenant="t",
                    branch="",
                    generation=0,
                    epoch=0,
                    prompt=prompt,
                    root_key=root,
                    block_keys=b"".join(block_keys(secret, root, prompt, BLOCK_TOKENS)),
                    sampling=SamplingParams(max_tokens=output_tokens, ignore_eos=True),
                    prefill_node=self._node,
                    decode_node=self._node,
                )
            )
        while self._loop.load().running_decode < rows:
            self.run(1)

    def run(self, iterations: int) -> tuple[float, float]:
        """Wall and CPU seconds of so many iterations, copies into L2 included. The next one, which
        the loop's last turn starts, waits at the gate."""
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        end = self.counters["iterations"] + iterations
        self._gate.allow(iterations)
        while self.counters["iterations"] < end or self._copying:
            select.select([self._wake.descriptor], [], [], WAIT_S)
            self._wake.clear()
            self._loop.turn()
        return time.perf_counter() - wall_s, time.process_time() - cpu_s

    def problems(self) -> list[str]:
        """What is wrong in its caches."""
        return self._loop.check_integrity()

    def close(self) -> None:
        """Its iteration that waits at the gate is left there, on a thread that is a daemon."""
        if self._copier is not None:
            self._copier.close()
        self._transfer.close()
        self._memory.path.unlink()

    @property
    def _copying(self) -> bool:
        return self._copier is not None and bool(self._copier.blocks_under_way)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m evengine.benches.write_through")
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=2 * BLOCK_TOKENS)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    sweep_stale()
    output_tokens = SETTLE_ITERATIONS + options.pairs * options.iterations + 2 * options.rows
    blocks = options.rows * (-(-(PROMPT_TOKENS + output_tokens) // BLOCK_TOKENS) + 1)
    weights = load_weights(options.model)
    off = Side(options.model, weights, blocks, 0)
    on = Side(options.model, weights, blocks, max(options.rows, blocks // 4))
    for side in (off, on):
        side.begin(options.rows, output_tokens)
        side.run(SETTLE_ITERATIONS)
    for pair in range(options.pairs):
        order = (off, on) if pair % 2 else (on, off)
        taken = {side: side.run(options.iterations) for side in order}
        line = {
            "tokens": options.rows * options.iterations,
            "on_s": taken[on][0],
            "off_s": taken[off][0],
            "on_cpu_s": taken[on][1],
            "off_cpu_s": taken[off][1],
        }
        print(json.dumps(line), flush=True)
    kept, problems = on.counters["l2_blocks_written"], on.problems()
    print(json.dumps({"kept_blocks": kept, "problems": problems}), flush=True)
    for side in (off, on):
        side.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
