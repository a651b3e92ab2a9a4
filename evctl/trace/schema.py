"""Our own form of a recorded agent workload: shapes only, never text.

A file is JSON lines, gzipped when its name ends in .gz. The first line is a TraceHeader, each
other line one Conversation. A conversation is a tree of branches; a branch is a list of requests
that one agent sends one after another. Sub-agents and forks are branches of their own.

Lengths are in tokens of the trace. The content of a prompt is a list of block ids, one for each
full block of `block_tokens` tokens; equal ids are equal content *including all that precedes it*,
so the longest common prefix of two lists is what one prompt reuses of the other. What follows the
last full block (fewer than `block_tokens` tokens, unless the source had no ids for it) has none.

Ids at or above 0 belong to their conversation. Ids below 0 are global: the same id is the same
content in every conversation (tool and system text that all sessions share).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec

FORMAT = "evctl.trace"
VERSION = 1

MAX_ID = 2**52
"""Block ids lie within +-MAX_ID, so that any JSON reader keeps them whole."""
MAX_TOKENS = 10_000_000
MAX_WAIT_S = 10.0 * 365 * 86_400
GLOBAL_RUN = 2**20
"""Global ids come in runs of this many: run r holds -(r * GLOBAL_RUN) + position."""

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)]
BlockId = Annotated[int, msgspec.Meta(ge=-MAX_ID, le=MAX_ID)]
RunLength = Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
NAME_PATTERN = r"\A[!-~]{1,80}\Z"
"""Ids travel in headers: printable ASCII without spaces."""
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
BranchKind = Literal["main", "subagent", "fork"]
RequestKind = Literal["", "compaction", "auxiliary"]
Mark = Literal["", "compact", "rewind"]


class TraceHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First line of a file. source and licence say where the shapes come from."""

    format: str
    version: int
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=65_536)]
    source: str = ""
    licence: str = ""


class TraceRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One request of a branch.

    wait_s: pause before it, from the end of the branch's previous response, of the spawn, or of
    the last sub-agent it waited for. keep: blocks it shares with the branch's previous prompt,
    exactly their longest common prefix; add: runs of ids (first id, length) that follow them.
    mark: "compact" where the context was rewritten, "rewind" where it diverges earlier than at its
    end; a replay raises the branch's version at both. kind: "" is the branch's own kind.
    service_s: how long the response took where the trace was recorded.
    """

    in_tokens: Tokens
    out_tokens: Tokens
    wait_s: Seconds = 0.0
    keep: Tokens = 0
    add: tuple[tuple[BlockId, RunLength], ...] = ()
    mark: Mark = ""
    kind: RequestKind = ""
    service_s: Seconds | None = None

    @property
    def blocks(self) -> int:
        """Full blocks of the prompt."""
        return self.keep + sum(length for _, length in self.add)


class Branch(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Requests that follow one another.

    parent: id of the branch that started this one, "" for the root. after: index of the parent's
    request whose end starts it, -1 for the parent's own start; delay_s: pause between the two.
    join: index of the parent's request that waits for this branch's end; None: nobody waits.
    """

    id: Name
    requests: tuple[TraceRequest, ...]
    kind: BranchKind = "main"
    parent: Annotated[str, msgspec.Meta(max_length=80)] = ""
    after: Annotated[int, msgspec.Meta(ge=-1)] = -1
    delay_s: Seconds = 0.0
    join: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Conversation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one agent does from start to end. branches[0] is the root; parents come first."""

    id: Name
    branches: tuple[Branch, ...]

    @property
    def root(self) -> Branch:
        return self.branches[0]

    @property
    def requests(self) -> int:
        """Requests of all branches."""
        return sum(len(branch.requests) for branch in self.branches)


class Trace(msgspec.Struct, frozen=True):
    """A whole trace in memory, still encoded: about 100 bytes a request."""

    header: TraceHeader
    conversations: tuple[Conversation, ...]


# ---------------------------------------------------------------------------- block ids


def expand(branch: Branch) -> Iterator[list[int]]:
    """The block ids of each prompt in turn. A yielded list must not be changed."""
    blocks: list[int] = []
    for request in branch.requests:
        blocks = blocks[: request.keep]
        for first, length in request.add:
            blocks.extend(range(first, first + length))
        yield blocks


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix; both of the same sequence type."""
    low, high = 0, min(len(left), len(right))
    if left[:high] == right[:high]:
        return high
    while low < high - 1:
        # Invariant: equal up to low, not equal up to high.
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low


