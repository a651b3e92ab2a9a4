"""The shape of a model, as every part of the engine reads it."""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_LAYERS = 1_024
MAX_DIM = 1 << 20
MAX_VOCAB = 1 << 22
MAX_CONTEXT_TOKENS = 1 << 24


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shape and constants of one Llama-shaped model. Raises ValueError when inconsistent.

    attention "gqa": each of `n_heads` query heads is `head_dim` wide, and so is each of
    `n_kv_heads` key and value heads; the three latent dimensions are 0.

    attention "latent" (MLA): a query head is `nope_dim + rope_dim` wide, a value head
    `head_dim`; a token's cached row is its normed latent (`latent_dim`), then one rotated key
    of `rope_dim` that all heads share; `n_kv_heads` is 1.

    rope_interleaved: rotary pairs are (0, 1), (2, 3), ... (the GGUF llama order), else
    (i, i + dim/2). tied_embedding: the output head is the embedding.
    bos_id: token that begins every sequence, None when the model is not used with one.
    eos_ids: tokens that end a reply. weights_hash: hex sha256 that names the weights.
    """

    name: str
    n_layers: int
    hidden_dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    ff_dim: int
    vocab_size: int
    context_tokens: int
    rope_theta: float
    norm_eps: float
    tied_embedding: bool
    rope_interleaved: bool
    attention: Literal["gqa", "latent"]
    latent_dim: int
    rope_dim: int
    nope_dim: int
    bos_id: int | None
    eos_ids: tuple[int, ...]
    weights_hash: str

    def __post_init__(self) -> None:
        _check_ranges(self)
        if self.attention == "gqa":
            if self.n_heads % self.n_kv_heads:
                raise ValueError(f"{self.n_heads} heads do not divide over {self.n_kv_heads}")
            if self.latent_dim or self.rope_dim or self.nope_dim:
                raise ValueError("latent dimensions must be 0 with grouped-query attention")
        elif min(self.latent_dim, self.rope_dim, self.nope_dim, self.n_kv_heads == 1) < 1:
            raise ValueError("latent attention needs latent, rope and nope dims, and 1 KV head")
        if self.rotary_dim % 2:
            raise ValueError(f"rotary dimension {self.rotary_dim} is odd")
        special_ids = self.eos_ids if self.bos_id is None else (*self.eos_ids, self.bos_id)
        if any(not 0 <= token_id < self.vocab_size for token_id in special_ids):
            raise ValueError("a special token id is outside the vocabulary")

    @property
    def qk_head_dim(self) -> int:
        """Width of one query head; attention scores are scaled by its inverse square root."""
        return self.nope_dim + self.rope_dim if self.attention == "latent" else self.head_dim

    @property
    def rotary_dim(self) -> int:
        """How many dimensions of a head (latent: of the shared key) are rotated."""
        return self.rope_dim if self.attention == "latent" else self.head_dim

    @property
    def q_dim(self) -> int:
        """Rows of the query projection."""
        return self.n_heads * self.qk_head_dim

    @property
    def kv_dim(self) -> int:
        """Rows of the key projection, and of the value projection (gqa)."""
        return self.n_kv_heads * self.head_dim

    @property
    def attn_out_dim(self) -> int:
        """Columns of the output projection."""
        return self.n_heads * self.head_dim

    @property
    def kv_row_floats(self) -> int:
        """Numbers cached per token and layer."""
        if self.attention == "latent":
            return self.latent_dim + self.rope_dim
        return 2 * self.kv_dim

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of float32 KV per token, all layers."""
        return 4 * self.n_layers * self.kv_row_floats


def _check_ranges(config: ModelConfig) -> None:
    """Bounds that keep a hostile header from asking for absurd allocations."""
    limits = {
        "n_layers": MAX_LAYERS,
        "hidden_dim": MAX_DIM,
        "n_heads": MAX_DIM,
        "n_kv_heads": MAX_DIM,
        "head_dim": MAX_DIM,
        "ff_dim": MAX_DIM,
        "vocab_size": MAX_VOCAB,
        "context_tokens": MAX_CONTEXT_TOKENS,
    }
    for field, limit in limits.items():
        if not 1 <= getattr(config, field) <= limit:
            raise ValueError(f"{field} must be in 1..{limit}, not {getattr(config, field)}")
    if not (0.0 < config.rope_theta < 1e12 and 0.0 < config.norm_eps < 1.0):
        raise ValueError("rope_theta or norm_eps is out of range")
