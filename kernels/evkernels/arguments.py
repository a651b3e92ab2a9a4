"""Checks of what callers hand in: what is wrong, and what to hand in instead."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

DEVICES = ("cpu", "cuda")
POINTER_ALIGNMENT_BYTES = 16
"""Of broadcast's source and destinations: its widest load and store."""
MIN_CHECKSUM_BYTES = 241
"""xxh3 computes up to 240 bytes by other formulas, which no KV block needs."""


def check_copy(
    pool: torch.Tensor, slots: torch.Tensor, staging: torch.Tensor, row_offset: int
) -> None:
    """Shapes, dtypes and devices of a gather or scatter (shapes: evkernels.blocks)."""
    _check_device("pool", pool)
    if pool.dim() != 4 or staging.dim() != 5:
        raise ValueError(
            "pool must be [rows, n_layers, planes, row] and staging"
            f" [n, block_tokens, n_layers, planes, width], not {list(pool.shape)} and"
            f" {list(staging.shape)}: view them as that"
        )
    if staging.dtype != pool.dtype or staging.device != pool.device:
        raise ValueError(
            f"staging ({staging.dtype} on {staging.device}) must have the pool's dtype and device"
            f" ({pool.dtype} on {pool.device}); to move bytes of another dtype, view them as it"
        )
    check_contiguous("staging", staging)
    if pool.shape[3] > 1 and pool.stride(3) != 1:
        raise ValueError("the pool's last dimension must be contiguous: permute the others only")
    _check_geometry(pool, staging, row_offset)
    _check_index("slots", slots, staging.shape[0], pool.device)


def _check_geometry(pool: torch.Tensor, staging: torch.Tensor, row_offset: int) -> None:
    rows, n_layers, planes, row = pool.shape
    _, block_tokens, staging_layers, staging_planes, width = staging.shape
    if min(n_layers, planes, row, block_tokens) < 1:
        raise ValueError("pool and staging must have at least one layer, plane, element and token")
    if (n_layers, planes) != (staging_layers, staging_planes):
        raise ValueError(
            f"the pool has {n_layers} layers of {planes} planes, staging {staging_layers} of"
            f" {staging_planes}: both must be of one model"
        )
    if rows % block_tokens:
        raise ValueError(
            f"the pool's {rows} rows are no whole number of blocks of {block_tokens} tokens:"
            " cut the pool to whole slots"
        )
    if not 0 <= row_offset <= width - row:
        raise ValueError(
            f"row_offset {row_offset} puts {row} elements outside staging rows of {width}:"
            f" it must be 0 to {width - row}"
        )


def check_written(pool: torch.Tensor) -> None:
    """No element of the pool may stand for several, as in an expanded tensor."""
    if any(
        stride == 0 and size > 1 for stride, size in zip(pool.stride(), pool.shape, strict=True)
    ):
        raise ValueError("the pool is an expanded tensor: scatter needs memory of its own")


def check_slots(slots: torch.Tensor, n_slots: int, *, distinct: bool = False) -> None:
    """Values of `slots`; reads them back if they lie on a GPU."""
    values = slots.tolist()
    outside = [slot for slot in values if not 0 <= slot < n_slots]
    if outside:
        raise ValueError(
            f"slot {outside[0]} is outside the pool: it has {n_slots} slots, 0 to {n_slots - 1}"
        )
    if distinct and len(set(values)) != len(values):
        raise ValueError("a slot occurs twice in a scatter: give each block a slot of its own")


def check_broadcast(source: torch.Tensor, destinations: torch.Tensor) -> None:
    """Shape, dtype and device of broadcast's table."""
    _check_device("source", source)
    check_contiguous("source", source)
    _check_index("destinations", destinations, None, source.device)
    if destinations.device != source.device:
        raise ValueError(
            f"the table lies on {destinations.device}, source on {source.device}:"
            " move the table there"
        )


def check_addresses(source: torch.Tensor, destinations: torch.Tensor) -> None:
    """Values of a pointer table; reads them back if they lie on a GPU."""
    n_bytes = source.numel() * source.element_size()
    begins = destinations.tolist()
    for address in (source.data_ptr(), *begins):
        if address == 0 and n_bytes:
            raise ValueError("a null address in a broadcast: open every rank's buffer first")
        if address % POINTER_ALIGNMENT_BYTES:
            raise ValueError(
                f"address {address:#x} is not aligned to {POINTER_ALIGNMENT_BYTES} bytes:"
                " start buffers where they are"
            )
    ordered = sorted((source.data_ptr(), *begins))
    for first, second in itertools.pairwise(ordered):
        if second - first < n_bytes:
            raise ValueError(
                f"buffers at {first:#x} and {second:#x} overlap for {n_bytes} bytes:"
                " give each rank its own"
            )


def check_blocks(blocks: torch.Tensor, length_bytes: torch.Tensor | None) -> int:
    """Shape of blocks to checksum; returns the bytes of one block."""
    _check_device("blocks", blocks)
    if blocks.dim() < 2:
        raise ValueError(f"blocks must be [n, ...], not {list(blocks.shape)}: add a dimension")
    check_contiguous("blocks", blocks)
    if length_bytes is not None:
        _check_index("length_bytes", length_bytes, len(blocks), blocks.device)
    elements = 1
    for size in blocks.shape[1:]:
        elements *= size
    return elements * blocks.element_size()


def check_lengths(lengths: Sequence[int], block_bytes: int) -> None:
    """How many bytes of blocks of `block_bytes` are to be hashed."""
    for length in lengths:
        if not MIN_CHECKSUM_BYTES <= length <= block_bytes:
            raise ValueError(
                f"{length} bytes of a block of {block_bytes}: a checksum here is of"
                f" {MIN_CHECKSUM_BYTES} bytes to the whole block; hash less on the host"
            )


def check_contiguous(name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous; its strides are {tensor.stride()}")


def _check_device(name: str, tensor: torch.Tensor) -> None:
    if tensor.device.type not in DEVICES:
        raise ValueError(f"{name} lies on {tensor.device}; these functions know {DEVICES}")


def _check_index(name: str, index: torch.Tensor, length: int | None, device: torch.device) -> None:
    """An int64 vector on the CPU or on `device`."""
    if index.dtype != torch.int64 or index.dim() != 1 or not index.is_contiguous():
        raise ValueError(
            f"{name} must be a contiguous int64 vector, not {index.dtype} of shape"
            f" {list(index.shape)}"
        )
    if length is not None and len(index) != length:
        raise ValueError(f"{len(index)} {name} for {length} blocks: give one for each")
    if index.device not in (torch.device("cpu"), device):
        raise ValueError(f"{name} lies on {index.device}: put it on the CPU or on {device}")
