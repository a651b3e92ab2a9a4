"""Canonical tensors of a model and their place in `weights.f32`.

Every linear is stored [out, in]. Projections that read the same input are stored fused, so
that one matrix product serves them and each part is a view of consecutive rows:

    wqkv       [q_dim + 2 * kv_dim, hidden]   rows: q, k, v            (gqa)
    w_gate_up  [2 * ff, hidden]               rows: gate, up

Latent layers have, instead of wqkv:

    wq         [heads * (nope + rope), hidden]   per head: nope, then rope
    w_kv_down  [latent + rope, hidden]           rows: latent, shared rope key
    kv_norm    [latent]                          norm of the latent, before it is cached
    w_k_up     [heads, nope, latent]
    w_v_up     [heads, head_dim, latent]

`index.json` beside the file holds offsets in bytes; no torch is needed to read it.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from evctl.core.errors import IntegrityError
from evengine.models.config import ModelConfig

FORMAT_VERSION = 1
ALIGNMENT_BYTES = 64
WEIGHTS_FILE = "weights.f32"
INDEX_FILE = "index.json"

Shape = tuple[int, ...]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


class TensorPlace(msgspec.Struct, frozen=True):
    """Where one tensor lies in the weights file."""

    offset_bytes: int
    shape: Shape


class WeightsIndex(msgspec.Struct, frozen=True):
    """Contents of `index.json`; total_bytes is the exact size of the weights file."""

    format_version: int
    total_bytes: int
    tensors: dict[str, TensorPlace]


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor, in file order."""
    hidden = config.hidden_dim
    shapes: dict[str, Shape] = {"embed": (config.vocab_size, hidden)}
    for layer in range(config.n_layers):
        prefix = f"layers.{layer}."
        shapes[prefix + "attn_norm"] = (hidden,)
        for name, shape in _attention_shapes(config).items():
            shapes[prefix + name] = shape
        shapes[prefix + "wo"] = (hidden, config.attn_out_dim)
        shapes[prefix + "ffn_norm"] = (hidden,)
        shapes[prefix + "w_gate_up"] = (2 * config.ff_dim, hidden)
        shapes[prefix + "w_down"] = (hidden, config.ff_dim)
    shapes["norm"] = (hidden,)
    if not config.tied_embedding:
        shapes["head"] = (config.vocab_size, hidden)
    return shapes


def _attention_shapes(config: ModelConfig) -> dict[str, Shape]:
    if config.attention == "gqa":
        return {"wqkv": (config.q_dim + 2 * config.kv_dim, config.hidden_dim)}
    return {
        "wq": (config.q_dim, config.hidden_dim),
        "w_kv_down": (config.latent_dim + config.rope_dim, config.hidden_dim),
        "kv_norm": (config.latent_dim,),
        "w_k_up": (config.n_heads, config.nope_dim, config.latent_dim),
        "w_v_up": (config.n_heads, config.head_dim, config.latent_dim),
    }


def qkv_splits(config: ModelConfig) -> tuple[int, int, int]:
    """Rows of q, k and v inside `wqkv`."""
    return config.q_dim, config.kv_dim, config.kv_dim


def gate_up_splits(config: ModelConfig) -> tuple[int, int]:
    """Rows of gate and up inside `w_gate_up`."""
    return config.ff_dim, config.ff_dim


def build_index(config: ModelConfig) -> WeightsIndex:
    """Offsets of all tensors, each aligned to 64 bytes."""
    offset_bytes = 0
    tensors: dict[str, TensorPlace] = {}
    for name, shape in tensor_shapes(config).items():
        tensors[name] = TensorPlace(offset_bytes, shape)
        offset_bytes += -(-4 * prod(shape) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return WeightsIndex(FORMAT_VERSION, offset_bytes, tensors)


def write_tensor(file: BinaryIO, place: TensorPlace, parts: list[Floats]) -> None:
    """Append one tensor, given as consecutive rows, and its padding at `place`.

    Plain writes, not a writable mapping: a full disk then raises OSError, not SIGBUS.
    """
    if file.tell() != place.offset_bytes:
        raise ValueError(f"tensor written at {file.tell()}, planned at {place.offset_bytes}")
    if sum(part.size for part in parts) != prod(place.shape):
        raise ValueError(f"parts do not add up to shape {place.shape}")
    for part in parts:
        file.write(np.ascontiguousarray(part, dtype="<f4").data)
    file.write(bytes(-file.tell() % ALIGNMENT_BYTES))


def read_index(directory: Path, config: ModelConfig) -> WeightsIndex:
    """The index of a prepared model, checked against its config and its weights file.

    Raises IntegrityError (EV-2107) when any of them disagree.
    """
    try:
        index = msgspec.json.decode((directory / INDEX_FILE).read_bytes(), type=WeightsIndex)
        size_bytes = (directory / WEIGHTS_FILE).stat().st_size
    except (OSError, msgspec.MsgspecError) as error:
        raise damaged(directory, str(error)) from error
    if index != build_index(config):
        raise damaged(directory, "the index does not match the model's shape or this version")
    if size_bytes != index.total_bytes:
        raise damaged(directory, f"{WEIGHTS_FILE} has {size_bytes} bytes, not {index.total_bytes}")
    return index


def damaged(directory: Path, why: str) -> IntegrityError:
    """The error for a prepared model that cannot be used."""
    return IntegrityError(
        what=f"the prepared model in {directory} is damaged",
        why=why,
        next_step=f"remove {directory} and run `python -m evengine.models fetch NAME` again",
        code="EV-2107",
    )
