"""Content keys of KV blocks.

A key is 16 bytes of keyed BLAKE2b over (parent key, token ids, content hashes). It is chained,
so equal keys mean equal prefixes, and keyed with the cluster's KV secret, so that nobody can
craft a collision with another tenant's block.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

BlockKey = bytes
KEY_BYTES = 16


class KvNamespace(msgspec.Struct, frozen=True):
    """Everything besides tokens that KV bytes depend on, or that must separate tenants."""

    tenant: str
    weights_hash: str
    adapter: str = ""
    kv_dtype: str = "float32"
    layout: str = "token-major/1"
    numerics: str = "exact/1"
    cache_salt: str = ""


def root_key(secret: bytes, namespace: KvNamespace) -> BlockKey:
    """The parent of every first block in `namespace`. `secret`: 16 to 64 bytes."""
    if not 16 <= len(secret) <= 64:
        raise ValueError(f"the KV secret must be 16 to 64 bytes, not {len(secret)}")
    return blake2b(msgspec.msgpack.encode(namespace), digest_size=KEY_BYTES, key=secret).digest()


def child_key(
    secret: bytes, parent: BlockKey, tokens: Sequence[int], content_hashes: Sequence[bytes] = ()
) -> BlockKey:
    """Key of the block that holds `tokens` after `parent`; content hashes are those of images.

    Tokens fit in 32 bits (OverflowError). Keys are only comparable among full blocks of one
    size, where the lengths of the parts need no marks.
    """
    state = blake2b(parent, digest_size=KEY_BYTES, key=secret)
    state.update(array("I", tokens).tobytes())
    for content in content_hashes:
        state.update(len(content).to_bytes(4, "little") + content)
    return state.digest()


def block_keys(
    secret: bytes, root: BlockKey, tokens: Sequence[int], block_tokens: int
) -> list[BlockKey]:
    """Keys of all full blocks of `tokens`; the partial tail has none."""
    return extend_keys(secret, [], root, tokens, block_tokens)


def extend_keys(
    secret: bytes,
    known: Sequence[BlockKey],
    root: BlockKey,
    tokens: Sequence[int],
    block_tokens: int,
) -> list[BlockKey]:
    """`known` (keys of the leading blocks of `tokens`) completed; only new blocks are hashed.

    Equal to `block_keys` of all tokens when `known` is. Blocks with images need child_key.
    """
    keys = list(known)
    parent = keys[-1] if keys else root
    packed = array("I", tokens[len(keys) * block_tokens :])
    step = block_tokens
    for start in range(0, len(packed) - step + 1, step):
        state = blake2b(parent, digest_size=KEY_BYTES, key=secret)
        state.update(packed[start : start + step].tobytes())
        parent = state.digest()
        keys.append(parent)
    return keys
