"""Dequantisation of ggml tensor types to float32, bit-equal to the scalar definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evengine.models.layout import Floats

Bytes2d = np.ndarray[tuple[int, int], np.dtype[np.uint8]]


@dataclass(frozen=True)
class QuantKind:
    """A tensor type: `block_bytes` in the file stand for `block_values` numbers."""

    name: str
    block_values: int
    block_bytes: int


F32 = QuantKind("F32", 1, 4)
F16 = QuantKind("F16", 1, 2)
Q4_0 = QuantKind("Q4_0", 32, 18)
Q4_1 = QuantKind("Q4_1", 32, 20)
Q8_0 = QuantKind("Q8_0", 32, 34)

QUANT_KINDS = {0: F32, 1: F16, 2: Q4_0, 3: Q4_1, 8: Q8_0}


def dequantise(quant: QuantKind, raw: bytes) -> Floats:
    """Flat float32 values of `raw`, which must be a whole number of blocks.

    Infinities and NaNs in the scales come out as they would, without a warning.
    """
    with np.errstate(all="ignore"):
        if quant is F32:
            return np.frombuffer(raw, "<f4").astype(np.float32)
        if quant is F16:
            return np.frombuffer(raw, "<f2").astype(np.float32)
        blocks = np.frombuffer(raw, np.uint8).reshape(-1, quant.block_bytes)
        return _BLOCK_READERS[quant](blocks).reshape(-1)


def _half(blocks: Bytes2d, offset: int) -> Floats:
    """The float16 at a byte offset of every block, as a float32 column."""
    half = np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2")
    return half.astype(np.float32)


def _nibbles(packed: Bytes2d) -> Floats:
    """16 bytes a block -> 32 values in 0..15: all low nibbles, then all high ones."""
    values = np.empty((len(packed), 32), np.float32)
    values[:, :16] = packed & 0x0F
    values[:, 16:] = packed >> 4
    return values


def _read_q4_0(blocks: Bytes2d) -> Floats:
    values = _nibbles(blocks[:, 2:])
    values -= 8.0
    values *= _half(blocks, 0)
    return values


def _read_q4_1(blocks: Bytes2d) -> Floats:
    values = _nibbles(blocks[:, 4:])
    values *= _half(blocks, 0)
    values += _half(blocks, 2)
    return values


def _read_q8_0(blocks: Bytes2d) -> Floats:
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    values *= _half(blocks, 0)
    return values


_BLOCK_READERS: dict[QuantKind, Callable[[Bytes2d], Floats]] = {
    Q4_0: _read_q4_0,
    Q4_1: _read_q4_1,
    Q8_0: _read_q8_0,
}
