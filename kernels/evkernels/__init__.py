"""evkernels: movement of KV rows and blocks; torch references, Triton where a GPU is."""

from evkernels.blocks import (
    broadcast_bytes,
    checksum_blocks,
    gather_blocks,
    layer_major,
    pointer_table,
    scatter_blocks,
)
from evkernels.rows import gather_rows, scatter_rows

__all__ = [
    "broadcast_bytes",
    "checksum_blocks",
    "gather_blocks",
    "gather_rows",
    "layer_major",
    "pointer_table",
    "scatter_blocks",
    "scatter_rows",
]
