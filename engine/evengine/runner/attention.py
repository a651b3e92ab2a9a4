"""Exact attention over key tiles: partial results per tile, combined in a fixed order."""

from __future__ import annotations

import math

import torch

from evengine.runner.plan import MIN_ROWS, ChunkPlan, DecodePlan

MASKED = -1.0e30
"""Score of an invisible key. Finite, so that a wholly masked tile has weight exactly 0."""
SLICE_ELEMENTS = 1 << 19
"""Scores computed at once: few enough to stay in cache, in memory that is reused, since fresh
memory costs a page fault for every 4 KiB. Rows do not influence each other, so slicing changes
no bit."""


class Scratch:
    """Reusable float32 memory, grown to the largest use."""

    def __init__(self) -> None:
        self._flat = torch.empty(0)

    def take(self, *shape: int) -> torch.Tensor:
        """A tensor of `shape` with arbitrary contents, valid until the next take."""
        wanted = math.prod(shape)
        if self._flat.numel() < wanted:
            self._flat = torch.empty(wanted)
        return self._flat[:wanted].view(shape)


def attend_chunk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: ChunkPlan,
    scale: float,
    scratch: Scratch,
) -> torch.Tensor:
    """Causal attention of one chunk.

    q: [count, kv_heads, group, k_dim]; k, v: [tiles, TILE, kv_heads, dim], any row stride.
    Returns [count, kv_heads, group, v_dim].
    """
    count, kv_heads, group, _ = q.shape
    tiles, tile_tokens = k.shape[0], k.shape[1]
    out = q.new_empty(count, kv_heads, group, v.shape[-1])
    step = max(MIN_ROWS, SLICE_ELEMENTS // (tiles * tile_tokens * group))
    for first in range(0, count, step):
        part = slice(first, min(count, first + step))
        used = (part.stop - part.start) * group
        hidden = _pad_mask(plan.hidden[:, part].repeat_interleave(group, dim=1))
        for head in range(kv_heads):
            rows = _pad_rows(q[part, head].reshape(1, -1, q.shape[-1]))
            weights, values = _partials(
                rows.expand(tiles, -1, -1),
                k[:, :, head],
                v[:, :, head],
                plan.open_tiles,
                hidden,
                scale,
                scratch,
            )
            combined = _combine(weights, values)
            out[part, head] = combined[:used].view(-1, group, v.shape[-1])
    return out


def attend_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: DecodePlan,
    scale: float,
    scratch: Scratch,
) -> torch.Tensor:
    """Attention of all decode rows: q [count, kv_heads, group, k_dim], k and v
    [items, TILE, kv_heads, dim]. Returns [count, kv_heads, group, v_dim]."""
    count, kv_heads, group, _ = q.shape
    items = k.shape[0]
    padded = _pad_rows(q.transpose(1, 2).reshape(count, group, -1))
    padded = padded.view(count, -1, kv_heads, q.shape[-1])[plan.item_row]
    rows = padded.shape[1]
    out = q.new_empty(count, kv_heads, group, v.shape[-1])
    for head in range(kv_heads):
        (top, total), values = _partials(
            padded[:, :, head].contiguous(),
            k[:, :, head],
            v[:, :, head],
            items - count,
            plan.hidden,
            scale,
            scratch,
        )
        # one neutral item at the end stands in for the tiles that a shorter row lacks
        top = torch.cat([top, top.new_full((1, rows, 1), MASKED)])[plan.item_of]
        total = torch.cat([total, total.new_zeros(1, rows, 1)])[plan.item_of]
        values = torch.cat([values, values.new_zeros(1, rows, v.shape[-1])])[plan.item_of]
        combined = _combine((top, total), values)
        out[:, head] = combined[:, :group]
    return out


def _partials(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    open_items: int,
    hidden: torch.Tensor,
    scale: float,
    scratch: Scratch,
) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Softmax pieces per item: ((largest score, sum of exp), exp-weighted values).

    The first `open_items` items see all their keys, the rest not those that are `hidden`.
    """
    scores = scratch.take(q.shape[0], q.shape[1], k.shape[1])
    torch.bmm(q, k.transpose(1, 2), out=scores).mul_(scale)
    scores[open_items:].masked_fill_(hidden, MASKED)
    top = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(top).exp_()
    return (top, weights.sum(dim=-1, keepdim=True)), torch.bmm(weights, v)


def _combine(weights: tuple[torch.Tensor, torch.Tensor], values: torch.Tensor) -> torch.Tensor:
    """Merge partials along dim 0, first tile first. A loop, because a library sum over tiles
    would pick its order by their number."""
    top, total = weights
    factor = (top - top.amax(dim=0, keepdim=True)).exp_()
    numerator = values[0] * factor[0]
    denominator = total[0] * factor[0]
    for tile in range(1, values.shape[0]):
        numerator = numerator + values[tile] * factor[tile]
        denominator = denominator + total[tile] * factor[tile]
    return numerator / denominator


def _pad_rows(x: torch.Tensor) -> torch.Tensor:
    """Zero-pad dim 1 to MIN_ROWS."""
    short = MIN_ROWS - x.shape[1]
    return torch.nn.functional.pad(x, (0, 0, 0, short)) if short > 0 else x


def _pad_mask(mask: torch.Tensor) -> torch.Tensor:
    short = MIN_ROWS - mask.shape[1]
    return torch.nn.functional.pad(mask, (0, 0, 0, short)) if short > 0 else mask
