"""Gather and scatter of token rows between paged KV memory and dense tensors (torch)."""

from __future__ import annotations

import torch


def gather_rows(pool: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Copy rows `index` [n] (int64) of `pool` [rows, width] into `out` [n, width]."""
    return torch.index_select(pool, 0, index, out=out)


def scatter_rows(pool: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> None:
    """Write `values` [n, width] to rows `index` [n] (int64, distinct) of `pool` in place."""
    pool.index_copy_(0, index, values)
