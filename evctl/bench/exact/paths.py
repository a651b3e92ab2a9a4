"""The ways that KV may take. Each is played for a batch of prompts under a tenant of its own, so
that no path can use what another one has made, and says from where each block has to come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from evctl.bench.exact.stage import Answer, Asked, Source, Stage
from evctl.core.kv import FetchPiece

MOST_DECODED = 48
"""Tokens at the end of a prompt that decode computes on the path after D->P: three blocks."""
Play = Callable[[Stage, str, Sequence[int]], list[Answer]]


class Path(msgspec.Struct, frozen=True):
    """decodes: the node that decodes. small: on an engine whose caches hold one batch only."""

    name: str
    play: Play
    decodes: str
    small: bool = False


def one_node(stage: Stage, tenant: str, batch: Sequence[int]) -> list[Answer]:
    """All of it computed, and decoded in place."""
    return stage.answers([stage.ask(tenant, at, Source(), "a") for at in batch])


def disaggregated(stage: Stage, tenant: str, batch: Sequence[int]) -> list[Answer]:
    """Computed on a, pushed to b, decoded there."""
    return stage.answers([stage.ask(tenant, at, Source(held=0), "a", "b") for at in batch])


def own_l2(stage: Stage, tenant: str, batch: Sequence[int]) -> list[Answer]:
    """Computed on a, gone from its L1, restored from its L2."""
    stage.prepare(tenant, [stage.prompts[at] for at in batch], "a")
    stage.flush_l1("a")
    return stage.answers(
        [stage.ask(tenant, at, Source(own=stage.usable(at)), "a") for at in batch]
    )


def peers_l2(stage: Stage, tenant: str, batch: Sequence[int]) -> list[Answer]:
    """Computed on a, fetched from its L2 by b, which has none of it."""
    stage.prepare(tenant, [stage.prompts[at] for at in batch], "a")

    def ask(at: int) -> Asked:
        count = stage.usable(at)
        piece = FetchPiece(0, count, ("a",))
        return stage.ask(tenant, at, Source(peers=count), "b", fetch=[piece])

    return stage.answers([ask(at) for at in batch])


def half_and_half(stage: Stage, tenant: str, batch: Sequence[int]) -> list[Answer]:
    """The first half of the blocks in b's L1, the others in a's L2."""
    size = stage.sizes.block_tokens
    halves = {at: stage.usable(at) // 2 for at in batch}
    stage.prepare(tenant, [stage.prompts[at] for at in batch], "a")
    stage.prepare(tenant, [stage.prompts[at][: halves[at] * size] for at in batch], "b")

    def ask(at: int) -> Asked:
        half, count = halves[at], stage.usable(at)
        piece = FetchPiece(half, count, ("a",))
        return stage.ask(tenant, at, Source(l1=half, peers=count - half), "b", fetch=[piece])

    return stage.answers([ask(at) for at in batch])


def after_d_to_p(stage: Stage, tenant: str, batch: Sequence[int]) -> list[Answer]:
    """b decoded the end of each prompt and becomes a prefill node, its L1 emptied: it has what
    it generated in its own L2, the rest is in a's, and a decodes."""
    size = stage.sizes.block_tokens
    cuts = {at: max(size + 1, len(stage.prompts[at]) - MOST_DECODED) for at in batch}
    firsts = [stage.prompts[at][: cuts[at]] for at in batch]
    ends = [stage.prompts[at][cuts[at] :] for at in batch]
    stage.prepare(tenant, firsts, "a", "b", forced=ends)
    stage.flush_l1("b")

    def ask(at: int) -> Asked:
        sent, count = cuts[at] // size, stage.usable(at)
        wanted = Source(own=count - sent, peers=sent, held=sent)
        return stage.ask(tenant, at, wanted, "b", "a", fetch=[FetchPiece(0, sent, ("a",))])

    return stage.answers([ask(at) for at in batch])


def after_p_to_d(stage: Stage, tenant: str, batch: Sequence[int]) -> list[Answer]:
    """a prefilled each prompt and becomes a decode node with its KV; b, emptied, prefills it
    again from a's L2 and hands it back to a."""
    stage.prepare(tenant, [stage.prompts[at] for at in batch], "a", "b")
    stage.flush_l1("b")

    def ask(at: int) -> Asked:
        count = stage.usable(at)
        held = len(stage.prompts[at]) // stage.sizes.block_tokens
        piece = FetchPiece(0, count, ("a",))
        return stage.ask(tenant, at, Source(peers=count, held=held), "b", "a", fetch=[piece])

    return stage.answers([ask(at) for at in batch])


def after_eviction(stage: Stage, tenant: str, batch: Sequence[int]) -> list[Answer]:
    """Computed, pushed out of both tiers by others, computed anew."""
    before = len(stage.driver.facts)
    stage.prepare(tenant, [stage.prompts[at] for at in batch], "a")
    stage.flush("a", stage.sizes.l2_blocks + stage.sizes.l1_blocks)
    gone = stage.evicted(before)
    answers = stage.answers([stage.ask(tenant, at, Source(), "a") for at in batch])

    def kept(at: int) -> str:
        _, keys = stage.driver.keys("a", tenant, stage.prompts[at])
        left = [tier for tier in (1, 2) if not set(keys) <= gone[tier]]
        return f"blocks were not evicted from tier {left[0]}" if left else ""

    return [
        msgspec.structs.replace(answer, wrong=answer.wrong or kept(answer.at))
        for answer in answers
    ]


PATHS = (
    Path("one node", one_node, "a"),
    Path("disaggregated", disaggregated, "b"),
    Path("own L2", own_l2, "a"),
    Path("a peer's L2", peers_l2, "b"),
    Path("half L1, half peer", half_and_half, "b"),
    Path("after D->P", after_d_to_p, "a"),
    Path("after P->D", after_p_to_d, "a"),
    Path("after eviction", after_eviction, "a", small=True),
)
"""The first is what the others are compared with."""
