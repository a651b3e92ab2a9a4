"""Blocks of L2 as readers on other nodes know them, written down a second time."""

from __future__ import annotations

import struct
from hashlib import blake2b

import xxhash

from evctl.policy.eviction import RefClass

TOTAL = 6
BLOCK = 100
STRIDE = 64 + 128
OFFSET = 4096
KEYS = [bytes([i]) * 16 for i in range(10)]
DEPTH = {key: i % 4 for i, key in enumerate(KEYS)}
LEVELS = [[key for key in KEYS if DEPTH[key] == depth] for depth in range(4)]
LIVE = RefClass.LIVE
BOOT = blake2b(b"boot", digest_size=16).digest()


def data_of(key: bytes) -> bytes:
    return bytes((key[0] * 31 + i) % 256 for i in range(BLOCK))


def checksum_of(key: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data_of(key))


def header_of(key: bytes, generation: int) -> bytes:
    """The format as its readers on other nodes know it."""
    fields = struct.pack("<16s16sQQQ", BOOT, key, generation, BLOCK, checksum_of(key))
    return fields.ljust(64, b"\0")


def fill(view: memoryview, slot: int, key: bytes, generation: int) -> None:
    start = slot * STRIDE
    view[start : start + 64] = header_of(key, generation)
    view[start + 64 : start + 64 + BLOCK] = data_of(key)
