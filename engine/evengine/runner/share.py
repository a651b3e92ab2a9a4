"""Which heads of a model one of several ranks attends."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import torch

from evctl.core.errors import ConfigError
from evctl.core.kv import KvLayout
from evengine.models.config import ModelConfig

GatherHeads = Callable[[torch.Tensor], torch.Tensor]
"""This rank's attention output [rows, its query heads, dim] -> all ranks' [rows, n_heads, dim],
the same bits. Called by all ranks, layer after layer."""


class HeadShare(msgspec.Struct, frozen=True):
    """Heads [kv_first, kv_end) and [q_first, q_end) of a model, and KV for the former only.

    Grouped queries go with the KV head that they read. Latent KV is one head that all queries
    read: then every rank keeps it, and the query heads divide as evenly as they can; a rank
    beyond their number has none.
    """

    rank: int
    ranks: int
    kv_first: int
    kv_end: int
    q_first: int
    q_end: int

    @property
    def kv_heads(self) -> int:
        return self.kv_end - self.kv_first

    @property
    def q_heads(self) -> int:
        return self.q_end - self.q_first


def share_of(config: ModelConfig, rank: int = 0, ranks: int = 1) -> HeadShare:
    """Raises ConfigError EV-2011 where the ranks do not divide the KV heads."""
    if config.attention == "latent":
        heads = config.n_heads
        first, end = rank * heads // ranks, (rank + 1) * heads // ranks
        return HeadShare(rank, ranks, 0, 1, first, end)
    if config.n_kv_heads % ranks:
        raise ConfigError(
            what=f"{config.name} does not run on {ranks} ranks",
            why=f"its {config.n_kv_heads} KV heads do not divide over {ranks}",
            next_step=f"set ranks to a divisor of {config.n_kv_heads}",
            code="EV-2011",
        )
    each, group = config.n_kv_heads // ranks, config.n_heads // config.n_kv_heads
    first, end = rank * each, (rank + 1) * each
    return HeadShare(rank, ranks, first, end, first * group, end * group)


def share_elements(config: ModelConfig, layout: KvLayout, share: HeadShare) -> int:
    """Numbers that a rank caches for a token and layer, all planes."""
    return layout.planes * layout.row_elements * share.kv_heads // config.n_kv_heads


def own_heads(own: torch.Tensor) -> torch.Tensor:
    """GatherHeads of a node of one rank."""
    return own
