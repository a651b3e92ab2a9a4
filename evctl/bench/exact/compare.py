"""What a path gave, and where it differs from the first one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from evctl.bench.exact.paths import Path
from evctl.bench.exact.stage import Answer, Stage

TOLD = 6
"""Differences that are told one by one."""


class Pages(msgspec.Struct, frozen=True):
    """Checksums of the full blocks of one prompt and its output, in order; 0 for one that its
    decode node does not hold. copies: of all of them, on all nodes and tiers. torn: positions of
    blocks whose copies differ."""

    checksums: list[int]
    copies: int
    torn: list[int]


class Played(msgspec.Struct, frozen=True):
    """All prompts over one path."""

    answers: list[Answer]
    pages: list[Pages]


class Difference(msgspec.Struct, frozen=True):
    """tokens, blocks: how many of a prompt differ; blocks whose copies disagree count."""

    prompt: int
    tokens: int
    blocks: int
    words: str


def play(stage: Stage, path: Path, tenant: str) -> Played:
    """Every prompt over a path, batch by batch, its pages read while L1 still holds them."""
    answers: dict[int, Answer] = {}
    pages: dict[int, Pages] = {}
    for batch in stage.batches():
        answers |= {answer.at: answer for answer in path.play(stage, tenant, batch)}
        pages |= _read_pages(stage, path, tenant, [answers[at] for at in batch])
    order = range(len(stage.prompts))
    return Played([answers[at] for at in order], [pages[at] for at in order])


def _read_pages(
    stage: Stage, path: Path, tenant: str, answers: Iterable[Answer]
) -> dict[int, Pages]:
    held: dict[bytes, list[int]] = {}
    used: dict[bytes, int] = {}
    for name in stage.driver.nodes:
        stage.driver.quiet(name)
        for block in stage.driver.blocks(name):
            held.setdefault(block.key, []).append(block.checksum)
            if name == path.decodes and block.tier == 1:
                used[block.key] = block.checksum
    found = {}
    for answer in answers:
        computed = stage.prompts[answer.at] + answer.tokens[:-1]  # the last one has no KV
        _, keys = stage.driver.keys(path.decodes, tenant, computed)
        found[answer.at] = Pages(
            checksums=[used.get(key, 0) for key in keys],
            copies=sum(len(held.get(key, ())) for key in keys),
            torn=[at for at, key in enumerate(keys) if len(set(held.get(key, ()))) > 1],
        )
    return found


def differences(expected: Played, found: Played) -> list[Difference]:
    """Of every prompt that is not the same in all its tokens and blocks."""
    return list(_differences(expected, found))


def _differences(expected: Played, found: Played) -> Iterator[Difference]:
    rows = zip(expected.answers, expected.pages, found.answers, found.pages, strict=True)
    for want, want_pages, have, have_pages in rows:
        tokens = _unequal(want.tokens, have.tokens)
        blocks = _unequal(want_pages.checksums, have_pages.checksums)
        blocks += [at for at, one in enumerate(have_pages.checksums) if not one]
        blocks = sorted({*blocks, *have_pages.torn})
        if tokens or blocks:
            words = [f"token {at}" for at in tokens[:1]] + [f"block {at}" for at in blocks[:1]]
            yield Difference(
                want.at, len(tokens), len(blocks), f"prompt {want.at}: first {', '.join(words)}"
            )


def _unequal(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """Positions at which two lists differ, those that only one of them has included."""
    length = max(len(one), len(other))
    return [at for at in range(length) if one[at : at + 1] != other[at : at + 1]]
