"""Checksums of blocks: equal to those the engine's host side computes with xxhash."""

from __future__ import annotations

import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from evkernels import checksum_blocks
from tests.kernels.shapes import random, raw

# Around every edge of the algorithm: stripes of 64 bytes, KiB, the last stripe's overlap.
LENGTHS = st.one_of(
    st.integers(241, 4200),
    st.builds(lambda kib, by: 1024 * kib + by, st.integers(1, 4), st.integers(-66, 66)),
)


def digests(blocks: torch.Tensor, lengths: list[int] | None = None) -> list[int]:
    ends = lengths or [len(raw(block)) for block in blocks]
    return [
        xxhash.xxh3_64_intdigest(raw(block)[:end]) for block, end in zip(blocks, ends, strict=True)
    ]


def unsigned(checksums: torch.Tensor) -> list[int]:
    assert checksums.dtype == torch.int64
    return [value & (2**64 - 1) for value in checksums.tolist()]


@given(LENGTHS, st.integers(0, 3), st.integers(0, 1 << 30))
@settings(max_examples=150, deadline=None)
def test_whole_blocks(length: int, n: int, seed: int) -> None:
    blocks = random((n, length), torch.uint8, seed)
    assert unsigned(checksum_blocks(blocks)) == digests(blocks)


@given(st.lists(LENGTHS, min_size=1, max_size=4), st.integers(0, 1 << 30))
@settings(max_examples=60, deadline=None)
def test_the_first_tokens_of_blocks(lengths: list[int], seed: int) -> None:
    blocks = random((len(lengths), max(lengths)), torch.uint8, seed)
    found = checksum_blocks(blocks, torch.tensor(lengths))
    assert unsigned(found) == digests(blocks, lengths)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_canonical_blocks_of_any_dtype(dtype: torch.dtype) -> None:
    blocks = random((3, 16, 2, 2, 40), dtype, seed=1)
    assert unsigned(checksum_blocks(blocks)) == digests(blocks)


def test_memory_that_starts_at_an_odd_address() -> None:
    blocks = random((1, 3001), torch.uint8, seed=1)[:, 1:]
    assert unsigned(checksum_blocks(blocks)) == digests(blocks)


def test_more_than_is_summed_at_once() -> None:
    blocks = random((3, (1 << 20) + 100), torch.uint8, seed=2)
    assert unsigned(checksum_blocks(blocks)) == digests(blocks)


def test_every_byte_counts() -> None:
    block = torch.zeros(1, 1300, dtype=torch.uint8)
    seen = {checksum_blocks(block).item()}
    for at in range(0, 1300, 13):
        block[0, at] = 1
        seen.add(checksum_blocks(block).item())
    assert len(seen) == 101


@pytest.mark.parametrize(
    ("blocks", "lengths", "says"),
    [
        (torch.zeros(1, 240, dtype=torch.uint8), None, "240 bytes of a block of 240"),
        (torch.zeros(1, 300, dtype=torch.uint8), [240], "240 bytes of a block of 300"),
        (torch.zeros(1, 300, dtype=torch.uint8), [301], "301 bytes of a block of 300"),
        (torch.zeros(2, 300, dtype=torch.uint8), [300], "1 length_bytes for 2 blocks"),
        (torch.zeros(300), None, "blocks must be"),
        (torch.zeros(2, 300)[:, ::2], None, "blocks must be contiguous"),
    ],
)
def test_what_does_not_fit_is_refused(
    blocks: torch.Tensor, lengths: list[int] | None, says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        checksum_blocks(blocks, None if lengths is None else torch.tensor(lengths), trusted=True)
