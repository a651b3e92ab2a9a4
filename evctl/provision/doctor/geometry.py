"""How much memory a node's KV takes, from the files of a prepared model.

Engines compute the same; a test holds these numbers against theirs.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from evctl.config.paths import cache_root
from evctl.core.kv import KvLayout
from evctl.provision.files import read_json

PAGE_BYTES: Final = 4096
HEADER_BYTES: Final = 64
"""Before each block of L2."""
ALIGNMENT_BYTES: Final = 64
SEGMENT_PREFIX: Final = "evctl-"


def node_bytes(
    layout: KvLayout, l1_blocks: int, l2_blocks: int, ranks: int = 1
) -> tuple[int, int]:
    """Bytes of a node's L1 and L2, which are one segment in /dev/shm. Each rank has a region of
    L1 on whole pages: its share of the heads, or all of a latent row."""
    part_bytes = layout.block_bytes if layout.planes == 1 else layout.block_bytes // ranks
    region_bytes = -(-l1_blocks * part_bytes // PAGE_BYTES) * PAGE_BYTES
    l1_bytes = (ranks - 1) * region_bytes + l1_blocks * part_bytes
    if not l2_blocks:
        return l1_bytes, 0
    whole_pages = ranks * region_bytes
    stride = HEADER_BYTES + -(-layout.block_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return whole_pages, l2_blocks * stride


def segment_prefix(node: str) -> str:
    """How the names of that node's segments begin, whichever life it is in."""
    return f"{SEGMENT_PREFIX}{blake2b(node.encode(), digest_size=8).hexdigest()}-"


def find_layout(model: str, block_tokens: int, recorded: Path | None) -> KvLayout | None:
    """Of a model that is prepared on this machine; None if it is not, or cannot be read.

    recorded: its directory, where the cluster knows it.
    """
    folders = [] if recorded is None else [recorded]
    folders += sorted((cache_root() / "models").glob("*/"))
    for folder in folders:
        card = read_json(folder / "config.json")
        if card is not None and card.get("name") == model:
            return _layout_of(card, block_tokens)
    return None


def _layout_of(card: dict[str, Any], block_tokens: int) -> KvLayout | None:
    """Grouped-query attention caches keys and values, latent attention one row for both."""
    try:
        latent = card["attention"] == "latent"
        row = (
            card["latent_dim"] + card["rope_dim"]
            if latent
            else card["n_kv_heads"] * card["head_dim"]
        )
        planes = 1 if latent else 2
        return KvLayout(card["n_layers"], planes, row, "float32", block_tokens)
    except (KeyError, TypeError, ValueError):
        return None
