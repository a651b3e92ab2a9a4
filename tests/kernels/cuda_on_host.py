"""Run as a process: the CUDA kernels, compiled for this host, against torch's on random shapes.

    python -m tests.kernels.cuda_on_host LIBRARY

A process of its own: a misaligned access, which a GPU refuses, ends it.
"""

from __future__ import annotations

import ctypes
import sys

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evkernels import torch_blocks, torch_xxh3, xxh3_constants
from tests.kernels.shapes import Shape, random, raw, same_bytes, shapes

CASES = settings(max_examples=60, deadline=None, database=None, derandomize=True)
INT64 = ctypes.c_int64


def address(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def geometry(pool: torch.Tensor, staging: torch.Tensor, row_offset: int) -> ctypes.Array[INT64]:
    size = pool.element_size()
    n, block_tokens, n_layers, planes, width = staging.shape
    in_bytes = [pool.shape[3], width, row_offset, *pool.stride()[:3]]
    return (INT64 * 10)(n, block_tokens, n_layers, planes, *(size * count for count in in_bytes))


def main(library: ctypes.CDLL) -> None:
    @given(shapes(), st.integers(0, 9), st.integers(0, 9))
    @CASES
    def gather_and_scatter(shape: Shape, before: int, behind: int) -> None:
        pool, slots = shape.pool(), shape.index()
        staging = shape.staging(before + shape.row + behind, seed=1)
        expected, scattered = staging.clone(), shape.pool(seed=2)
        found_pool = shape.pool(seed=2)
        places = geometry(pool, staging, before)
        line = (address(slots), address(staging), places, None)
        refused = library.evkernels_gather(address(pool), *line)
        assert refused == (0 if shape.slots else 1)
        if refused:
            return
        torch_blocks.gather(pool, slots, expected, before)
        assert same_bytes(staging, expected)
        assert library.evkernels_scatter(address(found_pool), *line) == 0
        torch_blocks.scatter(scattered, slots, staging, before)
        assert same_bytes(found_pool, scattered)

    @given(st.integers(1, 9_000), st.integers(1, 4))
    @CASES
    def broadcast(n_bytes: int, ranks: int) -> None:
        source = random((n_bytes,), torch.uint8, seed=n_bytes)
        targets = [random((n_bytes + 16,), torch.uint8, seed=rank) for rank in range(ranks)]
        behind = [raw(target[n_bytes:]) for target in targets]
        table = torch.tensor([target.data_ptr() for target in targets])
        line = (address(source), address(table), ranks, INT64(n_bytes), None)
        assert library.evkernels_broadcast(*line) == 0
        assert all(torch.equal(target[:n_bytes], source) for target in targets)
        assert [raw(target[n_bytes:]) for target in targets] == behind

    @given(st.lists(st.integers(241, 5_000), min_size=1, max_size=3), st.integers(0, 31))
    @CASES
    def checksum(lengths: list[int], more: int) -> None:
        n, block_bytes = len(lengths), max(lengths) + more
        block_bytes -= block_bytes % 16 * (more % 2)  # often aligned
        ends = torch.tensor(lengths).clamp(max=block_bytes)
        data = random((n, block_bytes), torch.uint8, seed=more)
        sums = torch.zeros((n, -(-block_bytes // 1024), 8), dtype=torch.int64)
        found = torch.zeros(n, dtype=torch.int64)
        keys = xxh3_constants.words(torch.device("cpu"))
        memory = [address(tensor) for tensor in (data, ends, keys, sums, found)]
        line = (*memory, INT64(n), INT64(block_bytes), None)
        assert library.evkernels_checksum(*line) == 0
        assert torch.equal(found, torch_xxh3.checksum(data, ends))

    for check in (gather_and_scatter, broadcast, checksum):
        check()
        print(check.__name__)


if __name__ == "__main__":
    main(ctypes.CDLL(sys.argv[1]))
