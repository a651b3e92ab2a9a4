"""xxh3-64 of many blocks in Triton; why in two kernels is told in xxh3_constants.

The first reads all bytes, every KiB of every block in parallel, and is bound by memory. The
second reads a sixteenth of that, one program a block, and is a chain of a few instructions a KiB.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from evkernels import xxh3_constants as xxh3

KIBS = 8
"""KiB summed by one program: 4 warps, four loads of 16 bytes a thread."""

_STRIPE_BYTES = tl.constexpr(xxh3.STRIPE_BYTES)
_KIB_BYTES = tl.constexpr(xxh3.KIB_BYTES)
_STRIPES = tl.constexpr(xxh3.KIB_STRIPES)
_LANES = tl.constexpr(xxh3.LANES)
_SCRAMBLE_KEYS = tl.constexpr(xxh3.SCRAMBLE_KEYS)
_LAST_KEYS = tl.constexpr(xxh3.LAST_KEYS)
_MERGE_KEYS = tl.constexpr(xxh3.MERGE_KEYS)
_START = tl.constexpr(xxh3.START)
_PRIME32_1 = tl.constexpr(xxh3.PRIME32_1)
_PRIME64_1 = tl.constexpr(xxh3.PRIME64_1)
_AVALANCHE = tl.constexpr(xxh3.AVALANCHE)
_PREFETCH = tl.constexpr(8)


@triton.jit
def _bytes_as_words(data, at, mask):
    """Little-endian uint64 at byte offsets `at`, whatever their alignment."""
    words = tl.load(data + at, mask=mask, other=0).to(tl.uint64)
    for byte in tl.static_range(1, 8):
        words |= tl.load(data + at + byte, mask=mask, other=0).to(tl.uint64) << (8 * byte)
    return words


@triton.jit
def _swapped(sums, N: tl.constexpr):
    """Neighbouring lanes of [N, lanes] exchanged."""
    even, odd = tl.split(sums.reshape(N, _LANES // 2, 2))
    return tl.join(odd, even).reshape(N, _LANES)


@triton.jit
def _keyed_product(words, keys):
    keyed = words ^ keys
    return (keyed & 0xFFFFFFFF) * (keyed >> 32)


@triton.jit
def kib_sums_kernel(
    data,
    lengths,
    keys,
    sums,
    block_bytes,
    max_kibs,
    tiles,
    KIBS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """What the stripes of each KiB add: sums [n, max_kibs, lanes]. Grid: [n * tiles].

    A block's last 64 bytes are left to the next kernel, and so is a stripe that ends with them.
    """
    program = tl.program_id(0)
    block = program // tiles
    kib = (program % tiles) * KIBS + tl.arange(0, KIBS)
    stripe = tl.arange(0, _STRIPES)
    lane = tl.arange(0, _LANES)
    stripes = (tl.load(lengths + block) - 1) // _STRIPE_BYTES
    number = kib[:, None] * _STRIPES + stripe[None, :]
    inside = (number < stripes)[:, :, None]
    base = data + block.to(tl.int64) * block_bytes
    at = number.to(tl.int64)[:, :, None] * _LANES + lane[None, None, :]
    if ALIGNED:
        words = tl.load(base.to(tl.pointer_type(tl.uint64)) + at, mask=inside, other=0)
    else:
        words = _bytes_as_words(base, at * 8, inside)
    stripe_keys = tl.load(keys + stripe[:, None] + lane[None, :]).to(tl.uint64, bitcast=True)
    products = tl.where(inside, _keyed_product(words, stripe_keys[None, :, :]), 0)
    added = tl.sum(products, axis=1) + _swapped(tl.sum(words, axis=1), KIBS)
    out = (block.to(tl.int64) * max_kibs + kib)[:, None] * _LANES + lane[None, :]
    tl.store(sums + out, added.to(tl.int64, bitcast=True), mask=(kib < max_kibs)[:, None])


@triton.jit
def digest_kernel(data, lengths, keys, sums, digests, block_bytes, max_kibs):
    """Scrambles the sums in, KiB by KiB, then the last stripe, then merges. Grid: [n]."""
    block = tl.program_id(0)
    lane = tl.arange(0, _LANES)
    length = tl.load(lengths + block)
    whole = (length - 1) // _KIB_BYTES
    mine = sums + block.to(tl.int64) * max_kibs * _LANES + lane
    scramble_keys = tl.load(keys + _SCRAMBLE_KEYS + lane).to(tl.uint64, bitcast=True)
    accumulators = tl.load(keys + _START + lane).to(tl.uint64, bitcast=True)
    # Loads do not wait for the chain; unrolled, several are under way at a time.
    for first in range(0, whole, _PREFETCH):
        for step in tl.static_range(_PREFETCH):
            kib = first + step
            added = tl.load(mine + kib * _LANES, mask=kib < whole, other=0)
            mixed = accumulators + added.to(tl.uint64, bitcast=True)
            mixed = (mixed ^ (mixed >> 47) ^ scramble_keys) * _PRIME32_1
            accumulators = tl.where(kib < whole, mixed, accumulators)
    accumulators += tl.load(mine + whole * _LANES).to(tl.uint64, bitcast=True)

    base = data + block.to(tl.int64) * block_bytes
    last = _bytes_as_words(base, length - _STRIPE_BYTES + lane * 8, lane < _LANES)
    last_keys = tl.load(keys + _LAST_KEYS + lane).to(tl.uint64, bitcast=True)
    accumulators += _keyed_product(last, last_keys)
    accumulators += _swapped(last.reshape(1, _LANES), 1).reshape(_LANES)

    merge_keys = tl.load(keys + _MERGE_KEYS + lane).to(tl.uint64, bitcast=True)
    low, high = tl.split((accumulators ^ merge_keys).reshape(_LANES // 2, 2))
    digest = tl.sum((low * high) ^ tl.umulhi(low, high), axis=0)
    digest += length.to(tl.uint64) * _PRIME64_1
    digest = (digest ^ (digest >> 37)) * _AVALANCHE
    digest ^= digest >> 32
    tl.store(digests + block, digest.to(tl.int64, bitcast=True))


def checksum(data: torch.Tensor, length_bytes: torch.Tensor) -> torch.Tensor:
    """data: uint8 [n, block_bytes] contiguous; length_bytes: int64 [n], 241 to block_bytes."""
    n, block_bytes = data.shape
    max_kibs = triton.cdiv(block_bytes, xxh3.KIB_BYTES)
    tiles = triton.cdiv(max_kibs, KIBS)
    keys = xxh3.words(data.device)
    sums = torch.empty((n, max_kibs, xxh3.LANES), dtype=torch.int64, device=data.device)
    digests = torch.empty(n, dtype=torch.int64, device=data.device)
    with torch.cuda.device_of(data):
        kib_sums_kernel[(n * tiles,)](
            data,
            length_bytes,
            keys,
            sums,
            block_bytes,
            max_kibs,
            tiles,
            KIBS=KIBS,
            ALIGNED=is_aligned(data),
        )
        digest_kernel[(n,)](
            data, length_bytes, keys, sums, digests, block_bytes, max_kibs, num_warps=1
        )
    return digests


def is_aligned(data: torch.Tensor) -> bool:
    """Whether every block starts at a multiple of a word's 8 bytes."""
    return data.shape[1] % 8 == 0 and data.data_ptr() % 8 == 0
