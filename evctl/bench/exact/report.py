"""Rows and a table of what was found."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evctl.bench.exact.compare import TOLD, Difference, Played, differences
from evctl.bench.exact.stage import Source, said
from evctl.bench.measurement import Measurement, Row

HEAD = ("MODEL", "R", "PATH", "CAME SO", "TOKENS", "BLOCKS", "COPIES", "DIFFER", "S", "KV FROM")
RIGHT = (1, 3, 4, 5, 6, 7, 8)


class PathReport(msgspec.Struct, frozen=True, kw_only=True):
    """One path of one model and number of ranks. through: prompts whose KV came in the way that
    the path is named for. tokens, blocks: compared; copies: of those blocks, on all nodes and
    tiers. sources: blocks by where they came from. different: tokens and blocks that are not as
    on the first path. faults: what is wrong, in words, at most a few."""

    model: str
    ranks: int
    path: str
    prompts: int
    through: int
    tokens: int
    blocks: int
    copies: int
    sources: Source
    different: int
    faults: list[str]
    wall_s: float

    @property
    def name(self) -> str:
        return f"{self.model}, R = {self.ranks}, {self.path}"

    def cells(self) -> tuple[str, ...]:
        return (
            self.model,
            str(self.ranks),
            self.path,
            f"{self.through}/{self.prompts}",
            f"{self.tokens:,}",
            f"{self.blocks:,}",
            f"{self.copies:,}",
            str(self.different),
            f"{self.wall_s:.1f}",
            said(self.sources),
        )


class PoolBytes(msgspec.Struct, frozen=True, kw_only=True):
    """L2 of node a once all prompts went over the first path: registered for it, and in use."""

    model: str
    ranks: int
    registered_bytes: int
    used_bytes: int


class ExactMeasurement(Measurement, frozen=True, kw_only=True):
    """paths, pools: what the rows were made of."""

    paths: list[PathReport]
    pools: list[PoolBytes]


def report(
    model: str, ranks: int, path: str, expected: Played, found: Played, wall_s: float
) -> PathReport:
    """Hold one path against the first."""
    wrong = [answer for answer in found.answers if answer.wrong]
    unequal = differences(expected, found)
    return PathReport(
        model=model,
        ranks=ranks,
        path=path,
        prompts=len(found.answers),
        through=len(found.answers) - len(wrong),
        tokens=sum(len(answer.tokens) for answer in found.answers),
        blocks=sum(len(pages.checksums) for pages in found.pages),
        copies=sum(pages.copies for pages in found.pages),
        sources=_total([answer.source for answer in found.answers]),
        different=sum(one.tokens + one.blocks for one in unequal),
        faults=[
            *_few([f"prompt {answer.at}: {answer.wrong}" for answer in wrong]),
            *_few([_words(one) for one in unequal]),
        ],
        wall_s=round(wall_s, 1),
    )


def rows(path: PathReport) -> list[Row]:
    """What a program reads of one path."""
    return [
        Row(
            name=f"{path.name}: tokens and blocks that differ",
            value=path.different,
            unit=f"of {path.tokens} tokens, {path.blocks} blocks",
            goal="0",
            ok=path.different == 0,
        ),
        Row(
            name=f"{path.name}: prompts whose KV came so",
            value=path.through,
            unit=f"of {path.prompts}",
            goal="all",
            ok=path.through == path.prompts,
        ),
    ]


def pool_rows(pools: Sequence[PoolBytes]) -> list[Row]:
    """L2 of several ranks against that of one."""
    single = {pool.model: pool for pool in pools if pool.ranks == 1}
    found = []
    for pool in pools:
        one = single.get(pool.model)
        if one is None or pool is one:
            continue
        for what, value, peer in (
            ("registered for L2", pool.registered_bytes, one.registered_bytes),
            ("in use in L2", pool.used_bytes, one.used_bytes),
        ):
            found.append(
                Row(
                    name=f"{pool.model}, bytes {what}, R = {pool.ranks} over R = 1",
                    value=value,
                    unit="bytes",
                    peer=peer,
                    ratio=value / peer,
                    goal="equal",
                    ok=value == peer,
                )
            )
    return found


def _total(sources: Sequence[Source]) -> Source:
    held = [source.held for source in sources if source.held is not None]
    return Source(
        l1=sum(source.l1 for source in sources),
        own=sum(source.own for source in sources),
        peers=sum(source.peers for source in sources),
        held=sum(held) if held else None,
    )


def _words(one: Difference) -> str:
    return f"{one.words} ({one.tokens} tokens, {one.blocks} blocks)"


def _few(words: list[str]) -> list[str]:
    more = [f"and {len(words) - TOLD} more"] if len(words) > TOLD else []
    return words[:TOLD] + more
