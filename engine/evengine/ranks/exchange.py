"""Attention outputs of all ranks, put together in memory that they share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from evengine.models.config import ModelConfig
from evengine.runner.share import HeadShare

HALF_BYTES = 2 << 20
"""Of the two halves: 512 rows of 1,024 numbers at once; what is longer goes in rounds."""
FLOAT_BYTES = 4


def exchange_bytes(config: ModelConfig) -> int:
    """Size of the memory that the ranks of a node share beside L1."""
    row_bytes = FLOAT_BYTES * config.n_heads * max(config.head_dim, config.latent_dim)
    return 2 * max(HALF_BYTES, row_bytes)


class Exchange:
    """One rank's end: writes its heads' columns, meets the others, reads all columns.

    The halves are used in turn, so one meeting a round is enough: who writes to a half again has
    met the others since, and they meet only after they have read it.
    """

    def __init__(
        self,
        memory: memoryview,
        share: HeadShare,
        n_heads: int,
        meet: Callable[[], None],
    ) -> None:
        """meet: returns once all ranks have called it as often as this one."""
        self._halves = torch.frombuffer(memory, dtype=torch.float32).view(2, -1)
        self._turn = 0
        self._share = share
        self._n_heads = n_heads
        self._meet = meet

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        """own: [rows, heads of this rank, dim], as many rows in every rank. Returns
        [rows, n_heads, dim], a copy."""
        rows, _, dim = own.shape
        heads = slice(self._share.q_first, self._share.q_end)
        out = own.new_empty(rows, self._n_heads, dim)
        step = self._halves.shape[1] // (self._n_heads * dim)
        for first in range(0, rows, step):
            part = out[first : first + step]
            whole = self._halves[self._turn][: part.numel()].view(part.shape)
            self._turn = 1 - self._turn
            whole[:, heads] = own[first : first + step]
            self._meet()
            part.copy_(whole)
        return out
