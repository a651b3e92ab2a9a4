"""What operators' questions cost: python -m tests.control.kv_timing [BRANCHES]. Prints, asserts
nothing."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable

from evctl.control.audit import Audit
from evctl.control.branch_list import Wanted
from evctl.control.kv_board import KvBoard
from evctl.core.events import NodeJoined
from evctl.core.split import Phase
from evctl.policy.directory import Signal
from evctl.policy.state import ClusterState, PolicyConfig, step

ROOT = bytes(16)
NODES = tuple(f"n{at}" for at in range(9))
COMMON = 32
"""Blocks that all branches share, as those of a system prompt."""


def made(branches: int) -> ClusterState:
    """Families of five: a root branch, forks and sub-agents that leave it somewhere."""
    chance = random.Random(1)
    state = ClusterState(PolicyConfig(NODES, "6P3D"))
    for name in NODES:
        step(state, NodeJoined(name, "b", 10**6, 16, 8, 10**6), 1.0)
    directory = state.directory
    common = chance.randbytes(16 * COMMON)
    root = b""
    for at in range(branches):
        first = at // 5 * 5
        keys = root = common + chance.randbytes(16 * 24) if at == first else root
        if at != first:
            kept = COMMON + chance.randint(4, 24)
            keys = root[: 16 * kept] + chance.randbytes(16 * chance.randint(4, 24))
        op = "continue" if at == first else "fork" if at % 2 else "spawn"
        signal = Signal(f"b{at}", parent="" if at == first else f"b{first}", op=op)
        now_s = 1.0 + at * 1e-4
        directory.arrive("r", "default", ROOT, keys, now_s, signal)
        for phase, tier, name in (
            (Phase.PREFILL, 2, NODES[at % 6]),
            (Phase.DECODE, 1, NODES[6 + at % 3]),
        ):
            directory.place("r", phase, name)
            directory.stored(name, directory.nodes[name].boot_id, tier, ROOT, keys, "r")
            directory.moved("r", phase)
        directory.closed("r", now_s)
        directory.deltas()
    return state


async def timed(what: str, ask: Callable[[], Awaitable[object]], times: int = 5) -> None:
    """Prints how long it took, and how long nothing else was done meanwhile."""
    held_s, done = 0.0, False

    async def beat() -> None:
        nonlocal held_s
        while not done:
            before_s = time.perf_counter()
            await asyncio.sleep(0.001)
            held_s = max(held_s, time.perf_counter() - before_s - 0.001)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.01)
    taken = []
    for _ in range(times):
        before_s = time.perf_counter()
        await ask()
        taken.append(time.perf_counter() - before_s)
    done = True
    await beating
    median_ms = sorted(taken)[times // 2] * 1e3
    print(f"{what:34} median {median_ms:9.2f} ms   loop held at most {held_s * 1e3:6.2f} ms")


async def main(branches: int) -> None:
    state = made(branches)
    board = KvBoard(state, lambda: 1000.0)
    tree = state.directory.tree
    print(f"{branches} branches, {tree.runs} runs, {tree.blocks} blocks")

    async def status() -> object:
        return board.status()

    await timed("status (the first begins a count)", status, 1)
    await timed("status", status, 50)
    before_s = time.perf_counter()
    while not board.references.buckets():
        await asyncio.sleep(0.1)
    spread_s = time.perf_counter() - before_s
    print(f"counting references: {board.references.cost_s * 1e3:.0f} ms over {spread_s:.1f} s")
    for limit in (100, 1000):
        wanted = Wanted("default", sort="blocks", limit=limit)
        await timed(f"{limit} branches by blocks", lambda: board.branches.page(wanted))  # noqa: B023
    branch = state.directory.ledger.branches["default", f"b{branches // 2}"]
    await timed("a branch", lambda: board.branches.detail("default", branch.id))
    await timed("a tree", lambda: board.branches.tree("default", branch.id))
    inside, shared = (branch.run.key(branch.end - 1).hex(), branch.run)
    while shared.parent is not None and shared.start:
        shared = shared.parent
    await timed("a block", lambda: board.blocks.find(inside))
    await timed("a block that all branches need", lambda: board.blocks.find(shared.key(1).hex()))
    await timed("the audit", Audit(state).run, 1)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
