"""Gather, scatter and broadcast in Triton.

Arguments of the launchers are those of evkernels.blocks, already checked. Bytes move as units,
integers of 8, 4, 2 or 1 bytes: the widest that divides every distance, so that neighbouring
units of a thread become loads and stores of 16 bytes where rows are multiples of that.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

UNITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
TILE_UNITS = 1024
"""Moved by one program of gather and scatter; 4 warps, so 64 bytes a thread with units of 8."""
MAX_COLUMNS = 128
MIN_COLUMNS = 8
BROADCAST_UNITS = 2048
WIDE_BYTES = 128
"""Broadcast moves multiples of this: Triton has wide loads where it knows 16 units are whole."""


@triton.jit
def _places(
    slots,
    block_tokens,
    n_layers,
    planes,
    row_units,
    width_units,
    offset_units,
    token_stride,
    layer_stride,
    plane_stride,
    tiles,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Where one tile of one block lies in the pool and in staging, in units, and its mask.

    A tile is TILE pieces of COLUMNS units; a row is cut into pieces, its last one partial unless
    EVEN. One axis of programs, blocks times tiles: the other axes hold 65,535 at most.
    """
    program = tl.program_id(0)
    block = program // tiles
    row_pieces = tl.cdiv(row_units, COLUMNS)
    piece = (program % tiles) * TILE + tl.arange(0, TILE)
    row = piece // row_pieces
    inside = row < block_tokens * n_layers * planes
    # A piece beyond the block must not even have an address outside the pool.
    row = tl.where(inside, row, 0)
    # 64 bits before any product: a layer of a large pool alone passes 2**31 units.
    token = (row // (n_layers * planes)).to(tl.int64)
    layer = (row // planes % n_layers).to(tl.int64)
    plane = (row % planes).to(tl.int64)
    column = (piece % row_pieces)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    slot = tl.load(slots + block)
    in_pool = (slot * block_tokens + token) * token_stride
    in_pool += layer * layer_stride + plane * plane_stride
    in_staging = (block.to(tl.int64) * (block_tokens * n_layers * planes) + row) * width_units
    mask = inside[:, None]
    if not EVEN:
        mask = mask & (column < row_units)
    return in_pool[:, None] + column, in_staging[:, None] + (column + offset_units), mask


@triton.jit
def gather_kernel(
    pool,
    slots,
    staging,
    block_tokens,
    n_layers,
    planes,
    row_units,
    width_units,
    offset_units,
    token_stride,
    layer_stride,
    plane_stride,
    tiles,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    EVEN: tl.constexpr,
):
    """Slots of the pool into this rank's slice of staging. Grid: [blocks * tiles]."""
    in_pool, in_staging, mask = _places(
        slots,
        block_tokens,
        n_layers,
        planes,
        row_units,
        width_units,
        offset_units,
        token_stride,
        layer_stride,
        plane_stride,
        tiles,
        COLUMNS,
        TILE,
        EVEN,
    )
    tl.store(staging + in_staging, tl.load(pool + in_pool, mask=mask), mask=mask)


@triton.jit
def scatter_kernel(
    pool,
    slots,
    staging,
    block_tokens,
    n_layers,
    planes,
    row_units,
    width_units,
    offset_units,
    token_stride,
    layer_stride,
    plane_stride,
    tiles,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    EVEN: tl.constexpr,
):
    """This rank's slice of staging into slots of the pool. Grid: [blocks * tiles]."""
    in_pool, in_staging, mask = _places(
        slots,
        block_tokens,
        n_layers,
        planes,
        row_units,
        width_units,
        offset_units,
        token_stride,
        layer_stride,
        plane_stride,
        tiles,
        COLUMNS,
        TILE,
        EVEN,
    )
    tl.store(pool + in_pool, tl.load(staging + in_staging, mask=mask), mask=mask)


@triton.jit
def broadcast_kernel(source, table, n_destinations, n_units, TILE: tl.constexpr):
    """Each unit is read once and written to every destination. Grid: [ceil(n_units / TILE)]."""
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mask = at < n_units
    units = tl.load(source + at, mask=mask)
    for index in range(n_destinations):
        address = tl.load(table + index)
        # The caller's promise (evkernels.blocks); without it stores would be of 8 bytes.
        destination = tl.multiple_of(address.to(source.dtype), 16)
        tl.store(destination + at, units, mask=mask)


def gather(
    pool: torch.Tensor, slots: torch.Tensor, staging: torch.Tensor, row_offset: int
) -> None:
    _launch(gather_kernel, pool, slots, staging, row_offset)


def scatter(
    pool: torch.Tensor, slots: torch.Tensor, staging: torch.Tensor, row_offset: int
) -> None:
    _launch(scatter_kernel, pool, slots, staging, row_offset)


def broadcast(source: torch.Tensor, destinations: torch.Tensor) -> None:
    data = source.flatten().view(torch.uint8)
    whole = data.numel() // WIDE_BYTES * WIDE_BYTES
    # The few bytes behind take a launch of their own.
    for begin, end, unit_bytes in ((0, whole, 8), (whole, data.numel(), 1)):
        if begin == end:
            continue
        units = data[begin:end].view(UNITS[unit_bytes])
        grid = (triton.cdiv(units.numel(), BROADCAST_UNITS),)
        table = destinations + begin
        with torch.cuda.device_of(source):
            broadcast_kernel[grid](units, table, len(table), units.numel(), TILE=BROADCAST_UNITS)


def columns_for(row_units: int) -> int:
    """Units of a piece: a power of two that divides the row if a sensible one does."""
    dividing = math.gcd(row_units, MAX_COLUMNS)
    if dividing >= MIN_COLUMNS:
        return dividing
    return min(MAX_COLUMNS, triton.next_power_of_2(row_units))


def _launch(
    kernel: triton.JITFunction,
    pool: torch.Tensor,
    slots: torch.Tensor,
    staging: torch.Tensor,
    row_offset: int,
) -> None:
    size = unit_bytes(pool, staging, row_offset)
    offset_units = row_offset * pool.element_size() // size
    pool, staging = pool.view(UNITS[size]), staging.view(UNITS[size])
    n, block_tokens, n_layers, planes, width_units = staging.shape
    row_units = pool.shape[3]
    columns = columns_for(row_units)
    pieces = block_tokens * n_layers * planes * triton.cdiv(row_units, columns)
    tiles = triton.cdiv(pieces, TILE_UNITS // columns)
    # Triton launches on the current device, which need not be the tensors' one.
    with torch.cuda.device_of(pool):
        kernel[(n * tiles,)](
            pool,
            slots,
            staging,
            block_tokens,
            n_layers,
            planes,
            row_units,
            width_units,
            offset_units,
            pool.stride(0),
            pool.stride(1),
            pool.stride(2),
            tiles,
            COLUMNS=columns,
            TILE=TILE_UNITS // columns,
            EVEN=row_units % columns == 0,
        )


def unit_bytes(pool: torch.Tensor, staging: torch.Tensor, row_offset: int) -> int:
    """The widest unit that divides every distance and address, in bytes."""
    elements = (pool.shape[3], *pool.stride()[:3], staging.shape[4], row_offset)
    distances = [count * pool.element_size() for count in elements]
    return math.gcd(8, pool.data_ptr(), staging.data_ptr(), *distances)
