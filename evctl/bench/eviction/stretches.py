"""Cutting block ids into stretches that every prompt of a trace uses whole or not at all.

An eviction order is then asked about some tens of stretches a request instead of thousands of
blocks. A stretch has at most MOST_BLOCKS, so that giving it up whole changes little.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import msgspec

from evctl.trace.schema import Branch, Conversation

MOST_BLOCKS = 64


class Step(msgspec.Struct, frozen=True):
    """A prompt: the first `keep` stretches of the branch's last one, then `add` (numbers of
    Shape.stretches)."""

    keep: int
    add: tuple[int, ...]


class Shape(msgspec.Struct, frozen=True):
    """A conversation in stretches. stretches: (first id, depth, blocks); a first id below 0 is
    shared by all conversations. steps: for each branch, one for each request."""

    conversation: Conversation
    stretches: tuple[tuple[int, int, int], ...]
    steps: tuple[tuple[Step, ...], ...]


def shape_all(conversations: Iterable[Conversation]) -> list[Shape]:
    """Shapes of all conversations; what they share is cut in the same places everywhere."""
    known = list(conversations)
    shared: set[int] = set()
    local = []
    for conversation in known:
        cuts = _cuts(conversation)
        shared |= {cut for cut in cuts if cut <= 0}
        local.append({cut for cut in cuts if cut >= 0})
    return [
        _Shaper(conversation, sorted(shared | cuts)).run()
        for conversation, cuts in zip(known, local, strict=True)
    ]


def _cuts(conversation: Conversation) -> set[int]:
    """Ids at which some prompt ends, goes on or turns off."""
    cuts: set[int] = set()
    for branch in conversation.branches:
        runs: list[tuple[int, int]] = []
        for request in branch.requests:
            runs = _keep(runs, request.keep)
            if runs:
                first, length = runs[-1]
                cuts.add(first + length)
            runs = [*runs, *request.add]
            for first, length in request.add:
                cuts.update((first, first + length))
    return cuts


def _keep(runs: Sequence[tuple[int, int]], blocks: int) -> list[tuple[int, int]]:
    kept = []
    for first, length in runs:
        if blocks <= 0:
            break
        kept.append((first, min(length, blocks)))
        blocks -= length
    return kept


class _Shaper:
    """One conversation; `cuts` ascend."""

    def __init__(self, conversation: Conversation, cuts: list[int]) -> None:
        self._conversation = conversation
        self._cuts = cuts
        self._stretches: list[tuple[int, int, int]] = []
        self._numbers: dict[int, int] = {}

    def run(self) -> Shape:
        steps = tuple(self._branch(branch) for branch in self._conversation.branches)
        return Shape(self._conversation, tuple(self._stretches), steps)

    def _branch(self, branch: Branch) -> tuple[Step, ...]:
        steps = []
        path: list[int] = []
        for request in branch.requests:
            keep, depth = len(path), sum(self._stretches[number][2] for number in path)
            while depth > request.keep:
                keep -= 1
                depth -= self._stretches[path[keep]][2]
            if depth < request.keep:
                raise AssertionError("a prompt turns off inside a stretch")
            add: list[int] = []
            for first, length in request.add:
                add += self._cut(first, length, depth)
                depth += length
            path = [*path[:keep], *add]
            steps.append(Step(keep, tuple(add)))
        return tuple(steps)

    def _cut(self, first: int, length: int, depth: int) -> list[int]:
        numbers = []
        end = first + length
        while first < end:
            place = bisect_left(self._cuts, first + 1)
            until = self._cuts[place] if place < len(self._cuts) else end
            blocks = min(until, end, first + MOST_BLOCKS) - first
            if first not in self._numbers:
                self._numbers[first] = len(self._stretches)
                self._stretches.append((first, depth, blocks))
            number = self._numbers[first]
            if self._stretches[number] != (first, depth, blocks):
                raise AssertionError(f"block {first} is at two depths")
            numbers.append(number)
            first, depth = first + blocks, depth + blocks
        return numbers
