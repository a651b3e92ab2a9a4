"""Run with TRITON_INTERPRET=1: each Triton kernel against torch's, on random shapes.

    TRITON_INTERPRET=1 python -m tests.kernels.interpreted gather

A process of its own, since Triton decides at import of a kernel whether to interpret it, and a
wrong address ends the process.
"""

from __future__ import annotations

import sys

import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from evkernels import layer_major, torch_blocks, torch_xxh3, triton_blocks, triton_xxh3
from tests.kernels.shapes import Shape, random, raw, same_bytes, shapes

# No shrinking: interpreted, it would take longer than whoever runs this waits.
CASES = settings(
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
)


@given(shapes(), st.integers(0, 9), st.integers(0, 9))
@CASES
def gather(shape: Shape, before: int, behind: int) -> None:
    if not shape.slots:
        return
    pool, slots = shape.pool(), shape.index()
    expected = shape.staging(before + shape.row + behind, seed=1)
    found = expected.clone()
    torch_blocks.gather(pool, slots, expected, before)
    triton_blocks.gather(pool, slots, found, before)
    assert same_bytes(found, expected)


@given(shapes(), st.integers(0, 9), st.integers(0, 9))
@CASES
def scatter(shape: Shape, before: int, behind: int) -> None:
    if not shape.slots:
        return
    expected, found, slots = shape.pool(), shape.pool(), shape.index()
    staging = shape.staging(before + shape.row + behind, seed=1)
    torch_blocks.scatter(expected, slots, staging, before)
    triton_blocks.scatter(found, slots, staging, before)
    assert same_bytes(found, expected)


@given(st.integers(1, 40_000), st.integers(1, 4))
@CASES
def broadcast(n_bytes: int, ranks: int) -> None:
    source = random((n_bytes,), torch.uint8, seed=n_bytes)
    targets = [random((n_bytes + 16,), torch.uint8, seed=rank) for rank in range(ranks)]
    behind = [raw(target[n_bytes:]) for target in targets]
    table = torch.tensor([target.data_ptr() for target in targets])
    triton_blocks.broadcast(source, table)
    assert all(torch.equal(target[:n_bytes], source) for target in targets)
    assert [raw(target[n_bytes:]) for target in targets] == behind


LENGTHS = st.one_of(
    st.integers(241, 20_000),
    st.integers(31, 2_000).map(lambda words: words * 8),
    st.builds(lambda kib, by: 1024 * kib + by, st.integers(1, 18), st.integers(-66, 66)),
)


@given(st.lists(LENGTHS, min_size=1, max_size=3), st.integers(0, 15))
@CASES
def checksum(lengths: list[int], more: int) -> None:
    data = random((len(lengths), max(lengths) + more), torch.uint8, seed=lengths[0])
    ends = torch.tensor(lengths)
    assert torch.equal(triton_xxh3.checksum(data, ends), torch_xxh3.checksum(data, ends))


def far() -> None:
    """Strides of 2**30 units, three of them: 32-bit products would point outside the pool."""
    for n_layers, planes in ((3, 1), (1, 3)):
        memory = torch.empty((n_layers, planes, 2, 1 << 29), dtype=torch.uint8)
        # Of each row 3 bytes: units of one byte, and only their pages become real.
        pool = layer_major(memory)[..., :3]
        pool[0], pool[1] = 1, 2
        pool[1, -1, -1] = 3
        staging = torch.zeros((2, 1, n_layers, planes, 3), dtype=torch.uint8)
        triton_blocks.gather(pool, torch.tensor([1, 0]), staging, 0)
        assert staging[..., 0].flatten().tolist() == [2, 2, 3, 1, 1, 1]
        staging[0, 0, -1, -1] = 7
        triton_blocks.scatter(pool, torch.tensor([1, 0]), staging, 0)
        assert pool[1, -1, -1].tolist() == [7, 7, 7]


def units() -> None:
    """The interpreter does not mind where memory lies; a GPU does."""
    memory = torch.zeros(4096, dtype=torch.uint8)
    assert memory.data_ptr() % 16 == 0
    staging = torch.zeros(1, 2, 1, 1, 64, dtype=torch.uint8)
    for skipped, offset, row, expected in (
        (0, 0, 64, 8),
        (0, 8, 48, 8),
        (4, 0, 64, 4),
        (1, 0, 64, 1),
        (0, 6, 40, 2),
        (0, 0, 44, 4),
    ):
        pool = memory[skipped:][: 4 * 64].view(4, 1, 1, 64)[..., :row]
        assert triton_blocks.unit_bytes(pool, staging, offset) == expected
    for skipped, block_bytes, words in ((0, 304, True), (0, 300, False), (4, 304, False)):
        data = memory[skipped:][: 2 * block_bytes].view(2, block_bytes)
        assert triton_xxh3.is_aligned(data) == words
    pool = memory[: 4 * 66].view(4, 1, 1, 66)[..., :64]
    assert triton_blocks.unit_bytes(pool, staging, 0) == 2


ALL = {f.__name__: f for f in (gather, scatter, broadcast, checksum, far, units)}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        ALL[name]()
        print(name)
