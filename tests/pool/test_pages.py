"""Blocks in the regions of one or several ranks, against a model that keeps plain bytes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evctl.core.errors import RefusedError
from evctl.core.kv import KvLayout
from evengine.pool import memory as memory_module
from evengine.pool.memory import PAGE_BYTES, SHM_DIRECTORY, KvMemory, map_region
from evengine.pool.pages import Pages
from evengine.pool.ranked import ReplicatedPages, open_pages
from evengine.transfer.protocol import block_checksum
from tests.transfer.peers import fresh_boot


@pytest.fixture(scope="module")
def shm() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="test-", dir=SHM_DIRECTORY) as directory:
        yield Path(directory)


class Shape:
    """A layout, ranks and slots. replicated: latent KV."""

    def __init__(
        self, layout: KvLayout, ranks: int, slots: int, replicated: bool, shm: Path
    ) -> None:
        self.layout = layout
        self.memory = KvMemory(
            "n",
            fresh_boot(),
            slots,
            layout.block_bytes,
            directory=shm,
            pool_bytes=100,
            ranks=ranks,
            replicated=replicated,
        )
        self.pages = open_pages(layout, self.memory)

    def naive_part(self, rank: int, data: bytes) -> bytes:
        """What a rank keeps of canonical bytes: its piece of each row of each plane."""
        if self.memory.replicated:
            return data
        row = self.layout.row_elements * 4
        part = row // self.memory.ranks
        starts = range(rank * part, len(data), row)
        return b"".join(data[start : start + part] for start in starts)


def layouts(ranks: int) -> st.SearchStrategy[KvLayout]:
    return st.builds(
        KvLayout,
        n_layers=st.integers(1, 3),
        planes=st.integers(1, 2),
        row_elements=st.integers(1, 6).map(lambda n: n * ranks),
        dtype=st.just("float32"),
        block_tokens=st.integers(1, 5),
    )


@st.composite
def shapes(draw: st.DrawFn) -> tuple[KvLayout, int, int, bool]:
    ranks = draw(st.integers(1, 5))
    replicated = draw(st.booleans())
    layout = draw(layouts(1 if replicated else ranks))
    return layout, ranks, draw(st.integers(1, 4)), replicated


@settings(max_examples=60, deadline=None)
@given(shape=shapes(), other_slots=st.integers(1, 9), data=st.data())
def test_pages_do_what_a_naive_model_does(
    shm: Path,
    shape: tuple[KvLayout, int, int, bool],
    other_slots: int,
    data: st.DataObject,
) -> None:
    layout, ranks, slots, replicated = shape
    here = Shape(layout, ranks, slots, replicated, shm)
    there = Shape(layout, ranks, other_slots, replicated, shm)
    held = [bytearray(layout.block_bytes) for _ in range(slots)]
    for _ in range(data.draw(st.integers(1, 6))):
        slot = data.draw(st.integers(0, slots - 1))
        tokens = data.draw(st.integers(1, layout.block_tokens))
        size = tokens * layout.token_bytes
        fresh = data.draw(st.binary(min_size=size, max_size=size))
        here.pages.write(slot, memoryview(fresh))
        held[slot][:size] = fresh
    for slot, expected in enumerate(held):
        check_block(here, slot, bytes(expected))
    slot, remote = slots - 1, data.draw(st.integers(0, other_slots - 1))
    tokens = data.draw(st.integers(1, layout.block_tokens))
    pieces = here.pages.pieces(slot, remote, tokens, other_slots)
    assert len(pieces) == ranks
    for piece in pieces:
        source = here.memory.view[piece.local_offset :][: piece.length_bytes]
        there.memory.view[piece.remote_offset :][: piece.length_bytes] = source
    size = tokens * layout.token_bytes
    moved = bytes(held[slot][:size]) + bytes(layout.block_bytes - size)
    for other in range(other_slots):
        empty = bytes(layout.block_bytes)
        check_block(there, other, moved if other == remote else empty)
    for pool in (here.memory.pool(), there.memory.pool()):
        assert bytes(pool) == bytes(100)
    close(here, there)


def check_block(shape: Shape, slot: int, expected: bytes) -> None:
    pages, layout = shape.pages, shape.layout
    for tokens in (None, *range(1, layout.block_tokens + 1)):
        part = expected if tokens is None else expected[: tokens * layout.token_bytes]
        assert bytes(pages.canonical(slot, tokens)) == part
        assert pages.checksum(slot, tokens) == block_checksum(memoryview(part))
    target = memoryview(bytearray(layout.block_bytes))
    pages.copy_out(slot, target)
    assert bytes(target) == expected
    for rank in range(shape.memory.ranks):
        start, size = slot * shape.memory.part_bytes, shape.memory.part_bytes
        found = bytes(shape.memory.region(rank)[start : start + size])
        assert found == shape.naive_part(rank, expected)


def close(*shapes: Shape) -> None:
    for shape in shapes:
        shape.memory.close()


LAYOUT = KvLayout(4, 2, 128, "float32", 16)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_write_of_no_tokens_of_a_block_is_refused(shm: Path, ranks: int) -> None:
    shape = Shape(LAYOUT, ranks, 2, False, shm)
    wrong = (
        (2, LAYOUT.block_bytes),
        (0, LAYOUT.block_bytes + LAYOUT.token_bytes),
        *([(0, 5), (-1, LAYOUT.block_bytes)] if ranks > 1 else []),
    )
    for slot, size in wrong:
        with pytest.raises((ValueError, IndexError)):
            shape.pages.write(slot, memoryview(bytes(size)))
    close(shape)


def test_a_damaged_replica_shows_whichever_it_is(shm: Path) -> None:
    shape = Shape(LAYOUT, 3, 2, True, shm)
    assert isinstance(shape.pages, ReplicatedPages)
    shape.pages.write(1, memoryview(bytes(range(256)) * (LAYOUT.block_bytes // 256)))
    good = shape.pages.checksum(1)
    for rank in range(3):
        at = shape.memory.part_bytes + 5
        shape.memory.region(rank)[at] ^= 1
        assert shape.pages.checksum(1) != good
        shape.memory.region(rank)[at] ^= 1
    assert shape.pages.checksum(1) == good
    close(shape)


def test_a_rank_maps_its_region_and_no_other(shm: Path) -> None:
    layout = KvLayout(1, 2, 12, "float32", 3)
    shape = Shape(layout, 3, 5, False, shm)
    memory = shape.memory
    assert type(Pages(layout, memory)) is Pages
    for rank in range(3):
        assert memory.region_bytes * rank % PAGE_BYTES == 0
        own = map_region(memory.path, memory.region_bytes * rank, memory.region(rank).nbytes)
        own[:] = bytes([rank + 1]) * own.nbytes
    assert bytes(shape.pages.canonical(4)) == (b"\1" * 16 + b"\2" * 16 + b"\3" * 16) * 6
    with pytest.raises(ValueError, match="3 ranks"):
        memory.block(0)
    with pytest.raises(IndexError):
        memory.region(3)
    close(shape)


def test_blocks_that_do_not_divide_and_copies_that_do_not_fit_are_refused(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="3 ranks"):
        KvMemory("n", fresh_boot(), 4, 1024, directory=shm, ranks=3)
    monkeypatch.setattr(memory_module, "available_bytes", lambda: (256 << 20) + 8 * 4096)
    one = KvMemory("n", fresh_boot(), 4, 4096, directory=shm, ranks=2)
    one.close()
    with pytest.raises(RefusedError) as raised:
        KvMemory("n", fresh_boot(), 4, 4096, directory=shm, ranks=3, replicated=True)
    assert raised.value.code == "EV-4102"
    assert "3 whole copies" in raised.value.what
    assert str(3 * 4 * 4096) in raised.value.why
