"""Random pools, slots and staging memory, and what a copy must do, told byte by byte."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from hypothesis import strategies as st

from evkernels import layer_major

DTYPES = (torch.uint8, torch.bfloat16, torch.float32)
# Heads of odd sizes, of powers of two below and above the widest piece, and a latent's 576.
ROWS = (1, 3, 8, 20, 64, 144, 200, 256)


class Shape(NamedTuple):
    n_slots: int
    slots: tuple[int, ...]
    block_tokens: int
    n_layers: int
    planes: int
    row: int
    dtype: torch.dtype
    is_layer_major: bool
    seed: int

    def pool(self, seed: int | None = None) -> torch.Tensor:
        """One rank's pool of random bytes."""
        rows = self.n_slots * self.block_tokens
        seed = self.seed if seed is None else seed
        if self.is_layer_major:
            return layer_major(
                random((self.n_layers, self.planes, rows, self.row), self.dtype, seed)
            )
        return random((rows, self.n_layers, self.planes, self.row), self.dtype, seed)

    def staging(self, width: int, seed: int) -> torch.Tensor:
        size = (len(self.slots), self.block_tokens, self.n_layers, self.planes, width)
        return random(size, self.dtype, seed)

    def index(self) -> torch.Tensor:
        return torch.tensor(self.slots, dtype=torch.int64)


@st.composite
def shapes(draw: st.DrawFn, *, rows: tuple[int, ...] = ROWS) -> Shape:
    n_slots = draw(st.integers(1, 6))
    order = draw(st.permutations(range(n_slots)))
    return Shape(
        n_slots=n_slots,
        slots=tuple(order[: draw(st.integers(0, n_slots))]),
        block_tokens=draw(st.sampled_from((1, 2, 3, 16))),
        n_layers=draw(st.integers(1, 3)),
        planes=draw(st.integers(1, 2)),
        row=draw(st.sampled_from(rows)),
        dtype=draw(st.sampled_from(DTYPES)),
        is_layer_major=draw(st.booleans()),
        seed=draw(st.integers(0, 1 << 30)),
    )


def random(size: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any bits, NaNs among them: a copy that computes with them would change some."""
    generator = torch.Generator().manual_seed(seed)
    elements = 1
    for length in size:
        elements *= length
    data = torch.randint(0, 256, (elements * dtype.itemsize,), generator=generator)
    return data.to(torch.uint8).view(dtype).view(size)


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return raw(a) == raw(b)


def raw(tensor: torch.Tensor) -> bytes:
    """Bytes in the order of the indices, whatever the strides."""
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


def copied(pool: torch.Tensor, slots: Any, staging: torch.Tensor, offset: int) -> bytes:
    """raw(staging) after a gather, computed element by element."""
    size = pool.element_size()
    pool_bytes, result = raw(pool), bytearray(raw(staging))
    _, n_layers, planes, row = pool.shape
    block_tokens, width = staging.shape[1], staging.shape[4]
    for block, slot in enumerate(slots):
        for token in range(block_tokens):
            for layer in range(n_layers):
                for plane in range(planes):
                    in_pool = slot * block_tokens + token
                    source = ((in_pool * n_layers + layer) * planes + plane) * row
                    in_staging = block * block_tokens + token
                    target = ((in_staging * n_layers + layer) * planes + plane) * width + offset
                    piece = pool_bytes[source * size : (source + row) * size]
                    result[target * size : (target + row) * size] = piece
    return bytes(result)
