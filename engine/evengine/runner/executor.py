"""The torch executor: ports.Executor over runner.Model."""

from __future__ import annotations

from dataclasses import replace

import torch

from evctl.core.kv import KvLayout
from evengine.models.config import ModelConfig
from evengine.ports import Batch, Sampled
from evengine.runner.model import Model
from evengine.runner.plan import TILE_TOKENS, plan_batch
from evengine.runner.sampling import sample
from evengine.runner.share import GatherHeads, HeadShare, own_heads, share_elements, share_of


def kv_layout(config: ModelConfig, block_tokens: int) -> KvLayout:
    """Geometry of a model's KV. Raises ValueError if blocks do not divide a tile."""
    if block_tokens < 1 or TILE_TOKENS % block_tokens:
        raise ValueError(f"block_tokens must divide {TILE_TOKENS}, not be {block_tokens}")
    planes = 1 if config.attention == "latent" else 2
    return KvLayout(
        n_layers=config.n_layers,
        planes=planes,
        row_elements=config.kv_row_floats // planes,
        dtype="float32",
        block_tokens=block_tokens,
    )


class TorchExecutor:
    """Runs iterations over L1 memory `kv_memory`, a writable buffer of whole blocks, or of the
    parts of blocks that belong to `share`."""

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, torch.Tensor],
        kv_memory: memoryview,
        block_tokens: int,
        share: HeadShare | None = None,
        gather_heads: GatherHeads = own_heads,
    ) -> None:
        self.layout = kv_layout(config, block_tokens)
        self.context_tokens = config.context_tokens
        self.vocab_size = config.vocab_size
        share = share or share_of(config)
        pool = torch.frombuffer(kv_memory, dtype=torch.float32)
        width = share_elements(config, self.layout, share)
        rows = pool.view(-1, self.layout.n_layers, width)
        self.model = Model(config, weights, rows, share, gather_heads)

    def run(self, batch: Batch) -> Sampled:
        plan = plan_batch(batch, self.layout.block_tokens)
        return sample(self.model.logits(plan), list(batch.draws))

    def compute(self, batch: Batch) -> None:
        """As run, without choosing tokens: for a rank whose lead does that."""
        plan = plan_batch(batch, self.layout.block_tokens)
        self.model.logits(replace(plan, sample_rows=plan.sample_rows[:0]))
