"""An input made from recorded conversations: what their prompts share is what they shared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from evctl.bench.directory.inputs import MATCH, Input, Pieces
from evctl.trace.files import locate, open_trace
from evctl.trace.schema import Conversation, expand

CONVERSATIONS = 120
ELSEWHERE = 8
"""Every so many requests of a branch run on another node than its own."""


def recorded(
    trace: str | Path, nodes: int, *, conversations: int = CONVERSATIONS, prompts: int = 8000
) -> Input:
    """Conversations interleaved, a request of each in turn; each prompt is asked for, then
    stored by a prefill node and a decode node, which are those of its branch, mostly."""
    path = locate(trace)
    header, found = open_trace(path)
    chosen = list(itertools.islice(found, conversations))
    making = _Making(nodes)
    for place, ids in itertools.islice(_interleaved(chosen), prompts):
        making.request(*place, ids)
    made = making.made
    made.about = (
        f"{len(chosen)} conversations of {path.name} ({header.source or 'own trace'}), "
        f"{len(made.paths):,} prompts, {made.blocks:,} blocks of {header.block_tokens} tokens"
    )
    return made


def _interleaved(
    conversations: list[Conversation],
) -> Iterator[tuple[tuple[int, int, int], list[int]]]:
    """((conversation, branch, request), ids of its blocks), a request of each in turn."""
    waiting = [_requests(number, c) for number, c in enumerate(conversations)]
    while waiting:
        going = []
        for requests in waiting:
            following = next(requests, None)
            if following is not None:
                yield following
                going.append(requests)
        waiting = going


def _requests(
    number: int, conversation: Conversation
) -> Iterator[tuple[tuple[int, int, int], list[int]]]:
    for place, branch in enumerate(conversation.branches):
        for request, ids in enumerate(expand(branch)):
            if ids:
                yield (number, place, request), list(ids)


class _Making:
    """Gives every block a key, and remembers which node holds it."""

    def __init__(self, nodes: int) -> None:
        self.made = Input(nodes, [], [], 0)
        self._keys: dict[tuple[int, int], int] = {}
        self._held: list[set[int]] = [set() for _ in range(nodes)]

    def request(self, conversation: int, branch: int, request: int, ids: list[int]) -> None:
        made = self.made
        keys = [self._key(conversation, block) for block in ids]
        path = len(made.paths)
        made.paths.append(_pieces(keys))
        made.speakers.append(f"{conversation}-{branch}")
        made.operations.append((MATCH, path, 0, len(keys)))
        away = request // ELSEWHERE if request % ELSEWHERE == ELSEWHERE - 1 else 0
        home = conversation + branch
        for node in ((home + away) % made.nodes, (home * 7 + 3 + away) % made.nodes):
            held = self._held[node]
            start = _held_blocks(held, keys)
            if start < len(keys):
                made.operations.append((node, path, start, len(keys)))
                held.update(keys[start:])

    def _key(self, conversation: int, block: int) -> int:
        # Ids below 0 are the same content in every conversation.
        name = (conversation if block >= 0 else -1, block)
        key = self._keys.get(name)
        if key is None:
            key = self._keys[name] = self.made.blocks
            self.made.blocks += 1
        return key


def _held_blocks(held: set[int], keys: list[int]) -> int:
    """Leading keys that are held: a node holds no block without those before it."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle - 1] in held:
            low = middle
        else:
            high = middle - 1
    return low


def _pieces(keys: list[int]) -> Pieces:
    pieces: Pieces = []
    start = 0
    for at in range(1, len(keys) + 1):
        if at == len(keys) or keys[at] != keys[at - 1] + 1:
            pieces.append((keys[start], at - start))
            start = at
    return pieces
