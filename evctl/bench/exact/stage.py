"""Engines of one model and number of ranks, and what each request did there."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from evctl.bench.engines.driver import Driver
from evctl.core.events import FetchEnded, KvEvicted, RequestDone, TransferDone, TransferFailed
from evctl.core.kv import FetchPiece

OUTPUT_TOKENS = 20
FILL = 0.8
"""Share of L1 that the prompts of one batch and their output may take."""
REST_BLOCKS = 4


class Sizes(msgspec.Struct, frozen=True):
    """Of every engine on a stage, in blocks and tokens."""

    l1_blocks: int
    l2_blocks: int
    block_tokens: int = 16


class Source(msgspec.Struct, frozen=True):
    """Leading blocks of a prompt by where their KV came from. held: blocks that the decode node
    had already when the rest was sent to it; None: it was decoded where it was prefilled."""

    l1: int = 0
    own: int = 0
    peers: int = 0
    held: int | None = None

    @property
    def cached(self) -> int:
        return self.l1 + self.own + self.peers


class Asked(msgspec.Struct, frozen=True):
    """A request under way. at: number of its prompt. wanted: the way its KV has to take."""

    at: int
    request_id: str
    wanted: Source


class Answer(msgspec.Struct, frozen=True):
    """How it went. wrong: in which way its KV did not come as it had to, or ""."""

    at: int
    tokens: list[int]
    source: Source
    wrong: str


class Stage:
    """What the paths are played on."""

    def __init__(self, driver: Driver, prompts: Sequence[list[int]], sizes: Sizes) -> None:
        self.driver = driver
        self.prompts = prompts
        self.sizes = sizes
        self._random = random.Random(7)
        self._fillers = 0

    # ------------------------------------------------------------ prompts

    def usable(self, at: int) -> int:
        """Blocks of a prompt whose KV can be reused: its last token is always computed."""
        return (len(self.prompts[at]) - 1) // self.sizes.block_tokens

    def batches(self) -> list[list[int]]:
        """All prompts by number, so many at a time that L1 holds them and their output."""
        room = int(self.sizes.l1_blocks * FILL)
        batches: list[list[int]] = []
        left = 0
        for at, prompt in enumerate(self.prompts):
            blocks = -(-(len(prompt) + OUTPUT_TOKENS) // self.sizes.block_tokens)
            if not batches or blocks > left:
                batches.append([])
                left = room
            batches[-1].append(at)
            left -= blocks
        return batches

    # ------------------------------------------------------------ requests

    def prepare(
        self,
        tenant: str,
        prompts: Sequence[Sequence[int]],
        prefill: str,
        decode: str | None = None,
        forced: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Have KV of these prompts made, and of the tokens that are forced after each."""
        ids = []
        for number, prompt in enumerate(prompts):
            output = tuple(forced[number]) if forced is not None else ()
            ids.append(
                self.driver.submit(
                    prompt,
                    prefill=prefill,
                    decode=decode,
                    tenant=tenant,
                    max_tokens=len(output) + 1,
                    forced=output,
                )
            )
        self.driver.whole(ids)
        for name in {prefill, decode or prefill}:
            self.driver.quiet(name)  # its blocks are in L2

    def ask(
        self,
        tenant: str,
        at: int,
        wanted: Source,
        prefill: str,
        decode: str | None = None,
        fetch: Sequence[FetchPiece] = (),
    ) -> Asked:
        """Begin the request whose output counts."""
        request_id = self.driver.submit(
            self.prompts[at],
            prefill=prefill,
            decode=decode,
            tenant=tenant,
            fetch=[piece for piece in fetch if piece.end > piece.start],
            max_tokens=OUTPUT_TOKENS,
        )
        return Asked(at, request_id, wanted)

    def answers(self, asked: Sequence[Asked]) -> list[Answer]:
        """Once all of them have ended."""
        self.driver.whole([one.request_id for one in asked])
        return [self._answer(one) for one in asked]

    def _answer(self, asked: Asked) -> Answer:
        driver, request_id = self.driver, asked.request_id
        driver.facts_of(request_id, RequestDone)
        fetched = driver.facts_about(request_id, FetchEnded)
        result = driver.results[request_id]
        cached = result.cached_tokens // self.sizes.block_tokens
        source = Source(l1=cached, held=self._held(asked))
        if fetched:
            told = fetched[0]
            peers = sum(one.blocks for one in told.peers)
            source = Source(told.l1_blocks, told.own_blocks, peers, source.held)
        wrong = ""
        if source != asked.wanted:
            wrong = f"{said(source)}; wanted {said(asked.wanted)}"
            missed = [(one.missed_blocks, one.cause) for one in fetched if one.missed_blocks]
            wrong += "".join(f"; {blocks} not fetched: {cause}" for blocks, cause in missed)
        elif cached != source.cached or len(fetched) > 1:
            wrong = f"{cached} blocks counted as cached, {len(fetched)} fetches: {said(source)}"
        return Answer(asked.at, result.tokens, source, wrong)

    def _held(self, asked: Asked) -> int | None:
        if asked.wanted.held is None:
            done = self.driver.facts_about(asked.request_id, TransferDone)
            return done[0].held_blocks if done else None
        if not self.driver.handed_over(asked.request_id):
            failed = self.driver.facts_about(asked.request_id, TransferFailed)
            return -1 if failed else None
        return self.driver.facts_about(asked.request_id, TransferDone)[0].held_blocks

    # ------------------------------------------------------------ caches

    def flush(self, node: str, blocks: int) -> None:
        """Have that many blocks written that nobody asks for again, so that older ones go."""
        most = self.sizes.l1_blocks - 2
        while blocks > 0:
            size = min(most, blocks)
            self._fillers += 1
            tokens = [self._random.randrange(256) for _ in range(size * self.sizes.block_tokens)]
            self.prepare(f"filler {self._fillers}", [tokens], node)
            blocks -= size

    def flush_l1(self, node: str) -> None:
        """More than fits: a filler alone would leave the first blocks of the latest prompt."""
        self.flush(node, self.sizes.l1_blocks + REST_BLOCKS)

    def evicted(self, since: int) -> dict[int, set[bytes]]:
        """Keys that left each tier of any node, since the driver's facts were that many."""
        gone: dict[int, set[bytes]] = {1: set(), 2: set()}
        for _, fact in self.driver.facts[since:]:
            if isinstance(fact, KvEvicted):
                keys = fact.keys
                gone[fact.tier].update(keys[at : at + 16] for at in range(0, len(keys), 16))
        return gone


def said(source: Source) -> str:
    """In a few words."""
    parts = [
        f"{count} {where}"
        for count, where in (
            (source.l1, "from L1"),
            (source.own, "from own L2"),
            (source.peers, "from peers"),
        )
        if count
    ]
    if source.held is not None:
        parts.append("not handed over" if source.held < 0 else f"{source.held} held at decode")
    return ", ".join(parts) or "all computed"
