"""Gather, scatter and broadcast in torch, for CPU tensors: what Triton's must equal.

Arguments are those of evkernels.blocks, already checked.
"""

from __future__ import annotations

import ctypes

import torch


def gather(
    pool: torch.Tensor, slots: torch.Tensor, staging: torch.Tensor, row_offset: int
) -> None:
    by_slot = _by_slot(pool, staging.shape[1])
    if _is_whole(pool, staging):
        # One call for all blocks: with blocks of few KB a call each would cost more than bytes.
        torch.index_select(by_slot.flatten(1), 0, slots, out=staging.flatten(1))
        return
    mine = staging.narrow(-1, row_offset, pool.shape[-1])
    for index, slot in enumerate(slots.tolist()):
        mine[index].copy_(by_slot[slot])


def scatter(
    pool: torch.Tensor, slots: torch.Tensor, staging: torch.Tensor, row_offset: int
) -> None:
    by_slot = _by_slot(pool, staging.shape[1])
    if _is_whole(pool, staging):
        by_slot.flatten(1).index_copy_(0, slots, staging.flatten(1))
        return
    mine = staging.narrow(-1, row_offset, pool.shape[-1])
    for index, slot in enumerate(slots.tolist()):
        by_slot[slot].copy_(mine[index])


def broadcast(source: torch.Tensor, destinations: torch.Tensor) -> None:
    for address in destinations.tolist():
        ctypes.memmove(address, source.data_ptr(), source.numel() * source.element_size())


def _by_slot(pool: torch.Tensor, block_tokens: int) -> torch.Tensor:
    """The pool as [slots, block_tokens, n_layers, planes, row], no copy whatever its strides."""
    return pool.unflatten(0, (pool.shape[0] // block_tokens, block_tokens))


def _is_whole(pool: torch.Tensor, staging: torch.Tensor) -> bool:
    """Whether a slot is one contiguous piece, the same bytes as the canonical block."""
    return pool.shape[-1] == staging.shape[-1] and pool.is_contiguous()
