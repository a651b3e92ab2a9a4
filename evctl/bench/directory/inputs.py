"""What both sides are fed: keys, paths of keys, and who stores and asks for what, in order.

An input travels as a file, since a peer lives in an environment without our code: a line of JSON
with everything but the keys, then the keys, 16 bytes each. A block of a path is the place of its
key among them. Equal arguments give equal inputs.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import msgspec

KEY_BYTES = 16
MATCH = -1
"""In place of a node: a question."""

Operation = tuple[int, int, int, int]
"""(node, path, start, end): that node stores these blocks of the path, or it is asked for
(MATCH, path, 0, end)."""
Pieces = list[tuple[int, int]]
"""(first key, keys), in order."""


class Input(msgspec.Struct):
    """branches: paths that are contexts of live branches. speakers: the branch that each path is
    a prompt of, where prompts were recorded."""

    nodes: int
    paths: list[Pieces]
    operations: list[Operation]
    blocks: int
    branches: list[int] = []
    speakers: list[str] = []
    about: str = ""

    def length(self, path: int) -> int:
        """Blocks of a path."""
        return sum(count for _, count in self.paths[path])


def write(path: Path, made: Input, seed: int) -> None:
    """The file, its keys made from the seed: in a key, 8 bytes are as good as 16."""
    with path.open("wb") as file:
        file.write(msgspec.json.encode(made) + b"\n")
        dice = random.Random(seed)
        for start in range(0, made.blocks, 1 << 20):
            file.write(dice.randbytes(min(1 << 20, made.blocks - start) * KEY_BYTES))


def read(path: Path) -> tuple[Input, bytes]:
    """An input and its keys."""
    head, _, keys = path.read_bytes().partition(b"\n")
    return msgspec.json.decode(head, type=Input), keys


class _Maker:
    def __init__(self, nodes: int) -> None:
        self.made = Input(nodes, [], [], 0)

    def keys(self, count: int) -> tuple[int, int]:
        first = self.made.blocks
        self.made.blocks += count
        return first, count

    def path(self, *pieces: tuple[int, int]) -> int:
        self.made.paths.append([piece for piece in pieces if piece[1]])
        return len(self.made.paths) - 1

    def store(self, node: int, path: int, start: int, end: int) -> None:
        if start < end:
            self.made.operations.append((node, path, start, end))

    def ask(self, path: int, end: int) -> None:
        self.made.operations.append((MATCH, path, 0, end))


# ---------------------------------------------------------------- made-up inputs


def sequences(
    nodes: int, count: int, depth: int, shared: int = 32, *, asked: int = 2000, questions: int = 20
) -> Input:
    """`count` paths that share their first blocks, each stored by one node in turn."""
    make = _Maker(nodes)
    base = make.keys(shared)
    for number in range(count):
        path = make.path(base, make.keys(depth - shared))
        make.store(number % nodes, path, 0, depth)
    for number in range(min(questions, count)):
        make.ask(number * count // min(questions, count), min(asked, depth))
    return make.made


def fragmented(nodes: int, depth: int, runs: int, *, questions: int = 20) -> Input:
    """One path cut by stubs into so many runs; each node holds nearly all of it: it ends in one
    of the last eighth of the runs."""
    make = _Maker(nodes)
    trunk = make.keys(depth)
    main = make.path(trunk)
    ends = [depth - node * (depth // 8) // nodes for node in range(nodes)]
    for node, end in enumerate(ends):
        make.store(node, main, 0, end)
    for number in range(1, runs):
        fork = number * depth // runs
        stub = make.path((trunk[0], fork), make.keys(4))
        # A block is stored by a node that holds those before it.
        node = number % nodes if ends[number % nodes] >= fork else 0
        make.store(node, stub, fork, fork + 4)
    for _ in range(questions):
        make.ask(main, depth)
    return make.made


def families(nodes: int, blocks: int, run: int, *, levels: int = 4) -> Input:
    """Binary trees of runs of equal length; every leaf is a live branch, every block is held by
    two nodes: one for each phase."""
    make = _Maker(nodes)
    for family in itertools.count():
        if make.made.blocks >= blocks:
            break
        above = [make.path(make.keys(run))]
        for _ in range(levels - 1):
            above = [
                make.path(*make.made.paths[path], make.keys(run)) for path in above for _ in (0, 1)
            ]
        for number, path in enumerate(above):
            # What the leaf shares with its left neighbour is stored already.
            fresh = levels if number == 0 else (number & -number).bit_length()
            for node in (family % nodes, (family + 1) % nodes):
                make.store(node, path, (levels - fresh) * run, levels * run)
            make.made.branches.append(path)
    return make.made


def departure(nodes: int, count: int, blocks: int, shared: int) -> Input:
    """Node 0 holds `blocks` blocks alone, on `count` paths, and begins as all others do."""
    make = _Maker(nodes)
    base = make.keys(shared)
    own = blocks // count
    for number in range(count):
        path = make.path(base, make.keys(own))
        make.store(0, path, 0 if number == 0 else shared, shared + own)
        make.made.branches.append(path)
    for node in range(1, nodes):
        path = make.path(base, make.keys(64))
        make.store(node, path, 0, shared + 64)
    make.ask(0, shared + own)
    return make.made


def agents(
    nodes: int, count: int, context: int, *, runs: int = 8, added: int = 20, turns: int = 10
) -> Input:
    """`count` branches that share half of their context, which has the same number of runs
    whatever its length; paths reach to the end of their last turn."""
    make = _Maker(nodes)
    common = context // 2
    base = make.keys(common)
    trunk = make.path(base)
    make.store(0, trunk, 0, common)
    for number in range(1, runs - 1):
        fork = number * common // (runs - 1)
        stub = make.path((base[0], fork), make.keys(4))
        make.store(0, stub, fork, fork + 4)
    for number in range(count):
        own = context - common + added * turns
        path = make.path(base, make.keys(own))
        make.store(number % nodes, path, 0 if number < nodes else common, context)
        make.store((number + 1) % nodes, path, 0 if number < nodes else common, context)
        make.made.branches.append(path)
        if number < 20:
            make.ask(path, context)
    return make.made
