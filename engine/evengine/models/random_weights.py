"""Seeded-random weights: identical on every machine, and made to be hard to satisfy by luck.

A plain small init gives near-uniform attention and a next token that follows from the last
one alone, so a test that compares tokens would pass with wrong KV. The scales below make
attention pick out few positions, and let it weigh as much as the residual stream.
"""

from __future__ import annotations

from hashlib import blake2b
from math import prod, sqrt

import numpy as np

from evengine.models.config import ModelConfig
from evengine.models.layout import Floats, Shape

# Standard deviation of an attention score (before softmax) and of a logit.
SCORE_STD = 3.0
LOGIT_STD = 4.0
# What attention and the feed-forward add to the residual stream, per unit of normed input.
ATTENTION_GAIN = 1.5
FEED_FORWARD_INPUT_STD = 1.5
FEED_FORWARD_GAIN = 1.0
NORM_SPREAD = 0.1


def random_tensor(config: ModelConfig, seed: int, name: str, shape: Shape) -> list[Floats]:
    """One canonical tensor of a random model, as consecutive rows.

    Every part of a fused tensor has a stream of its own, named after the part.
    """
    kind = name.rpartition(".")[2]
    if kind in ("attn_norm", "ffn_norm", "kv_norm", "norm"):
        return [1.0 + _uniform(seed, name, shape, NORM_SPREAD)]
    if kind == "wqkv":
        stds = _qkv_stds(config)
        return [
            _uniform(seed, f"{name}.{part}", (rows, shape[1]), std) for part, rows, std in stds
        ]
    if kind == "w_kv_down":
        latent = _uniform(seed, name + ".latent", (config.latent_dim, shape[1]), 1.0)
        rope_std = sqrt(SCORE_STD / shape[1])
        return [latent, _uniform(seed, name + ".rope", (config.rope_dim, shape[1]), rope_std)]
    return [_uniform(seed, name, shape, _linear_std(kind, shape))]


def _qkv_stds(config: ModelConfig) -> list[tuple[str, int, float]]:
    score_std = sqrt(SCORE_STD / config.hidden_dim)
    return [
        ("q", config.q_dim, score_std),
        ("k", config.kv_dim, score_std),
        ("v", config.kv_dim, sqrt(1.0 / config.hidden_dim)),
    ]


def _linear_std(kind: str, shape: Shape) -> float:
    """Standard deviation of the entries of a linear, from the size its output should have."""
    output_std = {
        "embed": sqrt(shape[-1]),
        "head": LOGIT_STD,
        "wq": sqrt(SCORE_STD),
        "w_k_up": sqrt(SCORE_STD),
        "w_v_up": 1.0,
        "wo": ATTENTION_GAIN,
        "w_gate_up": FEED_FORWARD_INPUT_STD,
        "w_down": FEED_FORWARD_GAIN,
    }[kind]
    return output_std / sqrt(shape[-1])


def _uniform(seed: int, name: str, shape: Shape, std: float) -> Floats:
    """Uniform numbers of mean 0 and the given deviation, by exact arithmetic only.

    Taken from raw PCG64 bits, whose stream numpy guarantees, and not from its samplers, whose
    streams may change: the weights hash stands for the values.
    """
    key = blake2b(name.encode(), digest_size=16, key=seed.to_bytes(8, "little")).digest()
    n_values = prod(shape)
    raw = np.random.PCG64(int.from_bytes(key, "little")).random_raw(-(-n_values // 2))
    bits = raw.astype("<u8").view("<u4")[:n_values] >> np.uint32(8)
    centred = bits.astype(np.float32) - np.float32(2**23 - 0.5)
    return (centred * np.float32(std * sqrt(3.0) / 2**23)).reshape(shape)
