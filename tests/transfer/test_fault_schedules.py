"""Which call goes wrong, and how: the same for the same seed and order of calls."""

from __future__ import annotations

from collections import Counter

import pytest

from evengine.pool.headers import HEADER_BYTES, USED_HEADER_BYTES
from evengine.ports import Piece, TransferState
from evengine.transfer.faults import AtRandom, ByCall, Fault, FaultKind, bad_blocks, can_happen

ONE = [Piece(0, 0, 4096)]
TWO = [Piece(0, 0, 4096), Piece(4096, 8192, 4096)]
UNEVEN = [Piece(0, 0, 4096), Piece(4096, 8192, 100)]


def drawn(seed: int, **rates: float) -> list[Fault | None]:
    schedule = AtRandom(seed, list(FaultKind), **rates)
    return [schedule.fault(n % 3 == 0, TWO) for n in range(600)]


def test_equal_seeds_and_calls_have_equal_faults() -> None:
    assert drawn(5, reads=0.5, writes=0.5) == drawn(5, reads=0.5, writes=0.5)
    assert drawn(5, reads=0.5, writes=0.5) != drawn(6, reads=0.5, writes=0.5)


def test_the_rate_of_one_direction_changes_nothing_about_the_other() -> None:
    both, reads = drawn(5, reads=0.5, writes=0.5), drawn(5, reads=0.5)
    assert [f for n, f in enumerate(both) if n % 3] == [f for n, f in enumerate(reads) if n % 3]
    assert not any(fault for n, fault in enumerate(reads) if n % 3 == 0)
    share = sum(fault is not None for fault in reads) / 400
    assert 0.4 < share < 0.6


def test_every_kind_comes_up_within_its_bounds() -> None:
    faults = [fault for fault in drawn(5, reads=1.0, writes=1.0) if fault]
    assert len(faults) == 600
    assert set(Counter(fault.kind for fault in faults)) == set(FaultKind)
    assert {fault.polls for fault in faults} == set(range(1, 7))
    assert {fault.pieces for fault in faults} == {0, 1}
    assert all(0 <= fault.offset < 4096 for fault in faults)
    assert {fault.report for fault in faults} == {TransferState.DONE, TransferState.FAILED}


def test_a_byte_that_means_nothing_is_never_the_one_that_is_damaged() -> None:
    """Nobody could notice it, so it would look like a lie that was believed."""
    schedule = AtRandom(1, [FaultKind.CORRUPT], reads=1.0)
    slot = [Piece(0, 0, HEADER_BYTES + 8)]
    offsets = {fault.offset for _ in range(2_000) if (fault := schedule.fault(False, slot))}
    assert offsets == set(range(HEADER_BYTES + 8)) - set(range(USED_HEADER_BYTES, HEADER_BYTES))


@pytest.mark.parametrize(
    ("kind", "push", "pieces", "possible"),
    [
        (FaultKind.SWAPPED, True, ONE, False),
        (FaultKind.SWAPPED, True, UNEVEN, False),
        (FaultKind.SWAPPED, False, TWO, True),
        (FaultKind.WRONG_GENERATION, True, TWO, False),
        (FaultKind.WRONG_GENERATION, False, ONE, True),
        (FaultKind.CORRUPT, True, [], False),
    ],
)
def test_what_cannot_happen_to_a_call_does_not(
    kind: FaultKind, push: bool, pieces: list[Piece], possible: bool
) -> None:
    assert can_happen(kind, push, pieces) is possible
    schedule = AtRandom(1, [kind], reads=1.0, writes=1.0)
    assert bool(schedule.fault(push, pieces)) is possible


def test_the_nth_call_of_one_direction() -> None:
    schedule = ByCall({1: Fault(FaultKind.STALL)}, push=False)
    found = [schedule.fault(push, ONE) for push in (False, True, True, False, False)]
    assert [fault is not None for fault in found] == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("fault", "bad"),
    [
        (Fault(FaultKind.CORRUPT), 1),
        (Fault(FaultKind.SWAPPED), 2),
        (Fault(FaultKind.WRONG_GENERATION), 1),
        (Fault(FaultKind.OTHER_LIFE), 3),
        (Fault(FaultKind.PARTIAL, pieces=1, report=TransferState.DONE), 2),
        (Fault(FaultKind.PARTIAL, pieces=1), 0),
        (Fault(FaultKind.SLOW), 0),
    ],
)
def test_how_many_blocks_a_lie_is_about(fault: Fault, bad: int) -> None:
    assert bad_blocks(fault, [*TWO, *ONE]) == bad
