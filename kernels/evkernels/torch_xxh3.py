"""xxh3-64 of many blocks in torch: what Triton's must equal.

Unsigned 64-bit arithmetic in int64: sums and products have the same low bits; shifts are masked.
A host that has the xxhash library hashes far faster with it; this one needs no library, and
shows the algorithm as the kernels compute it.
"""

from __future__ import annotations

import torch

from evkernels import xxh3_constants as xxh3

_LOW = 0xFFFFFFFF
_CHUNK_BYTES = 1 << 20
"""Of data whose stripes are summed at once; temporary memory is about three times that."""


def checksum(data: torch.Tensor, length_bytes: torch.Tensor) -> torch.Tensor:
    """data: uint8 [n, block_bytes] contiguous; length_bytes: int64 [n], 241 to block_bytes."""
    lengths = length_bytes.tolist()
    if len(set(lengths)) == 1:
        return _checksum_alike(data, lengths[0])
    digests = [_checksum_alike(data[i : i + 1], length) for i, length in enumerate(lengths)]
    return torch.cat(digests)


def _checksum_alike(data: torch.Tensor, length: int) -> torch.Tensor:
    """Digests of the first `length` bytes of each row."""
    words = xxh3.words(data.device)
    sums = _kib_sums(data, (length - 1) // xxh3.STRIPE_BYTES, words)
    accumulators = words[xxh3.START :].expand(len(data), xxh3.LANES)
    scramble_keys = words[xxh3.SCRAMBLE_KEYS :][: xxh3.LANES]
    whole = (length - 1) // xxh3.KIB_BYTES
    for kib in range(whole):
        accumulators = accumulators + sums[kib]
        accumulators = accumulators ^ _shifted(accumulators, 47) ^ scramble_keys
        accumulators = accumulators * xxh3.PRIME32_1
    if whole < len(sums):
        accumulators = accumulators + sums[whole]
    last = _int64(data[:, length - xxh3.STRIPE_BYTES : length])
    last_keys = words[xxh3.LAST_KEYS :][: xxh3.LANES]
    return _merged(accumulators + _stripe(last, last_keys), length, words)


def _kib_sums(data: torch.Tensor, stripes: int, words: torch.Tensor) -> torch.Tensor:
    """What the first `stripes` stripes of each row add: [kib, n, LANES], the last one partial."""
    keys = words[xxh3.STRIPE_KEYS :].unfold(0, xxh3.LANES, 1)[: xxh3.KIB_STRIPES]
    step = max(1, _CHUNK_BYTES // xxh3.KIB_BYTES // len(data)) * xxh3.KIB_STRIPES
    parts = []
    for begin in range(0, stripes, step):
        end = min(begin + step, stripes)
        part = _int64(data[:, begin * xxh3.STRIPE_BYTES : end * xxh3.STRIPE_BYTES])
        part = part.unflatten(1, (-1, xxh3.LANES))
        whole = (end - begin) // xxh3.KIB_STRIPES * xxh3.KIB_STRIPES
        if whole:
            kibs = part[:, :whole].unflatten(1, (-1, xxh3.KIB_STRIPES))
            parts.append(_stripe(kibs, keys).sum(2).transpose(0, 1))
        if whole < end - begin:
            rest = _stripe(part[:, whole:], keys[: end - begin - whole])
            parts.append(rest.sum(1).unsqueeze(0))
    return torch.cat(parts)


def _stripe(words: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """What stripes [..., LANES] add to the accumulators: each word to its neighbour's lane."""
    keyed = words ^ keys
    swapped = words.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return (keyed & _LOW) * _shifted(keyed, 32) + swapped


def _merged(accumulators: torch.Tensor, length: int, words: torch.Tensor) -> torch.Tensor:
    keyed = accumulators ^ words[xxh3.MERGE_KEYS :][: xxh3.LANES]
    low, high = keyed[:, 0::2], keyed[:, 1::2]
    folded = (low * high) ^ _product_high(low, high)
    start = xxh3.signed(length * xxh3.PRIME64_1 & ((1 << 64) - 1))
    digest = folded.sum(1) + start
    digest = (digest ^ _shifted(digest, 37)) * xxh3.AVALANCHE
    return digest ^ _shifted(digest, 32)


def _product_high(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The upper 64 bits of the unsigned 128-bit product."""
    a_low, a_high = a & _LOW, _shifted(a, 32)
    b_low, b_high = b & _LOW, _shifted(b, 32)
    middle = a_high * b_low + _shifted(a_low * b_low, 32)
    other = a_low * b_high + (middle & _LOW)
    return a_high * b_high + _shifted(middle, 32) + _shifted(other, 32)


def _shifted(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _int64(data: torch.Tensor) -> torch.Tensor:
    """Bytes [n, k * 8] as int64 [n, k], copied only where they are not aligned."""
    aligned = not (data.storage_offset() % 8 or data.data_ptr() % 8 or data.stride(0) % 8)
    return (data if aligned else data.clone(memory_format=torch.contiguous_format)).view(
        torch.int64
    )
