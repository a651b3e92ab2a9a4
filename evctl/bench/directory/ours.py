"""The tasks that measure our directory, each on one input in a process of its own.

Times are in µs unless a name says otherwise; garbage collection stays as a live process has it.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evctl.bench.directory import frames, inputs
from evctl.bench.directory.inputs import MATCH, Input, Operation
from evctl.core.events import KvStored
from evctl.core.split import Phase
from evctl.policy.directory import Directory, Signal

Figures = dict[str, float]
ROOT = b"root of the keys"
TIER = 2
_KEY = inputs.KEY_BYTES


class Side:
    """A directory, and the input that it is fed."""

    def __init__(self, made: Input, keys: bytes) -> None:
        self.made = made
        self.keys = keys
        self.directory = Directory()
        self.directory.add_root(ROOT)
        for node in range(made.nodes):
            self.directory.node_joined(name(node), "1")

    def slice(self, path: int, start: int, end: int) -> bytes:
        """Keys of blocks [start, end) of a path; bytes of its own."""
        parts = []
        for first, count in self.made.paths[path]:
            low, high = max(start, 0), min(end, count)
            if low < high:
                parts.append(self.keys[(first + low) * _KEY : (first + high) * _KEY])
            start, end = start - count, end - count
            if end <= 0:
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def parent(self, path: int, start: int) -> bytes:
        """Parent of block `start` of a path."""
        return self.slice(path, start - 1, start) if start else ROOT

    def store(self, operation: Operation, request_id: str = "") -> None:
        """Copies as one node reports them."""
        node, path, start, end = operation
        keys, parent = self.slice(path, start, end), self.parent(path, start)
        done = self.directory.stored(name(node), "1", TIER, parent, keys, request_id)
        if not done:
            raise RuntimeError(f"{operation} was not taken in")

    def build(self) -> list[bytes]:
        """Store everything; returns the questions."""
        asked = []
        for operation in self.made.operations:
            if operation[0] == MATCH:
                asked.append(self.slice(operation[1], 0, operation[3]))
            else:
                self.store(operation)
        self.directory.deltas()
        return asked


def name(node: int) -> str:
    return f"node-{node:03}"


def spread(times_ns: list[int], label: str = "") -> Figures:
    """p50 and p99 in µs."""
    ordered = sorted(times_ns)
    most = len(ordered) - 1
    return {
        f"{label}p50": ordered[most // 2] / 1000,
        f"{label}p99": ordered[min(most, round(most * 0.99))] / 1000,
    }


def timed(action: Callable[..., object], *arguments: object) -> int:
    """Nanoseconds of one call."""
    started = time.perf_counter_ns()
    action(*arguments)
    return time.perf_counter_ns() - started


def cpu_timed(action: Callable[..., object], *arguments: object) -> int:
    """The same in CPU time of this thread: without what other work on the machine adds."""
    started = time.thread_time_ns()
    action(*arguments)
    return time.thread_time_ns() - started


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# ---------------------------------------------------------------- tasks


def match(made: Input, keys: bytes, options: dict[str, Any]) -> Figures:
    """Cold matches of the questions on the whole tree, coverage included; and of unknown ones."""
    side = Side(made, keys)
    asked = side.build()
    ask = side.directory.match
    gc.collect()
    known: list[int] = []
    unknown: list[int] = []
    strangers = [os.urandom(len(prompt)) for prompt in asked]
    for _ in range(options["rounds"]):
        for prompt, stranger in zip(asked, strangers, strict=True):
            known.append(timed(ask, prompt))
            unknown.append(timed(ask, stranger))
    found = ask(asked[0])
    cpu = [cpu_timed(ask, prompt) for _ in range(options["rounds"]) for prompt in asked]
    return {
        **spread(known),
        **spread(cpu, "cpu_"),
        **spread(unknown, "miss_"),
        "runs": _runs(side.directory, asked[0]),
        "nodes": len(found.coverage),
        "most_covered": max(found.coverage.values()),
    }


def recorded(made: Input, keys: bytes, options: dict[str, Any]) -> Figures:
    """Each prompt asked for, then stored, in the order of the input."""
    side = Side(made, keys)
    ask = side.directory.match
    first: list[int] = []
    median: list[int] = []
    runs: list[int] = []
    gc.collect()
    for operation in made.operations:
        if operation[0] != MATCH:
            side.store(operation)
            continue
        prompt = side.slice(operation[1], 0, operation[3])
        times = [timed(ask, prompt) for _ in range(options["calls"])]
        first.append(times[0])
        median.append(sorted(times)[len(times) // 2])
        runs.append(_runs(side.directory, prompt))
    runs.sort()
    return {
        **spread(median),
        **spread(first, "first_"),
        "runs": sum(runs) / len(runs),
        "runs_p99": runs[round((len(runs) - 1) * 0.99)],
        "prompts": len(first),
    }


def _runs(directory: Directory, prompt: bytes) -> int:
    run, _ = directory.tree.descend(prompt, directory.tree.root, 0)
    return len(directory.tree.path(run))


def ingest(made: Input, keys: bytes, options: dict[str, Any]) -> Figures:
    """From the bytes of messages to the directory. per_event: blocks a fact; a fact a message,
    then as many as `batch`."""
    figures = {"blocks_per_s": _ingest(Side(made, keys), options["per_event"], 1)}
    if options.get("batch"):
        batched = _ingest(Side(made, keys), options["per_event"], options["batch"])
        figures["batched_blocks_per_s"] = batched
    return figures


def _ingest(side: Side, per_event: int, batch: int) -> float:
    """Blocks a second."""
    data, blocks = _messages(side, per_event, batch)
    take = side.directory.stored
    gc.collect()
    started = time.perf_counter()
    for message in data:
        facts = frames.stored_facts(message)
        node, boot_id = facts.node, facts.boot_id
        for fact in facts.events:
            if isinstance(fact, KvStored):
                take(node, boot_id, fact.tier, fact.parent, fact.keys, fact.request_id)
    taken_s = time.perf_counter() - started
    if side.directory.tree.blocks != side.made.blocks:
        raise RuntimeError(f"{side.directory.tree.blocks} of {side.made.blocks} blocks are there")
    return blocks / taken_s


def _messages(side: Side, per_event: int, batch: int) -> tuple[list[bytes], int]:
    data: list[bytes] = []
    facts: list[KvStored] = []
    blocks = 0
    for node, path, start, end in side.made.operations:
        if node == MATCH:
            continue
        blocks += end - start
        for low in range(start, end, per_event):
            keys = side.slice(path, low, min(low + per_event, end))
            facts.append(KvStored("", TIER, side.parent(path, low), bytes(keys)))
            if len(facts) == batch:
                data.append(frames.frame(name(node), "1", facts))
                facts = []
        if facts:
            data.append(frames.frame(name(node), "1", facts))
            facts = []
    return data, blocks


def memory(made: Input, keys: bytes, options: dict[str, Any]) -> Figures:
    """Resident bytes of index and ledger: every branch lives, and names a node for each phase."""
    del options
    side = Side(made, keys)
    directory = side.directory
    stores: dict[int, list[Operation]] = {}
    for operation in made.operations:
        stores.setdefault(operation[1], []).append(operation)
    gc.collect()
    before = resident_bytes()
    for path in made.branches:
        at = str(path)
        prompt = side.slice(path, 0, made.length(path))
        directory.arrive(at, "tenant", ROOT, prompt, 0.0, Signal(f"branch-{path}"))
        placed = stores.get(path, [])[:2]
        for phase, operation in zip(Phase, placed, strict=False):
            directory.place(at, phase, name(operation[0]))
            side.store(operation, at)
            directory.moved(at, phase)
        directory.closed(at, 0.0)
        directory.deltas()
    del prompt
    gc.collect()
    used = resident_bytes() - before
    tree = directory.tree
    return {
        "bytes_per_block": used / tree.blocks,
        "bytes_per_run": (used - _KEY * tree.blocks) / tree.runs,
        "mean_run": tree.blocks / tree.runs,
        "runs": tree.runs,
        "branches": len(directory.ledger.branches),
    }


def leave(made: Input, keys: bytes, options: dict[str, Any]) -> Figures:
    """A node leaves, without and with a live branch on each of its paths."""
    side = Side(made, keys)
    directory = side.directory
    side.build()
    if options.get("branches"):
        for path in made.branches:
            at = str(path)
            prompt = side.slice(path, 0, made.length(path))
            directory.arrive(at, "tenant", ROOT, prompt, 0.0, Signal(f"branch-{path}"))
            directory.place(at, Phase.PREFILL, name(0))
            directory.moved(at, Phase.PREFILL)
            directory.closed(at, 0.0)
        directory.deltas()
    life = directory.nodes[name(0)]
    blocks, runs = life.blocks[TIER], len(life.runs)
    gc.collect()
    taken_ns = timed(directory.node_lost, name(0), "1")
    return {"ms": taken_ns / 1e6, "blocks": blocks, "runs": runs}
