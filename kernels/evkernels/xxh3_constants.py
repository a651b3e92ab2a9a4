"""The numbers of xxh3-64 (seed 0, default secret), cut into the words that the kernels read.

xxh3 over more than 240 bytes: eight 64-bit accumulators take in stripes of 64 bytes, stripe s
of each KiB keyed with the secret from byte 8 * s; after each whole KiB the accumulators are
scrambled; the last 64 bytes come once more as a stripe of their own; then all are merged.
What a stripe adds does not depend on the accumulators. So the sums over each KiB are computed in
parallel, 64 bytes from 1,024, and only scrambling them in is sequential.
"""

from __future__ import annotations

import functools

import torch

STRIPE_BYTES = 64
KIB_BYTES = 1024
KIB_STRIPES = 16
LANES = 8
"""Accumulators of 64 bits."""

SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
PRIME32_1, PRIME32_2, PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1, PRIME64_2, PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
PRIME64_4, PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
AVALANCHE = 0x165667919E3779F9
INITIAL = (
    PRIME32_3,
    PRIME64_1,
    PRIME64_2,
    PRIME64_3,
    PRIME64_4,
    PRIME32_2,
    PRIME64_5,
    PRIME32_1,
)

# Where each part begins in `words`, in words of 8 bytes.
STRIPE_KEYS = 0
"""24 words; stripe s, lane i uses word s + i."""
SCRAMBLE_KEYS = 16
LAST_KEYS = 24
MERGE_KEYS = 32
START = 40
N_WORDS = 48

_LAST_AT = len(SECRET) - STRIPE_BYTES - 7
_MERGE_AT = 11


@functools.lru_cache(maxsize=16)
def words(device: torch.device) -> torch.Tensor:
    """Int64 `[N_WORDS]` on `device`: secret and initial accumulators, cut as above."""
    parts = (
        SECRET,
        SECRET[_LAST_AT : _LAST_AT + STRIPE_BYTES],
        SECRET[_MERGE_AT : _MERGE_AT + STRIPE_BYTES],
        b"".join(value.to_bytes(8, "little") for value in INITIAL),
    )
    data = b"".join(parts)
    signed = [
        int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(0, len(data), 8)
    ]
    return torch.tensor(signed, dtype=torch.int64, device=device)


def signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit value."""
    return value - (1 << 64) if value >= 1 << 63 else value
