"""Small traces for tests, written by hand or drawn by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from evctl.trace.schema import (
    FORMAT,
    VERSION,
    Branch,
    Conversation,
    Trace,
    TraceHeader,
    TraceRequest,
    encode_blocks,
)

BLOCK = 64
HEADER = TraceHeader(FORMAT, VERSION, BLOCK, "a test", "none")


def branch(
    name: str,
    prompts: list[tuple[list[int], int, int]],
    *,
    marks: dict[int, str] | None = None,
    waits_s: float = 0.0,
    **options: object,
) -> Branch:
    """prompts: (block ids, tokens after the last block, output tokens) of each request."""
    requests: list[TraceRequest] = []
    previous: list[int] = []
    for index, (blocks, tail, out) in enumerate(prompts):
        keep, add = encode_blocks(previous, blocks)
        mark = (marks or {}).get(index, "")
        requests.append(
            TraceRequest(len(blocks) * BLOCK + tail, out, waits_s, keep=keep, add=add, mark=mark)
        )
        previous = blocks
    return Branch(name, tuple(requests), **options)


def growing(name: str, requests: int, first_id: int = 0, **options: object) -> Branch:
    """Each prompt is the one before, its output (100 tokens) and some new blocks."""
    prompts = [(list(range(first_id, first_id + 10 + 5 * i)), 20, 100) for i in range(requests)]
    return branch(name, prompts, **options)


def family(name: str = "family") -> Conversation:
    """A parent of 5 requests; two sub-agents after the second, joined by the third; one more in
    the background after the fourth."""
    return Conversation(
        name,
        (
            growing("main", 5),
            growing("a1", 3, 1000, kind="subagent", parent="main", after=1, join=2),
            growing("a2", 2, 2000, kind="subagent", parent="main", after=1, join=2),
            growing("a3", 2, 3000, kind="subagent", parent="main", after=3),
        ),
    )


def trace(*conversations: Conversation) -> Trace:
    return Trace(HEADER, conversations)


@st.composite
def branches(draw: st.DrawFn, name: str = "main", first_id: int = 0) -> Branch:
    """Prompts that grow, rewind, shrink and repeat; ids name a block and all before it."""
    fresh = iter(range(first_id, first_id + 1_000_000))
    blocks: list[int] = []
    prompts: list[tuple[list[int], int, int]] = []
    for _ in range(draw(st.integers(1, 8))):
        keep = draw(st.one_of(st.just(len(blocks)), st.integers(0, len(blocks))))
        count = draw(st.integers(0, 9))
        gap = draw(st.integers(0, 2))
        for _ in range(gap):
            next(fresh)
        blocks = blocks[:keep] + [next(fresh) for _ in range(count)]
        prompts.append((blocks, draw(st.integers(0, 63)), draw(st.integers(0, 700))))
    return branch(name, prompts)
