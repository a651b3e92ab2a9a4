"""Gather and scatter of whole blocks: against loops over bytes, and over changes of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evkernels import gather_blocks, gather_rows, layer_major, scatter_blocks, scatter_rows
from tests.kernels.shapes import Shape, copied, random, raw, same_bytes, shapes

RANKS = st.sampled_from((1, 2, 4))


@given(shapes(), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_gather_fills_its_slice_and_nothing_else(shape: Shape, before: int, behind: int) -> None:
    pool, slots = shape.pool(), shape.index()
    staging = shape.staging(before + shape.row + behind, seed=shape.seed + 1)
    expected, pool_before = copied(pool, shape.slots, staging, before), raw(pool)
    assert gather_blocks(pool, slots, staging, row_offset=before) is staging
    assert raw(staging) == expected
    assert raw(pool) == pool_before


@given(shapes(), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_scatter_writes_the_slots_named_and_no_other(
    shape: Shape, before: int, behind: int
) -> None:
    pool, slots = shape.pool(), shape.index()
    staging = shape.staging(before + shape.row + behind, seed=shape.seed + 1)
    untouched = [slot for slot in range(shape.n_slots) if slot not in shape.slots]
    rows = pool.unflatten(0, (shape.n_slots, shape.block_tokens))
    others, staging_before = raw(rows[untouched]), raw(staging)
    scatter_blocks(pool, slots, staging, row_offset=before)
    # Judged by the loop that judges gather: read back, the slots give what staging had.
    blank = torch.zeros_like(staging)
    mine = staging[..., before : before + shape.row]
    blank[..., before : before + shape.row] = mine
    assert copied(pool, shape.slots, torch.zeros_like(staging), before) == raw(blank)
    assert raw(rows[untouched]) == others
    assert raw(staging) == staging_before


@given(shapes(rows=(4, 8, 64)), RANKS, RANKS, st.booleans())
@settings(max_examples=60, deadline=None)
def test_blocks_are_the_same_for_any_number_of_ranks(
    shape: Shape, ranks: int, other_ranks: int, other_layer_major: bool
) -> None:
    """R ranks fill a block together; R' ranks take it apart and give it back unchanged."""
    canonical = shape.staging(shape.row, seed=shape.seed)
    first = _pools(shape, ranks, shape.is_layer_major)
    _each_rank(scatter_blocks, first, shape.index(), canonical)
    between = _each_rank(gather_blocks, first, shape.index(), torch.zeros_like(canonical))
    assert same_bytes(between, canonical)
    second = _pools(shape, other_ranks, other_layer_major)
    elsewhere = torch.arange(len(shape.slots)).flip(0)
    _each_rank(scatter_blocks, second, elsewhere, between)
    last = _each_rank(gather_blocks, second, elsewhere, torch.zeros_like(canonical))
    assert same_bytes(last, canonical)


