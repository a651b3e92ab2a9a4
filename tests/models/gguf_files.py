"""Writes tiny GGUF files, field by field."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from evengine.models.dequant import F32, Q4_0, Q4_1, Q8_0, QUANT_KINDS, QuantKind
from evengine.models.tokenizer import CHATML_TEMPLATE, byte_characters

ALIGNMENT_BYTES = 32
KIND_NUMBERS = {quant: number for number, quant in QUANT_KINDS.items()}

# name -> (shape in numpy order, kind, payload)
Tensors = Mapping[str, tuple[tuple[int, ...], QuantKind, bytes]]


def string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> bytes:
    """A metadata value with its type; ints are u32, arrays are int32 or strings."""
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    if isinstance(item, np.ndarray):
        return struct.pack("<IIQ", 9, 5, len(item)) + item.astype("<i4").tobytes()
    return struct.pack("<IIQ", 9, 8, len(item)) + b"".join(map(string, item))


def gguf_bytes(metadata: Mapping[str, Any], tensors: Tensors) -> bytes:
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    header += b"".join(string(key) + value(item) for key, item in metadata.items())
    data = b""
    for name, (shape, quant, payload) in tensors.items():
        data += bytes(-len(data) % ALIGNMENT_BYTES)
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        header += string(name) + dims + struct.pack("<IQ", KIND_NUMBERS[quant], len(data))
        data += payload
    return header + bytes(-len(header) % ALIGNMENT_BYTES) + data


def payload(quant: QuantKind, shape: tuple[int, ...], seed: int) -> bytes:
    """Random content of one tensor, with small finite scales."""
    rng = np.random.default_rng(seed)
    if quant.block_values == 1:
        dtype = "<f4" if quant is F32 else "<f2"
        return rng.standard_normal(shape).astype(dtype).tobytes()
    n_blocks = prod(shape) // quant.block_values
    raw = rng.integers(0, 256, (n_blocks, quant.block_bytes), dtype=np.uint8)
    for offset in (0, 2) if quant is Q4_1 else (0,):
        scales = rng.uniform(-0.05, 0.05, n_blocks).astype("<f2")
        raw[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return raw.tobytes()


def tiny_llama() -> bytes:
    """A one-layer Llama of 32 dimensions with a byte tokenizer and a chat template."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*special, *byte_characters(), "Ġt", "he", "Ġthe"]
    metadata = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.rope.freq_base": 10_000.0,
        "llama.rope.dimension_count": 16,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3] * 3 + [1] * (len(tokens) - 3)),
        "tokenizer.ggml.merges": ["Ġ t", "h e", "Ġt he"],
        "tokenizer.chat_template": CHATML_TEMPLATE,
    }
    plan = {
        "token_embd.weight": ((len(tokens), 32), Q8_0),
        "blk.0.attn_norm.weight": ((32,), F32),
        "blk.0.attn_q.weight": ((32, 32), Q4_0),
        "blk.0.attn_k.weight": ((16, 32), Q4_1),
        "blk.0.attn_v.weight": ((16, 32), Q8_0),
        "blk.0.attn_output.weight": ((32, 32), Q4_1),
        "blk.0.ffn_norm.weight": ((32,), F32),
        "blk.0.ffn_gate.weight": ((64, 32), Q4_1),
        "blk.0.ffn_up.weight": ((64, 32), Q4_1),
        "blk.0.ffn_down.weight": ((32, 64), Q4_1),
        "output_norm.weight": ((32,), F32),
    }
    return gguf_bytes(
        metadata,
        {
            name: (shape, quant, payload(quant, shape, seed))
            for seed, (name, (shape, quant)) in enumerate(plan.items())
        },
    )
