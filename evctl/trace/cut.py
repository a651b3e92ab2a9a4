"""Cutting a small trace out of a large one, with its block ids numbered anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from evctl.core.errors import NotFoundError
from evctl.trace.schema import Branch, Conversation, TraceRequest, encode_blocks, expand


def cut(
    conversations: Iterable[Conversation], chosen: Sequence[str], prefix: str = "c"
) -> Iterator[Conversation]:
    """The chosen conversations in that order, named `prefix`01, 02, ...

    Local block ids count from 0 in order of appearance. Raises NotFoundError.
    """
    found = {c.id: c for c in conversations if c.id in set(chosen)}
    for number, name in enumerate(chosen, 1):
        if name not in found:
            raise NotFoundError(
                what=f"cannot cut conversation {name!r}",
                why="the trace has no such conversation",
                next_step="choose from the ids in the trace",
                code="EV-1616",
            )
        yield renumber(found[name], f"{prefix}{number:02}")


def renumber(conversation: Conversation, name: str) -> Conversation:
    """The same shape under other ids."""
    numbers: dict[int, int] = {}
    branches = tuple(_renumber_branch(b, numbers) for b in conversation.branches)
    return Conversation(name, branches)


def _renumber_branch(branch: Branch, numbers: dict[int, int]) -> Branch:
    requests: list[TraceRequest] = []
    previous: list[int] = []
    for request, ids in zip(branch.requests, expand(branch), strict=True):
        blocks = [i if i < 0 else numbers.setdefault(i, len(numbers)) for i in ids]
        keep, add = encode_blocks(previous, blocks)
        requests.append(msgspec.structs.replace(request, keep=keep, add=add))
        previous = blocks
    return msgspec.structs.replace(branch, requests=tuple(requests))
