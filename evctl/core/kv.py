"""Shape of the KV state of one model, and what one copy of a block says about itself."""

from __future__ import annotations

import msgspec

FLOAT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1}


class KvLayout(msgspec.Struct, frozen=True):
    """Geometry of the cached state of one token: `[n_layers, planes, row_elements]`.

    Grouped-query attention caches two planes (K, V) of n_kv_heads * head_dim elements;
    latent attention one plane of latent + shared rope key. Blocks are token-major,
    `[block_tokens, n_layers, planes, row_elements]`, so the first n tokens of a block are
    one contiguous piece of n * token_bytes: a partial tail moves without padding.
    Raises ValueError on a size below 1 or a dtype that FLOAT_BYTES does not have.
    """

    n_layers: int
    planes: int
    row_elements: int
    dtype: str
    block_tokens: int

    def __post_init__(self) -> None:
        if min(self.n_layers, self.planes, self.row_elements, self.block_tokens) < 1:
            raise ValueError("every size of a KV layout must be at least 1")
        if self.dtype not in FLOAT_BYTES:
            raise ValueError(f"KV dtype must be one of {', '.join(FLOAT_BYTES)}")

    @property
    def token_elements(self) -> int:
        return self.n_layers * self.planes * self.row_elements

    @property
    def token_bytes(self) -> int:
        return self.token_elements * FLOAT_BYTES[self.dtype]

    @property
    def block_bytes(self) -> int:
        return self.token_bytes * self.block_tokens

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens, the partial tail included."""
        return -(-tokens // self.block_tokens)


class BlockHeader(msgspec.Struct, frozen=True, array_like=True):
    """What a copy of a block claims; checked after every move (transfer rule 3).

    boot_id: life of the node that computed or verified it. generation: count of reuses of
    the slot it lies in; a reader that expects another generation read a recycled slot.
    valid_tokens: leading tokens that hold KV. checksum: xxh3-64 over their bytes.
    """

    boot_id: str
    key: bytes
    generation: int
    valid_tokens: int
    checksum: int


class FetchPiece(msgspec.Struct, frozen=True, array_like=True):
    """Blocks [start, end) of a prompt that lie in the host memory (L2) of each of `nodes`, the
    one to ask first in front. Advice of the directory: a node that asks may find them gone."""

    start: int
    end: int
    nodes: tuple[str, ...]


class FetchSource(msgspec.Struct, frozen=True, array_like=True):
    """What one peer's L2 gave: verified blocks and the bytes they are."""

    node: str
    blocks: int
    bytes: int
