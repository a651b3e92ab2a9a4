"""Measures the radix tree of NVIDIA Dynamo: `.venv-peers/bin/python peer_dynamo.py TASK FILE
OPTIONS`, as `python -m evctl.bench.directory` does ours.

Run by path in the peers' environment: it imports nothing of ours. The tree is fed as its router
feeds it: JSON to apply_event, which a thread of its own takes in; a find_matches afterwards waits
for that. Prompts are lists of integers made beforehand. A block's two hashes are the two halves
of our key.
"""

from __future__ import annotations

import gc
import json
import os
import random
import struct
import sys
import time
from typing import Any

os.environ["DYN_LOG"] = "error"

MATCH = -1
KEY_BYTES = 16


class Side:
    """A tree, and the input that it is fed."""

    def __init__(self, made: dict[str, Any], keys: bytes) -> None:
        from dynamo.llm import RadixTree

        self.made = made
        halves = struct.unpack(f"<{len(keys) // 8}Q", keys)
        # 63 bits: the widest that JSON readers and its own ids agree on.
        self.local = [half >> 1 for half in halves[0::2]]
        self.chained = [half >> 1 for half in halves[1::2]]
        self.tree = RadixTree()
        self.events = 0

    def places(self, path: int, start: int, end: int) -> list[int]:
        """Which keys the blocks [start, end) of a path have."""
        found: list[int] = []
        for first, count in self.made["paths"][path]:
            found.extend(range(first + max(start, 0), first + min(end, count)))
            start, end = start - count, end - count
            if end <= 0:
                break
        return found

    def question(self, path: int, end: int) -> list[int]:
        return [self.local[at] for at in self.places(path, 0, end)]

    def event(self, path: int, start: int, end: int) -> bytes:
        """The JSON of blocks that were stored."""
        parent = self.chained[self.places(path, start - 1, start)[0]] if start else None
        blocks = [
            {"block_hash": self.chained[at], "tokens_hash": self.local[at]}
            for at in self.places(path, start, end)
        ]
        self.events += 1
        data = {"stored": {"parent_hash": parent, "blocks": blocks}}
        return json.dumps({"event_id": self.events, "data": data}).encode()

    def data(self, per_event: int) -> tuple[list[tuple[int, bytes]], int]:
        """(worker, event) for everything that is stored, and how many blocks that is."""
        found: list[tuple[int, bytes]] = []
        total = 0
        for node, path, start, end in self.made["operations"]:
            if node == MATCH:
                continue
            total += end - start
            for low in range(start, end, per_event):
                found.append((node, self.event(path, low, min(low + per_event, end))))
        return found, total

    def build(self) -> list[list[int]]:
        """Store everything; returns the questions."""
        asked = []
        for node, path, start, end in self.made["operations"]:
            if node == MATCH:
                asked.append(self.question(path, end))
            else:
                self.tree.apply_event(node, self.event(path, start, end))
        self.wait()
        return asked

    def wait(self) -> None:
        """Until all events are taken in."""
        self.tree.find_matches([1])


def spread(times_ns: list[int], label: str = "") -> dict[str, float]:
    ordered = sorted(times_ns)
    most = len(ordered) - 1
    return {
        f"{label}p50": ordered[most // 2] / 1000,
        f"{label}p99": ordered[min(most, round(most * 0.99))] / 1000,
    }


def timed(action: Any, *arguments: Any) -> int:
    started = time.perf_counter_ns()
    action(*arguments)
    return time.perf_counter_ns() - started


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def match(side: Side, options: dict[str, Any]) -> dict[str, float]:
    """p50: with every worker's score as a dictionary; bare_p50: left in Rust."""
    asked = side.build()
    find = side.tree.find_matches
    gc.collect()
    known: list[int] = []
    bare: list[int] = []
    unknown: list[int] = []
    strangers = [[random.getrandbits(63) for _ in prompt] for prompt in asked]
    for _ in range(options["rounds"]):
        for prompt, stranger in zip(asked, strangers, strict=True):
            known.append(timed(lambda p: find(p).scores, prompt))
            bare.append(timed(find, prompt))
            unknown.append(timed(lambda p: find(p).scores, stranger))
    scores = find(asked[0]).scores
    return {
        **spread(known),
        **spread(bare, "bare_"),
        **spread(unknown, "miss_"),
        "nodes": len(scores),
        "most_covered": max(scores.values()),
    }


def recorded(side: Side, options: dict[str, Any]) -> dict[str, float]:
    find = side.tree.find_matches
    first: list[int] = []
    median: list[int] = []
    gc.collect()
    for node, path, start, end in side.made["operations"]:
        if node != MATCH:
            side.tree.apply_event(node, side.event(path, start, end))
            continue
        prompt = side.question(path, end)
        side.wait()
        times = [timed(lambda p: find(p).scores, prompt) for _ in range(options["calls"])]
        first.append(times[0])
        median.append(sorted(times)[len(times) // 2])
    return {**spread(median), **spread(first, "first_"), "prompts": len(first)}


def ingest(side: Side, options: dict[str, Any]) -> dict[str, float]:
    data, blocks = side.data(options["per_event"])
    apply = side.tree.apply_event
    gc.collect()
    started = time.perf_counter()
    for worker, event in data:
        apply(worker, event)
    side.wait()
    taken_s = time.perf_counter() - started
    return {"blocks_per_s": blocks / taken_s, "events_per_s": len(data) / taken_s}


def memory(side: Side, options: dict[str, Any]) -> dict[str, float]:
    del options
    data, _ = side.data(1 << 30)
    side.wait()
    gc.collect()
    before = resident_bytes()
    for worker, event in data:
        side.tree.apply_event(worker, event)
    side.wait()
    used = resident_bytes() - before
    return {"bytes_per_block": used / side.made["blocks"]}


def leave(side: Side, options: dict[str, Any]) -> dict[str, float]:
    del options
    side.build()
    gc.collect()

    def depart() -> None:
        side.tree.remove_worker(0)
        side.wait()

    return {"ms": timed(depart) / 1e6}


def turns(side: Side, options: dict[str, Any]) -> dict[str, float]:
    """It knows no branches: a prompt is looked up whole."""
    asked = side.build()
    find = side.tree.find_matches
    gc.collect()
    times = [timed(lambda p: find(p).scores, p) for _ in range(options["turns"]) for p in asked]
    return spread(times, "match_")


def hashing(side: Side, options: dict[str, Any]) -> dict[str, float]:
    del side
    from dynamo._core import compute_block_hash_for_seq

    blocks, block_tokens = options["blocks"], options["block_tokens"]
    dice = random.Random(1)
    tokens = [dice.randrange(150_000) for _ in range(blocks * block_tokens)]
    times = [
        timed(compute_block_hash_for_seq, tokens, block_tokens) for _ in range(options["rounds"])
    ]
    figures = spread(times)
    return figures | {"us_per_block": figures["p50"] / blocks}


TASKS = {
    "match": match,
    "recorded": recorded,
    "ingest": ingest,
    "memory": memory,
    "leave": leave,
    "turns": turns,
    "hashing": hashing,
}


def main() -> None:
    task, file, options = sys.argv[1:]
    with open(file, "rb") as data:  # noqa: PTH123
        head, _, keys = data.read().partition(b"\n")
    figures = TASKS[task](Side(json.loads(head), keys), json.loads(options))
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
