"""What `evctl bench directory` measures: inputs, tasks, the rows they give and their goals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from evctl.bench.directory import inputs
from evctl.bench.directory.inputs import Input
from evctl.bench.directory.recorded import CONVERSATIONS, recorded

DEPTH: Final = 2048
ASKED: Final = 2000
SHARED: Final = 32


class Wanted(msgspec.Struct, frozen=True):
    """A row. figure: its name among our figures; peer: among the peer's, "" for none.

    at_most, at_least: the goal for value / peer. orientation: an absolute figure, no goal.
    """

    name: str
    figure: str
    unit: str
    peer: str = ""
    at_most: float | None = None
    at_least: float | None = None
    orientation: float | None = None


class Case(msgspec.Struct, frozen=True):
    """One task on one input, in a process of its own on each side."""

    name: str
    task: str
    make: Callable[[], Input]
    rows: tuple[Wanted, ...]
    options: dict[str, Any] = {}


class Size(msgspec.Struct, frozen=True):
    """How much is measured. `quick` is for a look, `tiny` for tests."""

    rounds: int = 50
    sequences: int = 192
    nodes: tuple[int, ...] = (9, 96, 768)
    fragments: tuple[int, ...] = (9, 96)
    conversations: int = CONVERSATIONS
    prompts: int = 8000
    branches: int = 100
    contexts: tuple[int, ...] = (200, 2000, 20_000)
    turns: int = 20
    memory_blocks: int = 1_000_000
    mean_runs: tuple[int, ...] = (8, 16, 64, 256)
    left_blocks: int = 400_000
    left_runs: tuple[int, ...] = (196, 5000)
    characters: int = 500_000


FULL = Size()
QUICK = Size(rounds=10, conversations=20, prompts=1000, turns=5, memory_blocks=200_000)
TINY = Size(
    rounds=2, sequences=4, nodes=(3,), fragments=(3,), conversations=2, prompts=8, branches=4,
    contexts=(200,), turns=2, memory_blocks=2000, mean_runs=(8,), left_blocks=2000,
    left_runs=(10,), characters=2000,
)  # fmt: skip


def cases(size: Size, trace: str | Path) -> Iterator[Case]:
    """All cases, in the order in which they are reported."""
    for nodes in size.nodes:
        yield _cold(size, nodes)
    for nodes in size.nodes[:2]:
        yield _recorded(size, trace, nodes)
    for nodes in size.fragments:
        yield _fragmented(size, nodes)
    for context in size.contexts:
        yield _turns(size, context)
    yield _ingest(size, 64, 10e6)
    yield _ingest(size, 1, 0.5e6)
    for run in size.mean_runs:
        yield _memory(size, run)
    for runs in size.left_runs:
        yield from _leave(size, runs)
    yield _hashing(size)
    yield _tokenising(size)


def _cold(size: Size, nodes: int) -> Case:
    about = f"cold match of {ASKED:,} blocks, {nodes} nodes"
    return Case(
        f"cold-{nodes}",
        "match",
        lambda: inputs.sequences(nodes, max(size.sequences, nodes), DEPTH, SHARED, asked=ASKED),
        (
            Wanted(
                f"{about}, p50", "p50", "us", "p50",
                at_most=0.2, orientation={9: 15.0, 96: 20.0, 768: 30.0}.get(nodes),
            ),
            Wanted(f"{about}, p99", "p99", "us", "p99"),
            Wanted(f"{about}, p50; peer without its scores", "p50", "us", "bare_p50"),
            Wanted(f"{about}, unknown prompt, p50", "miss_p50", "us", "miss_p50"),
            Wanted(f"{about}, nodes in the answer", "nodes", "nodes", "nodes"),
            Wanted(f"{about}, runs on the path", "runs", "runs"),
        ),
        {"rounds": size.rounds},
    )  # fmt: skip


def _recorded(size: Size, trace: str | Path, nodes: int) -> Case:
    about = f"recorded conversations, {nodes} nodes"
    return Case(
        f"recorded-{nodes}",
        "recorded",
        lambda: recorded(trace, nodes, conversations=size.conversations, prompts=size.prompts),
        (
            Wanted(f"{about}, cold match, p50 of prompts", "p50", "us", "p50"),
            Wanted(f"{about}, cold match, p99 of prompts", "p99", "us", "p99", orientation=50.0),
            Wanted(f"{about}, first call, p99", "first_p99", "us", "first_p99"),
            Wanted(f"{about}, runs a match, mean", "runs", "runs"),
            Wanted(f"{about}, runs a match, p99", "runs_p99", "runs"),
            Wanted(f"{about}, prompts", "prompts", "prompts", "prompts"),
        ),
        {"calls": 3},
    )


def _fragmented(size: Size, nodes: int) -> Case:
    about = f"fragmented path of 128 runs, all of {nodes} nodes hold nearly all of it"
    return Case(
        f"fragmented-{nodes}",
        "match",
        lambda: inputs.fragmented(nodes, ASKED, 128),
        (
            Wanted(f"{about}, p50", "p50", "us", "p50", orientation=60.0 if nodes == 96 else None),
            Wanted(f"{about}, p99", "p99", "us", "p99"),
            Wanted(f"{about}, runs on the path", "runs", "runs"),
        ),
        {"rounds": size.rounds},
    )


def _turns(size: Size, context: int) -> Case:
    about = f"known branch of {context:,} blocks + 20"
    whole = "all of a request (3 stores, 2 moves, 1 lease)"
    rows = [
        Wanted(f"{about}, match and coverage, p50", "match_p50", "us", "match_p50"),
        Wanted(f"{about}, match and coverage, p99", "match_p99", "us", "match_p99"),
        Wanted(f"{about}, match + count + place, p50", "arrive_p50", "us", orientation=10.0),
        Wanted(f"{about}, match + count + place, p99", "arrive_p99", "us"),
        Wanted(
            f"{about}, match + count + place, p99 of CPU time",
            "cpu_arrive_p99", "us", orientation=30.0,
        ),
        Wanted(f"{about}, {whole}, p50", "turn_p50", "us", orientation=10.0),
        Wanted(f"{about}, {whole}, p99", "turn_p99", "us"),
        Wanted(
            f"{about}, {whole}, p99 of CPU time", "cpu_turn_p99", "us", orientation=30.0
        ),
        Wanted(f"{about}, the same prompt without its branch, p50", "cold_p50", "us"),
        Wanted(f"{about}, runs on the path", "runs", "runs"),
    ]  # fmt: skip
    return Case(
        f"turns-{context}",
        "turns",
        lambda: inputs.agents(9, size.branches, context, turns=size.turns + 1),
        tuple(rows),
        {"context": context, "added": 20, "turns": size.turns},
    )


def _ingest(size: Size, per_event: int, orientation: float) -> Case:
    about = f"ingest from wire bytes, blocks an event: {per_event}"
    rows = [
        Wanted(
            f"{about}, an event a message", "blocks_per_s", "blocks/s", "blocks_per_s",
            at_least=5.0, orientation=orientation,
        )
    ]  # fmt: skip
    options = {"per_event": per_event}
    if per_event == 1:
        options["batch"] = 32
        rows.append(
            Wanted(
                f"{about}, ours 32 a message", "batched_blocks_per_s", "blocks/s", "blocks_per_s"
            )
        )
    return Case(
        f"ingest-{per_event}",
        "ingest",
        lambda: inputs.sequences(9, size.sequences, DEPTH, SHARED, questions=0),
        tuple(rows),
        options,
    )


def _memory(size: Size, run: int) -> Case:
    about = f"{size.memory_blocks:,} blocks with 2 copies, mean run {run}"
    goal = 0.5 if run == 256 else None
    return Case(
        f"memory-{run}",
        "memory",
        lambda: inputs.families(9, size.memory_blocks, run),
        (
            Wanted(
                f"resident memory with ledger, {about}", "bytes_per_block", "B/block",
                "bytes_per_block", at_most=goal, orientation=25.0 if goal else None,
            ),
            Wanted(f"of that a run, keys aside, {about}", "bytes_per_run", "B/run"),
        ),
    )  # fmt: skip


def _leave(size: Size, runs: int) -> Iterator[Case]:
    about = f"a node with {size.left_blocks:,} blocks in {runs:,} runs leaves"

    def make() -> Input:
        return inputs.departure(9, runs, size.left_blocks, SHARED)

    goal = Wanted(about, "ms", "ms", "ms", at_most=1.0, orientation=1.0)
    yield Case(f"leave-{runs}", "leave", make, (goal,))
    counted = f"{about}, a live branch on each path"
    row = Wanted(counted, "ms", "ms", "ms", orientation=1.0)
    yield Case(f"leave-{runs}-counted", "leave", make, (row,), {"branches": True})


def _hashing(size: Size) -> Case:
    options = {"blocks": ASKED, "block_tokens": 64, "rounds": max(3, size.rounds // 3)}
    about = f"hashing {ASKED:,} blocks of 64 tokens (ours keyed BLAKE2b, 16 bytes)"
    return Case(
        "hashing",
        "hashing",
        lambda: Input(0, [], [], 0),
        (
            Wanted(f"{about}, p50", "p50", "us", "p50"),
            Wanted(f"{about}, a block", "us_per_block", "us", "us_per_block"),
        ),
        options,
    )


def _tokenising(size: Size) -> Case:
    about = "tokenising English (byte-level BPE of 8,192, made from Python's help)"
    return Case(
        "tokenising",
        "tokenising",
        lambda: Input(0, [], [], 0),
        (Wanted(about, "tokens_per_s", "tokens/s"),),
        {"characters": size.characters, "rounds": 5},
    )
