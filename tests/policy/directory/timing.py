"""How fast the directory is: python -m tests.policy.directory.timing. Prints, asserts nothing."""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from evctl.core.split import Phase
from evctl.policy.directory import Directory, Signal

ROOT = bytes(16)
_random = random.Random(1)


def fresh(blocks: int) -> bytes:
    return _random.randbytes(16 * blocks)


def measure(call: Callable[[], object], times: int = 2000) -> tuple[float, float]:
    """p50 and p99 in µs."""
    taken = []
    for _ in range(times):
        start = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - start)
    taken.sort()
    return taken[times // 2] / 1e3, taken[times * 99 // 100] / 1e3


def show(what: str, p50: float, p99: float, goal: str) -> None:
    print(f"{what:58} p50 {p50:8.1f}  p99 {p99:8.1f} µs   goal {goal}")


def with_nodes(count: int) -> Directory:
    directory = Directory()
    directory.add_root(ROOT)
    for at in range(count):
        directory.node_joined(f"n{at}", "b")
    return directory


def cold(nodes: int, goal: str) -> None:
    """Every node holds a common prefix of 32 blocks and sessions of 2,048; the query is one."""
    directory = with_nodes(nodes)
    common = fresh(32)
    sessions = []
    for at in range(max(nodes, 192)):
        own = fresh(2016)
        node = f"n{at % nodes}"
        directory.stored(node, "b", 2, ROOT, common)
        directory.stored(node, "b", 2, common[-16:], own)
        sessions.append(common + own)
    query = sessions[len(sessions) // 2][: 2000 * 16]
    assert directory.match(query).stored == 2000
    show(
        f"cold match of 2,000 blocks, {nodes} nodes",
        *measure(lambda: directory.match(query)),
        goal,
    )


def fragmented(nodes: int) -> None:
    """128 runs on the path; every node holds nearly all of it."""
    directory = with_nodes(nodes)
    path = fresh(2048)
    for at in range(nodes):
        end = 2048 - _random.randrange(64)
        directory.stored(f"n{at}", "b", 2, ROOT, path[: end * 16])
    for cut in range(16, 2048, 16):
        directory.stored("n0", "b", 2, path[(cut - 1) * 16 : cut * 16], fresh(2))
    query = path[: 2000 * 16]
    show(
        f"fragmented: 128 runs, {nodes} nodes", *measure(lambda: directory.match(query), 500), "60"
    )


def forks(nodes: int) -> None:
    """One fork a node at a random depth, and nothing else on it."""
    directory = with_nodes(nodes)
    path = fresh(2048)
    for at in range(nodes):
        depth = _random.randrange(1, 2000)
        directory.stored(f"n{at}", "b", 2, ROOT, path[: depth * 16] + fresh(8))
    directory.stored("n0", "b", 2, ROOT, path)
    p50, p99 = measure(lambda: directory.match(path[: 2000 * 16]), 500)
    show(f"a fork a node at random depths, {nodes} nodes", p50, p99, "-")


def known(nodes: int, context: int) -> None:
    """A branch asks again with 20 blocks more: match, context, references, both phases."""
    directory = with_nodes(nodes)
    signals = [Signal(f"b{at}") for at in range(50)]
    prompts = [fresh(context) for _ in signals]
    for at, signal in enumerate(signals):
        directory.arrive(f"w{at}", "t", ROOT, prompts[at], 0.0, signal)
        for phase, node in ((Phase.PREFILL, "n0"), (Phase.DECODE, "n1")):
            directory.place(f"w{at}", phase, node)
            directory.stored(node, "b", 2, ROOT, prompts[at], f"w{at}")
            directory.moved(f"w{at}", phase)
        directory.closed(f"w{at}", 0.0)
    taken, whole = [], []
    for turn in range(21):
        for at, signal in enumerate(signals):
            prompts[at] += fresh(20)
            rid, prompt = f"r{turn}.{at}", prompts[at]
            start = time.perf_counter_ns()
            directory.arrive(rid, "t", ROOT, prompt, 1.0, signal)
            directory.place(rid, Phase.PREFILL, "n0")
            directory.place(rid, Phase.DECODE, "n1")
            middle = time.perf_counter_ns()
            parent, new = prompt[-21 * 16 : -20 * 16], prompt[-20 * 16 :]
            for node in ("n0", "n1"):
                directory.stored(node, "b", 2, parent, new, rid)
            directory.moved(rid, Phase.PREFILL)
            directory.moved(rid, Phase.DECODE)
            directory.closed(rid, 1.0)
            directory.deltas()
            if turn:  # the first turn makes the context's run growable
                taken.append(middle - start)
                whole.append(time.perf_counter_ns() - start)
    taken.sort()
    whole.sort()
    what = f"known branch + 20 blocks, context {context}, {nodes} nodes"
    show(what, taken[len(taken) // 2] / 1e3, taken[len(taken) * 99 // 100] / 1e3, "10, 30")
    what = "   its whole life: placed, stored twice, moved, closed"
    show(what, whole[len(whole) // 2] / 1e3, whole[len(whole) * 99 // 100] / 1e3, "-")


def ingest(per_event: int, goal: str) -> None:
    directory = with_nodes(8)
    events = []
    for session in range(40):
        path = fresh(2048)
        for at in range(0, 2048, per_event):
            parent = path[(at - 1) * 16 : at * 16] if at else ROOT
            events.append(
                (f"n{session % 8}", "b", 2, parent, path[at * 16 : (at + per_event) * 16])
            )
    gc.collect()
    start = time.perf_counter()
    for event in events:
        directory.stored(*event)
    taken = time.perf_counter() - start
    rate = 40 * 2048 / taken / 1e6
    print(f"ingest, {per_event} blocks an event: {rate:.2f} M blocks/s   goal {goal}")


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory(run: int) -> None:
    """1M blocks in runs of that many, each on two nodes, stored 64 an event."""
    gc.collect()
    before = resident()
    directory = with_nodes(16)
    for at in range(1_000_000 // run):
        path = fresh(run)
        for node in (f"n{at % 16}", f"n{(at + 1) % 16}"):
            for low in range(0, run, 64):
                parent = path[(low - 1) * 16 : low * 16] if low else ROOT
                directory.stored(node, "b", 2, parent, path[low * 16 : (low + 64) * 16])
    gc.collect()
    taken = (resident() - before) / directory.tree.blocks
    print(f"memory, runs of {run}, two copies: {taken:.1f} B a block   goal 25 at 256")
    if run == 256:
        print(f"   runs {directory.tree.runs}, index {len(directory.tree.index)}")


def leave(run: int, *, shared: bool) -> None:
    directory = with_nodes(4)
    for _ in range(400_000 // run):
        path = fresh(run)
        directory.stored("n0", "b", 2, ROOT, path)
        if shared:
            directory.stored("n1", "b", 2, ROOT, path)
    gc.collect()
    start = time.perf_counter()
    directory.node_lost("n0", "b")
    taken = (time.perf_counter() - start) * 1e3
    how = "all held elsewhere too" if shared else "held nowhere else"
    print(
        f"a node with 400k blocks in {400_000 // run} runs leaves, {how}: {taken:.2f} ms   goal 1"
    )


def main() -> None:
    gc.freeze()
    chosen = sys.argv[1:]
    parts: dict[str, list[Callable[[], None]]] = {
        "memory": [lambda: memory(16), lambda: memory(64), lambda: memory(256)],
        "cold": [lambda: cold(9, "15"), lambda: cold(96, "20"), lambda: cold(768, "30")],
        "fragmented": [lambda: fragmented(9), lambda: fragmented(96)],
        "forks": [lambda: forks(9), lambda: forks(96), lambda: forks(768)],
        "known": [partial(known, n, c) for n in (9, 768) for c in (200, 2000, 20_000)],
        "ingest": [lambda: ingest(64, "10"), lambda: ingest(1, "0.5")],
        "leave": [lambda: leave(80, shared=True), lambda: leave(80, shared=False)],
    }
    for name, part in parts.items():
        if not chosen or name in chosen:
            for measurement in part:
                measurement()


if __name__ == "__main__":
    main()
