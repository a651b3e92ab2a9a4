"""The naive model: a plain forward over a whole sequence, the thing others are compared with.

No pages, no batch, no cache: every call recomputes every position, in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from evengine.models.config import ModelConfig
from evengine.models.layout import gate_up_splits, qkv_splits

Weights = Mapping[str, Tensor]


@torch.inference_mode()
def forward(config: ModelConfig, weights: Weights, token_ids: Sequence[int]) -> Tensor:
    """Logits [tokens, vocab] of one sequence, from position 0."""
    x = weights["embed"][torch.tensor(list(token_ids), dtype=torch.long)]
    for layer in range(config.n_layers):
        prefix = f"layers.{layer}."
        own = {n.removeprefix(prefix): t for n, t in weights.items() if n.startswith(prefix)}
        attend = gqa_attention if config.attention == "gqa" else latent_attention
        x = x + attend(config, own, rms_norm(x, own["attn_norm"], config.norm_eps))
        x = x + feed_forward(config, own, rms_norm(x, own["ffn_norm"], config.norm_eps))
    head = weights["embed"] if config.tied_embedding else weights["head"]
    return rms_norm(x, weights["norm"], config.norm_eps) @ head.T


def greedy(
    config: ModelConfig, weights: Weights, prompt_ids: Sequence[int], max_tokens: int
) -> list[int]:
    """The most likely continuation, token by token; ends after one of the eos ids."""
    token_ids = list(prompt_ids)
    while len(token_ids) - len(prompt_ids) < max_tokens:
        token_ids.append(int(forward(config, weights, token_ids)[-1].argmax()))
        if token_ids[-1] in config.eos_ids:
            break
    return token_ids[len(prompt_ids) :]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., dim] scaled to unit root mean square, times weight [dim]."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def feed_forward(config: ModelConfig, own: Weights, x: Tensor) -> Tensor:
    """SwiGLU: x [tokens, hidden] -> [tokens, hidden]."""
    gate, up = (x @ own["w_gate_up"].T).split(gate_up_splits(config), dim=-1)
    return (silu(gate) * up) @ own["w_down"].T


def rotate(config: ModelConfig, x: Tensor) -> Tensor:
    """Rotary embedding of x [tokens, heads, rotary_dim], token i being at position i."""
    n_pairs = config.rotary_dim // 2
    frequencies = config.rope_theta ** (-torch.arange(n_pairs, dtype=torch.float64) / n_pairs)
    positions = torch.arange(x.shape[0], dtype=torch.float64)
    angles = (positions[:, None] * frequencies)[:, None, :]
    cos, sin = angles.cos().float(), angles.sin().float()
    if config.rope_interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x[..., :n_pairs], x[..., n_pairs:]
    turned = (first * cos - second * sin, first * sin + second * cos)
    if config.rope_interleaved:
        return torch.stack(turned, dim=-1).flatten(-2)
    return torch.cat(turned, dim=-1)


def causal_attention(scores: Tensor, values: Tensor) -> Tensor:
    """scores [heads, tokens, tokens], values [heads, tokens, dim] -> [tokens, heads * dim]."""
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    return (weights @ values).transpose(0, 1).flatten(1)


def gqa_attention(config: ModelConfig, own: Weights, x: Tensor) -> Tensor:
    """Grouped-query attention: query head h reads KV head h // (n_heads / n_kv_heads)."""
    n_tokens, group = x.shape[0], config.n_heads // config.n_kv_heads
    q, k, v = (x @ own["wqkv"].T).split(qkv_splits(config), dim=-1)
    q = rotate(config, q.view(n_tokens, config.n_heads, config.head_dim))
    k = rotate(config, k.view(n_tokens, config.n_kv_heads, config.head_dim))
    v = v.view(n_tokens, config.n_kv_heads, config.head_dim)
    k, v = (t.repeat_interleave(group, dim=1).transpose(0, 1) for t in (k, v))
    scores = q.transpose(0, 1) @ k.transpose(1, 2) * config.qk_head_dim**-0.5
    return causal_attention(scores, v) @ own["wo"].T


def latent_rows(config: ModelConfig, own: Weights, x: Tensor) -> tuple[Tensor, Tensor]:
    """What latent attention caches: normed latent [tokens, r], rotated key [tokens, dr]."""
    latent, k_rope = (x @ own["w_kv_down"].T).split([config.latent_dim, config.rope_dim], dim=-1)
    return (
        rms_norm(latent, own["kv_norm"], config.norm_eps),
        rotate(config, k_rope[:, None, :])[:, 0],
    )


def latent_attention(config: ModelConfig, own: Weights, x: Tensor) -> Tensor:
    """MLA, unabsorbed: keys and values are expanded from the latent for every head."""
    q = (x @ own["wq"].T).view(x.shape[0], config.n_heads, config.qk_head_dim)
    q_nope, q_rope = q.split([config.nope_dim, config.rope_dim], dim=-1)
    q_rope = rotate(config, q_rope)
    latent, k_rope = latent_rows(config, own, x)
    k_nope = torch.einsum("tr,hnr->htn", latent, own["w_k_up"])
    values = torch.einsum("tr,hvr->htv", latent, own["w_v_up"])
    scores = torch.einsum("thn,hsn->hts", q_nope, k_nope)
    scores = scores + torch.einsum("thd,sd->hts", q_rope, k_rope)
    return causal_attention(scores * config.qk_head_dim**-0.5, values) @ own["wo"].T
