"""Conversations of Claude Code as Weka's kv-cache-tester publishes them.

Two forms: one JSON document a conversation, each request with `hash_ids` (chained, one for each
full block); and a lossless re-encoding as JSON lines, each request with `keep` and `add`.

What the source means, where its words mislead:
- `t` restarts at 0 inside a sub-agent. A sub-agent's own `t` is when it *ended* (its start is
  `t` - `duration_ms`), except with status async_launched, where it is when it was launched.
- The next request of the parent waits for it, unless it was launched asynchronously or no request
  of the parent follows; then it runs in the background.
- Compaction is not marked: a prompt that keeps under half of the previous one's blocks and is
  shorter than 0.6 of it is taken for one.
- That all sessions begin with the same tool and system text is not in the ids, which are local to
  a file. With share_prefix, such text of equal length is one text (a global id) everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import msgspec

from evctl.core.errors import ConfigError
from evctl.trace.lines import bad_trace, decode, no_trace, read_document, read_lines
from evctl.trace.schema import (
    FORMAT,
    GLOBAL_RUN,
    MAX_ID,
    MAX_TOKENS,
    VERSION,
    Branch,
    Conversation,
    Mark,
    Name,
    TraceHeader,
    TraceRequest,
    encode_blocks,
    is_time,
    problems,
)

BLOCK_TOKENS = 64
COMPACT_KEPT = 0.5
COMPACT_LENGTH = 0.6
MAX_DEPTH = 4
"""Sub-agents of sub-agents beyond this depth are refused."""
SOURCE = "callanjfox/kv-cache-tester, traces/"
LICENCE = "Apache-2.0"

_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
_Id = Annotated[int, msgspec.Meta(ge=0, lt=MAX_ID)]


class _Request(msgspec.Struct, frozen=True):
    t: float
    in_tokens: _Tokens = msgspec.field(name="in")
    out: _Tokens
    hash_ids: list[_Id] | None = None
    keep: _Tokens = 0
    add: list[tuple[_Id, Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]]] | None = None
    think_time: float | None = None
    api_time: float | None = None


class _Whole(_Request, frozen=True, tag_field="type", tag="n"):
    """A request that was not streamed where it was recorded; for us no difference."""


class _Streamed(_Request, frozen=True, tag_field="type", tag="s"):
    """A request that was streamed where it was recorded."""


class _SubAgent(msgspec.Struct, frozen=True, tag_field="type", tag="subagent"):
    t: float
    requests: list[_Whole | _Streamed | _SubAgent]
    duration_ms: float | None = None
    status: str = ""
    tool_tokens: _Tokens = 0
    system_tokens: _Tokens = 0


class _Document(msgspec.Struct, frozen=True):
    id: Name
    requests: list[_Whole | _Streamed | _SubAgent]
    block_size: int = BLOCK_TOKENS
    tool_tokens: _Tokens = 0
    system_tokens: _Tokens = 0


_decoder = msgspec.json.Decoder(_Document)


def is_weka(path: Path) -> bool:
    """Whether a file looks like either form. Raises EvctlError when it cannot be read."""
    if path.name.removesuffix(".gz").endswith(".json"):
        return True
    _, first = next(read_lines(path), (1, b""))
    head = first[:4096]
    return b'"requests"' in head and b'"block_size"' in head


def header() -> TraceHeader:
    """The header that an import gets."""
    return TraceHeader(FORMAT, VERSION, BLOCK_TOKENS, SOURCE, LICENCE)


def conversations(path: Path, *, share_prefix: bool = True) -> Iterator[Conversation]:
    """The conversations of a file, or of every .json in a folder, one in memory at a time.

    Raises EvctlError naming file and line for whatever is wrong with the input.
    """
    seen: set[str] = set()
    for file, line, data in _documents(path):
        document = decode(_decoder, data, file, line)
        if document.id in seen:
            raise bad_trace(file, line, f"conversation {document.id!r} comes twice")
        seen.add(document.id)
        yield _Importer(file, line, document, share_prefix).run()


def _documents(path: Path) -> Iterator[tuple[Path, int, bytes]]:
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz")))
        if not files:
            raise no_trace(path, "the folder holds no .json file")
        for file in files:
            yield file, 1, read_document(file)
    elif path.name.removesuffix(".gz").endswith(".json"):
        yield path, 1, read_document(path)
    else:
        for line, data in read_lines(path):
            yield path, line, data


class _Importer:
    """One conversation on its way into our form."""

    def __init__(self, path: Path, line: int, document: _Document, share_prefix: bool) -> None:
        self._path = path
        self._line = line
        self._document = document
        self._share_prefix = share_prefix
        self._global_of: dict[int, int] = {}
        self._branches: list[Branch] = []

    def run(self) -> Conversation:
        document = self._document
        if document.block_size != BLOCK_TOKENS:
            raise self._bad(f"block_size is {document.block_size}, not {BLOCK_TOKENS}")
        root = Branch("main", ())
        self._add_branch(root, document.requests, document.tool_tokens, document.system_tokens, 0)
        conversation = Conversation(document.id, tuple(self._branches))
        if found := problems(conversation, BLOCK_TOKENS):
            raise self._bad(found[0])
        return conversation

    def _add_branch(
        self,
        branch: Branch,
        entries: Sequence[_Request | _SubAgent],
        tool_tokens: int,
        system_tokens: int,
        depth: int,
    ) -> None:
        if depth > MAX_DEPTH:
            raise self._bad(f"sub-agents are nested over {MAX_DEPTH} deep")
        slot = len(self._branches)
        self._branches.append(branch)  # parents come first
        requests: list[TraceRequest] = []
        blocks: list[int] = []
        previous: _Request | None = None
        joined_until_s: float | None = None
        total = sum(isinstance(entry, _Request) for entry in entries)
        for entry in entries:
            if isinstance(entry, _SubAgent):
                ends_s = self._add_subagent(
                    branch.id, entry, previous, len(requests), total, depth
                )
                if ends_s is not None:
                    joined_until_s = max(joined_until_s or 0.0, ends_s)
                continue
            # keep and add count blocks of the source's list, which ours follows one to one.
            following = self._blocks(entry, blocks)
            if not requests:
                self._share(following, tool_tokens, system_tokens)
            following = [self._global_of.get(block, block) for block in following]
            wait_s = self._wait_s(entry, previous, joined_until_s)
            requests.append(_request(entry, blocks, following, requests, wait_s))
            blocks, previous, joined_until_s = following, entry, None
        if not requests:
            raise self._bad(f"branch {branch.id!r} has no requests")
        self._branches[slot] = msgspec.structs.replace(branch, requests=tuple(requests))

    def _add_subagent(
        self,
        parent: str,
        entry: _SubAgent,
        previous: _Request | None,
        index: int,
        total: int,
        depth: int,
    ) -> float | None:
        """Adds the branch; returns when it ended if the parent waits for it, else None."""
        if not is_time(entry.t):
            raise self._bad(f"a sub-agent has the time {entry.t}")
        duration_s = (entry.duration_ms or 0.0) / 1000
        waits = entry.status != "async_launched" and index < total
        spawned_s = entry.t - duration_s if entry.status != "async_launched" else entry.t
        ended_s = previous.t + (previous.api_time or 0.0) if previous else 0.0
        branch = Branch(
            id=f"a{len(self._branches)}",
            requests=(),
            kind="subagent",
            parent=parent,
            after=index - 1,
            delay_s=self._clean(spawned_s - ended_s),
            join=index if waits else None,
        )
        if any(isinstance(item, _Request) for item in entry.requests):
            self._add_branch(
                branch, entry.requests, entry.tool_tokens, entry.system_tokens, depth + 1
            )
        return entry.t if waits else None

    def _blocks(self, entry: _Request, previous: list[int]) -> list[int]:
        """The block ids of a request, cut to what its length can hold."""
        limit = entry.in_tokens // BLOCK_TOKENS
        if entry.hash_ids is not None:
            return entry.hash_ids[:limit]
        if entry.add is None:
            raise self._bad("a request has neither hash_ids nor keep and add")
        if entry.keep > len(previous):
            raise self._bad(f"a request keeps {entry.keep} of {len(previous)} blocks")
        blocks = previous[: min(entry.keep, limit)]
        for first, length in entry.add:
            if first + length > MAX_ID:
                raise self._bad(f"block ids reach {first + length}, over {MAX_ID}")
            # Never expand more than the prompt holds, whatever the file claims.
            length = min(length, limit - len(blocks))
            blocks.extend(range(first, first + length))
        return blocks

    def _share(self, blocks: list[int], tool_tokens: int, system_tokens: int) -> None:
        """Name the blocks of tool and system text by their length instead of by the file."""
        if not self._share_prefix:
            return
        tools = min(tool_tokens // BLOCK_TOKENS, len(blocks))
        both = min((tool_tokens + system_tokens) // BLOCK_TOKENS, len(blocks), GLOBAL_RUN)
        for position in range(both):
            about = f"t{tool_tokens}" if position < tools else f"t{tool_tokens}s{system_tokens}"
            self._global_of.setdefault(blocks[position], global_id(about, position))

    def _wait_s(
        self, entry: _Request, previous: _Request | None, joined_until_s: float | None
    ) -> float:
        if not is_time(entry.t):
            raise self._bad(f"a request has the time {entry.t}")
        if joined_until_s is not None:
            return self._clean(entry.t - joined_until_s)
        if entry.think_time is not None:
            return self._clean(entry.think_time)
        if previous is None:
            return self._clean(entry.t)
        return self._clean(entry.t - previous.t - (previous.api_time or 0.0))

    def _clean(self, seconds: float) -> float:
        """A pause: never negative (clocks of the source are rounded), to the millisecond."""
        if not math.isfinite(seconds):
            raise self._bad(f"a time is {seconds}")
        seconds = round(max(0.0, seconds), 3)
        if not is_time(seconds):
            raise self._bad(f"a pause is {seconds} s long")
        return seconds

    def _bad(self, why: str) -> ConfigError:
        return bad_trace(self._path, self._line, why)


def global_id(about: str, position: int) -> int:
    """The id of a block that all conversations share; about: what tells such texts apart."""
    run = 1 + int.from_bytes(blake2b(about.encode(), digest_size=4).digest()) % (2**31)
    return -run * GLOBAL_RUN + position


def _request(
    entry: _Request,
    previous: list[int],
    blocks: list[int],
    before: Sequence[TraceRequest],
    wait_s: float,
) -> TraceRequest:
    keep, add = encode_blocks(previous, blocks)
    mark: Mark = ""
    if before and keep < len(previous) - 1:
        # One block less is no sign: where the text goes on, the last block's tokens may change.
        short = entry.in_tokens < COMPACT_LENGTH * before[-1].in_tokens
        mark = "compact" if short and keep < COMPACT_KEPT * len(previous) else "rewind"
    service_s = entry.api_time
    return TraceRequest(
        in_tokens=entry.in_tokens,
        out_tokens=entry.out,
        wait_s=wait_s,
        keep=keep,
        add=add,
        mark=mark,
        service_s=round(service_s, 3) if service_s is not None and is_time(service_s) else None,
    )
