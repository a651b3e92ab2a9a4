"""evkernels: movement of KV rows and blocks; torch references, Triton where a GPU is."""

from evkernels.rows import gather_rows, scatter_rows

__all__ = ["gather_rows", "scatter_rows"]
