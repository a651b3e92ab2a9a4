"""A Llama-shaped GGUF file as a ModelConfig and canonical tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from evengine.models.config import ModelConfig
from evengine.models.gguf import GgufFile, malformed, unsupported
from evengine.models.layout import Floats, Shape, tensor_shapes

# Canonical name -> the GGUF tensors whose rows it is made of.
_TOP_SOURCES = {
    "embed": ("token_embd.weight",),
    "norm": ("output_norm.weight",),
    "head": ("output.weight",),
}
_LAYER_SOURCES = {
    "attn_norm": ("attn_norm.weight",),
    "wqkv": ("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    "wo": ("attn_output.weight",),
    "ffn_norm": ("ffn_norm.weight",),
    "w_gate_up": ("ffn_gate.weight", "ffn_up.weight"),
    "w_down": ("ffn_down.weight",),
}


def config_from_gguf(
    gguf: GgufFile, name: str, weights_hash: str, extra_eos: tuple[str, ...] = ()
) -> ModelConfig:
    """Shape and constants of the model in the file.

    extra_eos: tokens that end a reply beside the one the file names. Raises EvctlError when
    the file needs anything the runner does not do (EV-2105) or is inconsistent (EV-2104).
    """
    _refuse_unsupported(gguf)
    hidden_dim, n_heads = _whole(gguf, "llama.embedding_length"), _heads(gguf)
    head_dim = _whole(gguf, "llama.attention.key_length", hidden_dim // n_heads)
    for key in ("llama.rope.dimension_count", "llama.attention.value_length"):
        if _whole(gguf, key, head_dim) != head_dim:
            raise unsupported(gguf.path, f"{key} other than the head dimension {head_dim}")
    tokens = _strings(gguf, "tokenizer.ggml.tokens")
    try:
        return ModelConfig(
            name=name,
            n_layers=_whole(gguf, "llama.block_count"),
            hidden_dim=hidden_dim,
            n_heads=n_heads,
            n_kv_heads=_whole(gguf, "llama.attention.head_count_kv", n_heads),
            head_dim=head_dim,
            ff_dim=_whole(gguf, "llama.feed_forward_length"),
            vocab_size=len(tokens),
            context_tokens=_whole(gguf, "llama.context_length"),
            rope_theta=_real(gguf, "llama.rope.freq_base", 10_000.0),
            norm_eps=_real(gguf, "llama.attention.layer_norm_rms_epsilon"),
            tied_embedding="output.weight" not in gguf.tensors,
            rope_interleaved=True,
            attention="gqa",
            latent_dim=0,
            rope_dim=0,
            nope_dim=0,
            bos_id=_bos_id(gguf),
            eos_ids=_eos_ids(gguf, tokens, extra_eos),
            weights_hash=weights_hash,
        )
    except ValueError as error:
        raise malformed(gguf.path, str(error)) from error


def canonical_tensors(gguf: GgufFile, config: ModelConfig) -> Iterator[tuple[str, list[Floats]]]:
    """(canonical name, parts) in file order; parts are consecutive rows in float32.

    All shapes are checked before the first tensor is read. Raises EvctlError.
    """
    shapes = tensor_shapes(config)
    used: set[str] = set()
    for name, shape in shapes.items():
        sources = _sources(name)
        _check_shapes(gguf, sources, shape)
        used.update(sources)
    strangers = sorted(gguf.tensors.keys() - used)
    if strangers:
        raise unsupported(gguf.path, f"tensor {strangers[0]!r} of a Llama-shaped model")
    for name in shapes:
        yield name, [_finite(gguf, source) for source in _sources(name)]


def _refuse_unsupported(gguf: GgufFile) -> None:
    architecture = gguf.metadata.get("general.architecture")
    if architecture != "llama":
        raise unsupported(gguf.path, f"architecture {architecture!r}")
    scaling = gguf.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise unsupported(gguf.path, f"rotary scaling {scaling!r}")
    if _whole(gguf, "llama.expert_count", 0, least=0):
        raise unsupported(gguf.path, "mixture of experts")


def _sources(name: str) -> tuple[str, ...]:
    if name in _TOP_SOURCES:
        return _TOP_SOURCES[name]
    _, layer, part = name.split(".")
    return tuple(f"blk.{layer}.{source}" for source in _LAYER_SOURCES[part])


def _check_shapes(gguf: GgufFile, sources: tuple[str, ...], shape: Shape) -> None:
    """The sources, stacked by rows, must give `shape`."""
    rows = 0
    for source in sources:
        tensor = gguf.tensors.get(source)
        if tensor is None:
            raise malformed(gguf.path, f"tensor {source!r} is missing")
        if tensor.shape[1:] != shape[1:]:
            raise malformed(gguf.path, f"tensor {source!r} has shape {tensor.shape}")
        rows += tensor.shape[0]
    if rows != shape[0]:
        raise malformed(gguf.path, f"{' + '.join(sources)} has {rows} rows, not {shape[0]}")


def _finite(gguf: GgufFile, source: str) -> Floats:
    values = gguf.read(source)
    if not np.isfinite(values).all():
        raise malformed(gguf.path, f"tensor {source!r} holds values that are not finite")
    return values


def _heads(gguf: GgufFile) -> int:
    return _whole(gguf, "llama.attention.head_count")


def _whole(gguf: GgufFile, key: str, default: int | None = None, least: int = 1) -> int:
    value: Any = gguf.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise malformed(gguf.path, f"{key} is {_shown(value)}, not a whole number >= {least}")
    return value


def _real(gguf: GgufFile, key: str, default: float | None = None) -> float:
    value: Any = gguf.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise malformed(gguf.path, f"{key} is {_shown(value)}, not a number")
    return float(value)


def _strings(gguf: GgufFile, key: str) -> list[str]:
    value: Any = gguf.metadata.get(key)
    if not isinstance(value, list):  # the reader makes lists of strings only
        raise malformed(gguf.path, f"{key} is not a list of strings")
    return value


def _shown(value: object) -> str:
    return repr(value)[:40]


def _bos_id(gguf: GgufFile) -> int | None:
    if gguf.metadata.get("tokenizer.ggml.add_bos_token", False) is not True:
        return None
    return _whole(gguf, "tokenizer.ggml.bos_token_id", least=0)


def _eos_ids(gguf: GgufFile, tokens: list[str], extra: tuple[str, ...]) -> tuple[int, ...]:
    eos_ids = [_whole(gguf, "tokenizer.ggml.eos_token_id", least=0)]
    for token in extra:
        if token not in tokens:
            raise malformed(gguf.path, f"token {token!r} is not in its vocabulary")
        eos_ids.append(tokens.index(token))
    return tuple(dict.fromkeys(eos_ids))
