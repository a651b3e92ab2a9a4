"""Whole KV blocks between a rank's pool, staging memory and other ranks, and their checksums.

Shapes (all functions):

- pool `[rows, n_layers, planes, row]`: one rank's L1, rows = slots * block_tokens, slot s at rows
  [s * block_tokens, (s + 1) * block_tokens). Any strides with contiguous rows: a pool that lies
  layer by layer comes in through `layer_major`.
- slots `[n]` int64: which slot each staging block belongs to.
- staging `[n, block_tokens, n_layers, planes, width]`, contiguous: canonical blocks, all KV heads
  of a token side by side. A rank's heads are elements [row_offset, row_offset + row) of each
  row; R ranks with distinct slices fill a block together. Latent KV is the same on every rank:
  row == width, row_offset 0.

Bytes are moved, never interpreted: any dtype. CPU tensors are handled by torch, CUDA tensors by
Triton, queued on the current stream. Pool and staging must not overlap in memory.

Slots, lengths and pointers are always checked where they lie on the CPU. Where they lie on the
GPU, checking waits for the stream; `trusted=True` leaves it out, and then a value out of range
reads or overwrites other memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch

from evkernels import arguments


def layer_major(pool: torch.Tensor) -> torch.Tensor:
    """A pool stored `[n_layers, planes, rows, row]`, seen as `[rows, n_layers, planes, row]`."""
    if pool.dim() != 4:
        raise ValueError(
            f"a layer-major pool has 4 dimensions [n_layers, planes, rows, row], not"
            f" {pool.dim()}: view it as that first"
        )
    return pool.permute(2, 0, 1, 3)


def gather_blocks(
    pool: torch.Tensor,
    slots: torch.Tensor,
    staging: torch.Tensor,
    *,
    row_offset: int = 0,
    trusted: bool = False,
) -> torch.Tensor:
    """Copy slots of the pool into this rank's slice of `staging`; returns `staging`.

    Bytes of staging outside the slice are not touched. A slot may occur several times.
    Raises ValueError on shapes, dtypes, devices or slots that do not fit.
    """
    arguments.check_copy(pool, slots, staging, row_offset)
    if not trusted or slots.device.type == "cpu":
        arguments.check_slots(slots, pool.shape[0] // staging.shape[1])
    if len(slots):
        _block_mover(pool).gather(pool, slots.to(pool.device), staging, row_offset)
    return staging


def scatter_blocks(
    pool: torch.Tensor,
    slots: torch.Tensor,
    staging: torch.Tensor,
    *,
    row_offset: int = 0,
    trusted: bool = False,
) -> None:
    """Copy this rank's slice of `staging` into slots of the pool: the reverse of gather_blocks.

    Slots must be distinct, since which of two blocks would win is undefined. Raises ValueError
    as gather_blocks does.
    """
    arguments.check_copy(pool, slots, staging, row_offset)
    arguments.check_written(pool)
    if not trusted or slots.device.type == "cpu":
        arguments.check_slots(slots, pool.shape[0] // staging.shape[1], distinct=True)
    if len(slots):
        _block_mover(pool).scatter(pool, slots.to(pool.device), staging, row_offset)


def pointer_table(
    destinations: Sequence[torch.Tensor], device: torch.device | str | None = None
) -> torch.Tensor:
    """Addresses of contiguous buffers as an int64 tensor `[R]` for broadcast_bytes.

    device: where the table lies, by default that of the first destination. The caller keeps the
    buffers alive; a table keeps addresses only. Buffers of other processes come in as addresses
    of their opened IPC handles, in a table the caller makes itself.
    """
    if not destinations:
        raise ValueError("a pointer table needs at least one destination")
    for index, tensor in enumerate(destinations):
        arguments.check_contiguous(f"destination {index}", tensor)
    table = torch.tensor([tensor.data_ptr() for tensor in destinations], dtype=torch.int64)
    return table.to(destinations[0].device if device is None else device)


def broadcast_bytes(
    source: torch.Tensor, destinations: torch.Tensor, *, trusted: bool = False
) -> None:
    """Copy all bytes of `source` (contiguous, any dtype) to each address in `destinations`.

    destinations: int64 `[R]` on source's device; each is aligned to 16 bytes, has at least as
    many bytes as source, is writable from this device (a peer's memory over NVLink is) and
    overlaps neither source nor another destination. Capacity cannot be seen from an address:
    the caller vouches for it. A table on the CPU is used by this process, for CPU memory.
    Raises ValueError on null, unaligned or overlapping addresses.
    """
    arguments.check_broadcast(source, destinations)
    if not trusted or destinations.device.type == "cpu":
        arguments.check_addresses(source, destinations)
    if source.numel() and len(destinations):
        _block_mover(source).broadcast(source, destinations)


def checksum_blocks(
    blocks: torch.Tensor, length_bytes: torch.Tensor | None = None, *, trusted: bool = False
) -> torch.Tensor:
    """xxh3-64 (seed 0, default secret) of each block's leading bytes: int64 `[n]` on its device.

    blocks: `[n, ...]` contiguous, any dtype. length_bytes: int64 `[n]`, how many leading bytes
    of each block count, by default all; 241 at least, since xxh3 has other formulas for less.
    The 64 bits equal xxhash.xxh3_64_intdigest, read as signed: `value & (2**64 - 1)` is the
    digest. Raises ValueError on shapes or lengths that do not fit.
    """
    block_bytes = arguments.check_blocks(blocks, length_bytes)
    if length_bytes is None:
        arguments.check_lengths([block_bytes], block_bytes)
        length_bytes = torch.full(
            (len(blocks),), block_bytes, dtype=torch.int64, device=blocks.device
        )
    elif not trusted or length_bytes.device.type == "cpu":
        arguments.check_lengths(length_bytes.tolist(), block_bytes)
    if not len(blocks):
        return torch.empty(0, dtype=torch.int64, device=blocks.device)
    flat = blocks.reshape(len(blocks), -1).view(torch.uint8)
    return _checksummer(blocks).checksum(flat, length_bytes.to(blocks.device))


def _block_mover(tensor: torch.Tensor) -> ModuleType:
    # Triton is loaded by the first call that needs it: engines on CPUs do without.
    if tensor.device.type == "cpu":
        from evkernels import torch_blocks

        return torch_blocks
    from evkernels import triton_blocks

    return triton_blocks


def _checksummer(tensor: torch.Tensor) -> ModuleType:
    if tensor.device.type == "cpu":
        from evkernels import torch_xxh3

        return torch_xxh3
    from evkernels import triton_xxh3

    return triton_xxh3
