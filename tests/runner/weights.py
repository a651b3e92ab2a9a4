"""Weights of small random models, made in memory."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from evengine.models.config import ModelConfig
from evengine.models.layout import tensor_shapes
from evengine.models.random_weights import random_tensor
from evengine.models.registry import random_config, seed_of


@cache
def tiny(kind: str) -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """A two-layer model. kind: "gqa", "gqa-4" (8 heads over 4 KV heads) or "latent"."""
    heads = {"n_heads": 8, "n_kv_heads": 4} if kind == "gqa-4" else {}
    config = random_config(
        f"tiny-{kind}", 2, 256, context_tokens=2048, latent=kind == "latent", **heads
    )
    weights = {}
    for name, shape in tensor_shapes(config).items():
        parts = random_tensor(config, seed_of(config.name), name, shape)
        weights[name] = torch.from_numpy(np.concatenate(parts)).view(shape)
    return config, weights
