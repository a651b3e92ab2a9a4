"""One buffer to several, through a table of addresses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evkernels import broadcast_bytes, pointer_table
from tests.kernels.shapes import DTYPES, random, raw

MARGIN = 16


@given(st.integers(0, 300), st.sampled_from((1, 2, 4)), st.sampled_from(DTYPES))
@settings(max_examples=60, deadline=None)
def test_every_destination_gets_every_byte_and_no_more(
    elements: int, ranks: int, dtype: torch.dtype
) -> None:
    source = random((elements,), dtype, seed=elements)
    targets = [random((elements + MARGIN,), dtype, seed=rank) for rank in range(ranks)]
    behind = [raw(target[elements:]) for target in targets]
    broadcast_bytes(source, pointer_table(targets))
    assert [raw(target[:elements]) for target in targets] == [raw(source)] * ranks
    assert [raw(target[elements:]) for target in targets] == behind


def test_a_table_holds_addresses_in_order() -> None:
    targets = [torch.zeros(4), torch.zeros(8)]
    table = pointer_table(targets)
    assert table.dtype == torch.int64
    assert table.tolist() == [target.data_ptr() for target in targets]


def test_no_destinations_is_nothing_to_do() -> None:
    broadcast_bytes(torch.zeros(4), torch.zeros(0, dtype=torch.int64))


def test_what_would_write_elsewhere_is_refused() -> None:
    source, target = torch.zeros(64, dtype=torch.uint8), torch.zeros(256, dtype=torch.uint8)
    address = target.data_ptr()
    for addresses, says in (
        ([0], "null address"),
        ([address + 8], "not aligned to 16 bytes"),
        ([address, address + 48], "overlap for 64 bytes"),
        ([address, address], "overlap for 64 bytes"),
        ([source.data_ptr()], "overlap for 64 bytes"),
    ):
        with pytest.raises(ValueError, match=says):
            broadcast_bytes(source, torch.tensor(addresses), trusted=True)
    assert not target.any()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="source must be contiguous"):
        broadcast_bytes(torch.zeros(4, 4).t(), torch.tensor([16]))
    with pytest.raises(ValueError, match="destinations must be a contiguous int64 vector"):
        broadcast_bytes(torch.zeros(4), torch.tensor([16.0]))
    with pytest.raises(ValueError, match="at least one destination"):
        pointer_table([])
    with pytest.raises(ValueError, match="destination 1 must be contiguous"):
        pointer_table([torch.zeros(2), torch.zeros(4, 4).t()])
