"""Where every token of an iteration lies: built once per batch, used by every layer.

Attention runs over key tiles of TILE_TOKENS at absolute positions, so that no reduction's
length or order depends on the batch, on chunking or on who computed the KV: that is what makes
results bit-equal on every path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from evengine.ports import Batch, Slot

TILE_TOKENS = 256
DECODE_SLICE_TOKENS = 16_384
"""Context tokens gathered at once for decode: bounds the memory of a large batch of long
contexts. Rows do not influence each other, so slicing changes no bit."""
MIN_ROWS = 16
"""Fewest rows of a matrix product; below it BLAS takes other kernels with other rounding."""


@dataclass(frozen=True)
class ChunkPlan:
    """Attention of one prefill chunk: batch rows [first_row, first_row + count).

    gather: pool token rows of all its tiles, [tiles * TILE_TOKENS]. open_tiles: leading tiles
    wholly before the chunk, visible to every query. hidden: [tiles - open_tiles, count, TILE].
    """

    first_row: int
    count: int
    tiles: int
    gather: torch.Tensor
    open_tiles: int
    hidden: torch.Tensor


@dataclass(frozen=True)
class DecodePlan:
    """Attention of all decode rows together, one item per (row, tile).

    Items are ordered so that the last tile of each row, the only one that needs a mask, comes
    at the end. item_row: [items] decode row of each item. item_of: [tiles, rows] item index,
    or `items` (a neutral item) where a row has fewer tiles. hidden: [rows, 1, TILE].
    """

    first_row: int
    count: int
    tiles: int
    gather: torch.Tensor
    item_row: torch.Tensor
    item_of: torch.Tensor
    hidden: torch.Tensor


@dataclass(frozen=True)
class BatchPlan:
    """token_ids, positions: [rows] padded to MIN_ROWS; write: [tokens] pool token rows that
    the first `tokens` rows' KV goes to; sample_rows: rows whose logits are wanted."""

    tokens: int
    token_ids: torch.Tensor
    positions: torch.Tensor
    write: torch.Tensor
    sample_rows: torch.Tensor
    chunks: list[ChunkPlan]
    decodes: list[DecodePlan]


def plan_batch(batch: Batch, block_tokens: int) -> BatchPlan:
    ids: list[int] = []
    positions: list[int] = []
    write: list[np.ndarray] = []
    sample: list[int] = []
    chunks: list[ChunkPlan] = []
    for chunk in batch.chunks:
        end = chunk.start + len(chunk.tokens)
        rows = token_rows(chunk.slots, block_tokens, end)
        chunks.append(_plan_chunk(len(ids), chunk.start, end, rows))
        write.append(rows[chunk.start : end])
        ids.extend(chunk.tokens)
        positions.extend(range(chunk.start, end))
        if chunk.sample:
            sample.append(len(ids) - 1)
    first_decode = len(ids)
    row_tables = []
    for row in batch.rows:
        table = token_rows(row.slots, block_tokens, row.position + 1)
        row_tables.append(table)
        write.append(table[row.position :])
        ids.append(row.token)
        positions.append(row.position)
    sample.extend(range(first_decode, len(ids)))
    tokens = len(ids)
    padding = [0] * max(0, MIN_ROWS - tokens)
    return BatchPlan(
        tokens=tokens,
        token_ids=torch.tensor(ids + padding, dtype=torch.int64),
        positions=torch.tensor(positions + padding, dtype=torch.int64),
        write=torch.from_numpy(np.concatenate(write)),
        sample_rows=torch.tensor(sample, dtype=torch.int64),
        chunks=chunks,
        decodes=_plan_decodes(first_decode, row_tables),
    )


def token_rows(slots: Sequence[Slot], block_tokens: int, tokens: int) -> np.ndarray:
    """Pool token row of positions 0 .. tokens - 1, int64."""
    blocks = -(-tokens // block_tokens)
    starts = np.asarray(slots[:blocks], dtype=np.int64) * block_tokens
    return (starts[:, None] + np.arange(block_tokens, dtype=np.int64)).reshape(-1)[:tokens]


def _tiled(rows: np.ndarray) -> np.ndarray:
    """Pad to whole tiles; what the padding reads is masked, it only has to exist."""
    short = -len(rows) % TILE_TOKENS
    return np.pad(rows, (0, short), mode="edge") if short else rows


def _plan_chunk(first_row: int, start: int, end: int, rows: np.ndarray) -> ChunkPlan:
    tiled = _tiled(rows)
    open_tiles = start // TILE_TOKENS
    keys = torch.arange(open_tiles * TILE_TOKENS, len(tiled)).view(-1, 1, TILE_TOKENS)
    queries = torch.arange(start, end).view(1, -1, 1)
    return ChunkPlan(
        first_row=first_row,
        count=end - start,
        tiles=len(tiled) // TILE_TOKENS,
        gather=torch.from_numpy(tiled),
        open_tiles=open_tiles,
        hidden=keys > queries,
    )


def _plan_decodes(first_row: int, tables: list[np.ndarray]) -> list[DecodePlan]:
    """Consecutive rows in slices of at most DECODE_SLICE_TOKENS, or of one row."""
    plans: list[DecodePlan] = []
    part: list[np.ndarray] = []
    tokens = 0
    for table in tables:
        if part and tokens + len(table) > DECODE_SLICE_TOKENS:
            plans.append(_plan_decode(first_row, part))
            first_row += len(part)
            part, tokens = [], 0
        part.append(table)
        tokens += len(table)
    return [*plans, _plan_decode(first_row, part)] if part else plans


def _plan_decode(first_row: int, tables: list[np.ndarray]) -> DecodePlan:
    tiled = [_tiled(table).reshape(-1, TILE_TOKENS) for table in tables]
    counts = [len(tiles) for tiles in tiled]
    rows = len(tables)
    items = sum(counts)
    gather = np.concatenate([t[:-1] for t in tiled] + [t[-1:] for t in tiled]).reshape(-1)
    item_row = [row for row, count in enumerate(counts) for _ in range(count - 1)]
    item_of = np.full((max(counts), rows), items, dtype=np.int64)
    next_open = 0
    for row, count in enumerate(counts):
        item_of[: count - 1, row] = range(next_open, next_open + count - 1)
        next_open += count - 1
        item_of[count - 1, row] = items - rows + row
    last = torch.tensor([(len(t) - 1) % TILE_TOKENS for t in tables]).view(-1, 1, 1)
    return DecodePlan(
        first_row=first_row,
        count=rows,
        tiles=max(counts),
        gather=torch.from_numpy(gather),
        item_row=torch.tensor(item_row + list(range(rows)), dtype=torch.int64),
        item_of=torch.from_numpy(item_of),
        hidden=torch.arange(TILE_TOKENS).view(1, 1, -1) > last,
    )
