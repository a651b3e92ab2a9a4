"""Forward pass of Llama-shaped models over paged KV, in float32.

Every matrix product has at least MIN_ROWS rows and every reduction a fixed length, so a row's
result is the same bits in any batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from evengine.models.config import ModelConfig
from evengine.runner.attention import Scratch, attend_chunk, attend_decode
from evengine.runner.plan import MIN_ROWS, TILE_TOKENS, BatchPlan
from evengine.runner.share import GatherHeads, HeadShare, own_heads, share_of
from evkernels import gather_rows, scatter_rows

SplitHeads = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Gathered KV rows -> (keys, values), each [tiles, TILE, kv_heads, dim]."""


class Model:
    """One model's weights and forward pass, or what one rank does of it.

    kv: pool memory viewed as [blocks * block_tokens, n_layers, share_elements]. share: the heads
    whose KV is in it and whose attention is computed here; everything else is computed in every
    rank, by the same products, so that no bit depends on the number of ranks.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, torch.Tensor],
        kv: torch.Tensor,
        share: HeadShare | None = None,
        gather_heads: GatherHeads = own_heads,
    ) -> None:
        self.config = config
        self._share = share or share_of(config)
        self._gather_heads = gather_heads
        self._weights = weights
        self._width = kv.shape[-1]
        self._kv_rows = kv.view(-1, self._width)
        self._cos, self._sin = _rope_tables(config)
        self._scale = config.qk_head_dim**-0.5
        self._gathered = Scratch()
        self._scores = Scratch()

    @torch.inference_mode()
    def logits(self, plan: BatchPlan, layers: int | None = None) -> torch.Tensor:
        """Compute the batch, write its KV, return logits [len(plan.sample_rows), vocab].

        layers: run only the first so many (the start-up self-check).
        """
        config, w = self.config, self._weights
        x = F.embedding(plan.token_ids, w["embed"])
        for layer in range(config.n_layers if layers is None else layers):
            normed = self._rms_norm(x, w[f"layers.{layer}.attn_norm"])
            attend = self._latent if config.attention == "latent" else self._grouped_query
            x = x + F.linear(attend(layer, normed, plan), w[f"layers.{layer}.wo"])
            normed = self._rms_norm(x, w[f"layers.{layer}.ffn_norm"])
            gate_up = F.linear(normed, w[f"layers.{layer}.w_gate_up"])
            gate, up = gate_up.split(config.ff_dim, dim=-1)
            x = x + F.linear(F.silu(gate) * up, w[f"layers.{layer}.w_down"])
        wanted = len(plan.sample_rows)
        if not wanted:
            return x.new_empty(0, config.vocab_size)
        rows = self._rms_norm(_pad(x[plan.sample_rows]), w["norm"])
        return F.linear(rows, w["embed"] if config.tied_embedding else w["head"])[:wanted]

    def _grouped_query(self, layer: int, x: torch.Tensor, plan: BatchPlan) -> torch.Tensor:
        c = self.config
        q, k, v = F.linear(x, self._weights[f"layers.{layer}.wqkv"]).split(
            [c.q_dim, c.kv_dim, c.kv_dim], dim=-1
        )
        q = self._rotate(q.view(-1, c.n_heads, c.head_dim), plan.positions)
        k = self._rotate(k.view(-1, c.n_kv_heads, c.head_dim), plan.positions)
        own = slice(self._share.kv_first, self._share.kv_end)
        k, v = k[:, own], v.view(-1, c.n_kv_heads, c.head_dim)[:, own]
        self._store(layer, torch.cat([k.flatten(1), v.flatten(1)], dim=-1), plan)
        q = q.view(-1, c.n_kv_heads, c.n_heads // c.n_kv_heads, c.head_dim)[:, own]

        def split_heads(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            heads = rows.view(-1, TILE_TOKENS, 2, self._share.kv_heads, c.head_dim)
            return heads[:, :, 0], heads[:, :, 1]

        return self._attend(layer, q, plan, split_heads).reshape(x.shape[0], c.attn_out_dim)

    def _latent(self, layer: int, x: torch.Tensor, plan: BatchPlan) -> torch.Tensor:
        """Multi-head latent attention with the key and value projections absorbed."""
        c, w = self.config, self._weights
        q = F.linear(x, w[f"layers.{layer}.wq"]).view(-1, c.n_heads, c.qk_head_dim)
        q_nope, q_rope = q.split([c.nope_dim, c.rope_dim], dim=-1)
        down = F.linear(x, w[f"layers.{layer}.w_kv_down"])
        latent, k_rope = down.split([c.latent_dim, c.rope_dim], dim=-1)
        latent = self._rms_norm(latent.contiguous(), w[f"layers.{layer}.kv_norm"])
        k_rope = self._rotate(k_rope.reshape(-1, 1, c.rope_dim), plan.positions)
        self._store(layer, torch.cat([latent, k_rope.flatten(1)], dim=-1), plan)
        absorbed = torch.bmm(q_nope.transpose(0, 1), w[f"layers.{layer}.w_k_up"])
        q_rope = self._rotate(q_rope, plan.positions)
        query = torch.cat([absorbed.transpose(0, 1), q_rope], dim=-1)
        query = query[:, self._share.q_first : self._share.q_end].unsqueeze(1)

        def split_heads(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            keys = rows.view(-1, TILE_TOKENS, 1, c.latent_dim + c.rope_dim)
            return keys, keys[..., : c.latent_dim]

        mixed = self._attend(layer, query, plan, split_heads)
        up = w[f"layers.{layer}.w_v_up"].transpose(1, 2)
        return torch.bmm(mixed.transpose(0, 1), up).transpose(0, 1).reshape(x.shape[0], -1)

    def _attend(
        self, layer: int, q: torch.Tensor, plan: BatchPlan, split_heads: SplitHeads
    ) -> torch.Tensor:
        """Attention of all rows of the batch: q [rows, kv_heads, group, k_dim], of this rank's
        heads. Returns [rows, n_heads, v_dim], of all."""
        if not self._share.q_heads:  # latent, and more ranks than heads
            none = q.new_empty(plan.tokens, 0, self.config.latent_dim)
            return _pad(self._gather_heads(none))
        outputs = []
        for chunk in plan.chunks:
            k, v = split_heads(self._gather(layer, chunk.gather))
            rows = q[chunk.first_row : chunk.first_row + chunk.count]
            outputs.append(attend_chunk(rows, k, v, chunk, self._scale, self._scores))
        for decode in plan.decodes:
            k, v = split_heads(self._gather(layer, decode.gather))
            rows = q[decode.first_row : decode.first_row + decode.count]
            outputs.append(attend_decode(rows, k, v, decode, self._scale, self._scores))
        return _pad(self._gather_heads(torch.cat(outputs).flatten(1, 2)))

    def _store(self, layer: int, rows: torch.Tensor, plan: BatchPlan) -> None:
        index = plan.write * self.config.n_layers + layer
        scatter_rows(self._kv_rows, index, rows[: plan.tokens])

    def _gather(self, layer: int, token_rows: torch.Tensor) -> torch.Tensor:
        """Dense copy of KV rows, valid until the next one."""
        out = self._gathered.take(len(token_rows), self._width)
        return gather_rows(self._kv_rows, token_rows * self.config.n_layers + layer, out)

    def _rms_norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        mean_square = (x * x).sum(dim=-1, keepdim=True) / x.shape[-1]
        return x * torch.rsqrt(mean_square + self.config.norm_eps) * weight

    def _rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary embedding of x [rows, heads, rotary_dim]."""
        cos = self._cos[positions].unsqueeze(1)
        sin = self._sin[positions].unsqueeze(1)
        if self.config.rope_interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def _rope_tables(config: ModelConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, [context_tokens, rotary_dim / 2]; angles in float64, then rounded."""
    half = config.rotary_dim // 2
    frequency = config.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(config.context_tokens, dtype=torch.float64), frequency)
    return angles.cos().float(), angles.sin().float()


def _pad(x: torch.Tensor) -> torch.Tensor:
    """Zero rows appended up to MIN_ROWS."""
    short = MIN_ROWS - x.shape[0]
    return torch.cat([x, x.new_zeros(short, *x.shape[1:])]) if short > 0 else x
