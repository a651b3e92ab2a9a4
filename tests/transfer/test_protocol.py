"""Coalescing, ranges, headers: properties against models that work byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evengine.ports import Piece
from evengine.transfer.protocol import (
    block_checksum,
    coalesce,
    make_header,
    range_fault,
    verify_header,
)

SIZE = 24
KEY, OTHER_KEY = b"k" * 16, b"o" * 16
TOKEN_BYTES = 4
pieces = st.builds(Piece, st.integers(0, SIZE), st.integers(0, SIZE), st.integers(1, 8))


def bytes_of(some: list[Piece]) -> set[tuple[int, int]]:
    """Which local byte goes with which remote byte."""
    return {
        (piece.local_offset + i, piece.remote_offset + i)
        for piece in some
        for i in range(piece.length_bytes)
    }


@given(st.lists(pieces, max_size=12))
def test_coalescing_keeps_every_byte_and_leaves_nothing_to_merge(some: list[Piece]) -> None:
    merged = coalesce(some)
    assert bytes_of(merged) == bytes_of(some)
    assert sum(piece.length_bytes for piece in merged) == len(bytes_of(some))
    for one in merged:
        after = (one.local_offset + one.length_bytes, one.remote_offset + one.length_bytes)
        assert after not in {(two.local_offset, two.remote_offset) for two in merged}


def test_a_run_in_any_order_is_one_piece_and_a_break_on_either_side_is_two() -> None:
    run = [Piece(i * 4, 100 + i * 4, 4) for i in (2, 0, 3, 1)]
    assert coalesce(run) == [Piece(0, 100, 16)]
    assert len(coalesce([Piece(0, 0, 4), Piece(4, 8, 4)])) == 2
    assert len(coalesce([Piece(0, 0, 4), Piece(8, 4, 4)])) == 2
    assert coalesce([]) == []


@given(st.lists(st.tuples(*[st.integers(-3, SIZE + 3)] * 3), max_size=4))
def test_a_range_is_good_exactly_if_all_its_bytes_exist(raw: list[tuple[int, int, int]]) -> None:
    local_bytes, remote_bytes = SIZE, SIZE // 2
    some = [Piece(*one) for one in raw]
    good = all(
        piece.length_bytes > 0
        and min(piece.local_offset, piece.remote_offset) >= 0
        and piece.local_offset + piece.length_bytes <= local_bytes
        and piece.remote_offset + piece.length_bytes <= remote_bytes
        for piece in some
    )
    fault = range_fault(some, local_bytes, remote_bytes)
    assert (not fault) is good


@given(
    st.binary(min_size=TOKEN_BYTES, max_size=8 * TOKEN_BYTES),
    st.data(),
)
def test_a_header_vouches_for_its_valid_bytes_and_for_no_other(
    raw: bytes, data: st.DataObject
) -> None:
    tokens = data.draw(st.integers(1, len(raw) // TOKEN_BYTES))
    block = bytearray(raw)
    header = make_header(
        memoryview(block),
        boot_id="b",
        key=KEY,
        generation=3,
        valid_tokens=tokens,
        token_bytes=TOKEN_BYTES,
    )

    def fault() -> str | None:
        return verify_header(
            header,
            memoryview(block),
            boot_id="b",
            key=KEY,
            generation=3,
            token_bytes=TOKEN_BYTES,
        )

    assert fault() is None
    position = data.draw(st.integers(0, len(raw) - 1))
    block[position] ^= 1 << data.draw(st.integers(0, 7))
    assert (fault() is not None) is (position < tokens * TOKEN_BYTES)


@pytest.mark.parametrize(
    ("boot_id", "key", "generation", "reason"),
    [
        ("c", KEY, 3, "boot id"),
        ("b", OTHER_KEY, 3, "key"),
        ("b", KEY, 2, "generation"),
        ("b", KEY, 4, "generation"),
    ],
)
def test_right_bytes_under_wrong_identity_are_wrong(
    boot_id: str, key: bytes, generation: int, reason: str
) -> None:
    block = memoryview(bytes(range(16)))
    header = make_header(
        block, boot_id="b", key=KEY, generation=3, valid_tokens=4, token_bytes=TOKEN_BYTES
    )
    found = verify_header(
        header, block, boot_id=boot_id, key=key, generation=generation, token_bytes=TOKEN_BYTES
    )
    assert found is not None
    assert found.startswith(reason)


@pytest.mark.parametrize("tokens", [0, -1, 5])
def test_a_header_cannot_speak_of_more_or_less_than_its_block(tokens: int) -> None:
    block = memoryview(bytes(16))
    with pytest.raises(ValueError):
        make_header(block, boot_id="b", key=KEY, generation=1, valid_tokens=tokens, token_bytes=4)
    good = make_header(block, boot_id="b", key=KEY, generation=1, valid_tokens=4, token_bytes=4)
    forged = type(good)(good.boot_id, good.key, good.generation, tokens, good.checksum)
    found = verify_header(forged, block, boot_id="b", key=KEY, generation=1, token_bytes=4)
    assert found is not None


def test_the_checksum_is_the_one_that_the_wire_names() -> None:
    """xxh3-64 with seed 0: both ends of a mixed cluster must agree for ever."""
    assert block_checksum(memoryview(b"")) == 0x2D06800538D394C2
    assert block_checksum(memoryview(b"evctl")) == block_checksum(memoryview(bytearray(b"evctl")))