def to_runs(ids: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Encode ids as (first, length) of consecutive ones."""
    runs: list[list[int]] = []
    for block in ids:
        if runs and runs[-1][0] + runs[-1][1] == block:
            runs[-1][1] += 1
        else:
            runs.append([block, 1])
    return tuple((first, length) for first, length in runs)


def encode_blocks(
    previous: Sequence[int], blocks: Sequence[int]
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """keep and add of a prompt that follows `previous`."""
    keep = common_prefix(previous, blocks)
    return keep, to_runs(blocks[keep:])


# ---------------------------------------------------------------------------- checks


def problems(conversation: Conversation, block_tokens: int) -> list[str]:
    """What contradicts the contract of this module; empty when all is well."""
    found: list[str] = []
    if not conversation.branches:
        return ["has no branch"]
    known: dict[str, Branch] = {}
    for position, branch in enumerate(conversation.branches):
        where = f"branch {branch.id!r}"
        if branch.id in known:
            found.append(f"{where}: the id is used twice")
        if position == 0:
            if branch.parent or branch.kind != "main" or branch.join is not None:
                found.append(f"{where}: the first branch is the root: kind main, no parent")
        else:
            found.extend(f"{where}: {text}" for text in _parent_problems(branch, known))
        found.extend(f"{where}: {text}" for text in _request_problems(branch, block_tokens))
        known[branch.id] = branch
    return found


def _parent_problems(branch: Branch, known: dict[str, Branch]) -> Iterator[str]:
    parent = known.get(branch.parent)
    if parent is None:
        yield f"parent {branch.parent!r} is no earlier branch"
        return
    if branch.kind == "main":
        yield "only the root has kind main"
    if branch.after >= len(parent.requests):
        yield f"starts after request {branch.after}, but the parent has {len(parent.requests)}"
    if branch.join is not None and not branch.after < branch.join < len(parent.requests):
        yield f"join {branch.join} is no request of the parent after its start"


def _request_problems(branch: Branch, block_tokens: int) -> Iterator[str]:
    if not branch.requests:
        yield "has no requests"
    held: list[tuple[int, int]] = []  # runs of the previous prompt
    held_blocks = 0
    for index, request in enumerate(branch.requests):
        if request.keep > held_blocks:
            yield f"request {index}: keeps {request.keep} of {held_blocks} blocks"
            return
        if request.blocks * block_tokens > request.in_tokens:
            yield f"request {index}: {request.blocks} blocks do not fit {request.in_tokens} tokens"
            return
        if any(first < 0 <= first + length - 1 for first, length in request.add):
            yield f"request {index}: a run of ids crosses from global to local"
        following = _id_at(held, request.keep)
        if request.add and request.keep < held_blocks and request.add[0][0] == following:
            yield f"request {index}: keep is not the longest common prefix"
        held = [*_cut(held, request.keep), *request.add]
        held_blocks = request.blocks


def _cut(runs: list[tuple[int, int]], blocks: int) -> Iterator[tuple[int, int]]:
    for first, length in runs:
        if blocks <= 0:
            return
        yield first, min(length, blocks)
        blocks -= length


def _id_at(runs: list[tuple[int, int]], position: int) -> int | None:
    for first, length in runs:
        if position < length:
            return first + position
        position -= length
    return None


def is_time(value: object) -> bool:
    """Whether a foreign value is a duration that this module can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and 0 <= value <= MAX_WAIT_S