def _pools(shape: Shape, ranks: int, is_layer_major: bool) -> list[torch.Tensor]:
    mine = shape._replace(row=shape.row // ranks, is_layer_major=is_layer_major)
    return [mine.pool(seed=rank) for rank in range(ranks)]


def _each_rank(
    move: Callable[..., Any],
    pools: list[torch.Tensor],
    slots: torch.Tensor,
    staging: torch.Tensor,
) -> torch.Tensor:
    for rank, pool in enumerate(pools):
        move(pool, slots, staging, row_offset=rank * pool.shape[3])
    return staging


@given(shapes(), RANKS)
@settings(max_examples=30, deadline=None)
def test_latent_blocks_are_whole_on_every_rank(shape: Shape, ranks: int) -> None:
    canonical = shape.staging(shape.row, seed=shape.seed)
    for rank in range(ranks):
        pool = shape.pool(seed=rank)
        scatter_blocks(pool, shape.index(), canonical)
        assert same_bytes(
            gather_blocks(pool, shape.index(), torch.zeros_like(canonical)), canonical
        )


def test_a_slot_may_be_gathered_twice() -> None:
    pool = random((4, 1, 1, 2), torch.uint8, 0)
    staging = torch.zeros(2, 2, 1, 1, 2, dtype=torch.uint8)
    gather_blocks(pool, torch.tensor([1, 1]), staging)
    assert staging[0].tolist() == staging[1].tolist() == pool[2:].tolist()


def test_layer_major_is_a_view() -> None:
    pool = torch.zeros(2, 1, 6, 4)
    layer_major(pool)[5, 1, 0, 3] = 1
    assert pool[1, 0, 5, 3] == 1
    assert pool.sum() == 1


@given(st.integers(1, 8), st.integers(1, 5), st.integers(0, 1 << 30))
@settings(max_examples=30, deadline=None)
def test_rows_move_bit_by_bit(rows: int, width: int, seed: int) -> None:
    pool = random((rows, width), torch.float32, seed)
    index = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    out = gather_rows(pool, index, torch.empty_like(pool))
    assert [raw(row) for row in out] == [raw(pool[i]) for i in index.tolist()]
    back = torch.zeros_like(pool)
    scatter_rows(back, index, out)
    assert same_bytes(back, pool)


POOL = torch.zeros(8, 2, 2, 4)
STAGING = torch.zeros(2, 4, 2, 2, 8)
SLOTS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((POOL[0], SLOTS, STAGING, 0), "pool must be"),
        ((POOL, SLOTS, STAGING[0], 0), "pool must be"),
        ((POOL, SLOTS, STAGING.double(), 0), "must have the pool's dtype"),
        ((POOL, SLOTS, STAGING.transpose(1, 2), 0), "staging must be contiguous"),
        ((POOL.transpose(2, 3), SLOTS, STAGING, 0), "last dimension must be contiguous"),
        ((POOL[:, :1], SLOTS, STAGING, 0), "1 layers of 2 planes, staging 2 of 2"),
        ((POOL[:, :, :1], SLOTS, STAGING, 0), "2 layers of 1 planes"),
        ((POOL[:7], SLOTS, STAGING, 0), "no whole number of blocks of 4 tokens"),
        ((POOL, SLOTS, STAGING, 5), "it must be 0 to 4"),
        ((POOL, SLOTS, STAGING, -1), "it must be 0 to 4"),
        ((POOL, SLOTS, STAGING[..., :3].contiguous(), 0), "it must be 0 to -1"),
        ((POOL, SLOTS.int(), STAGING, 0), "slots must be a contiguous int64 vector"),
        ((POOL, SLOTS[:1], STAGING, 0), "1 slots for 2 blocks"),
        ((POOL, torch.tensor([0, 2]), STAGING, 0), "slot 2 is outside the pool"),
        ((POOL, torch.tensor([-1, 0]), STAGING, 0), "slot -1 is outside the pool"),
        ((POOL.to("meta"), SLOTS, STAGING.to("meta"), 0), "lies on meta"),
    ],
)
@pytest.mark.parametrize("move", [gather_blocks, scatter_blocks])
def test_what_does_not_fit_is_refused(
    move: Callable[..., Any], arguments: tuple[Any, ...], says: str
) -> None:
    pool, slots, staging, row_offset = arguments
    with pytest.raises(ValueError, match=says):
        move(pool, slots, staging, row_offset=row_offset, trusted=True)


def test_scatter_refuses_what_has_no_one_result() -> None:
    with pytest.raises(ValueError, match="occurs twice"):
        scatter_blocks(POOL, torch.tensor([1, 1]), STAGING)
    with pytest.raises(ValueError, match="expanded"):
        scatter_blocks(POOL[:1].expand(8, 2, 2, 4), SLOTS, STAGING)


def test_layer_major_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match="4 dimensions"):
        layer_major(torch.zeros(2, 3))
