"""A small soak: every kind of fault a few times, under load, and that the soak can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from evengine.transfer.faults import FaultKind
from tests.engine.fault_soak.__main__ import KINDS, SIGNALS, run

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

LIES = {
    FaultKind.CORRUPT.value,
    FaultKind.SWAPPED.value,
    FaultKind.WRONG_GENERATION.value,
    FaultKind.OTHER_LIFE.value,
}


def check(folder: Path, backend: str, kinds: tuple[str, ...], burst: int) -> None:
    done = run(folder=folder, backend=backend, kinds=kinds, count=1, burst=burst, seed=5, roots=2)
    assert [this.kind for this, _ in done] == list(kinds)
    for this, _ in done:
        assert this.tally.violations == []
        assert this.faults >= (1 if this.kind in SIGNALS else burst), this.kind
        assert this.tally.requests > 0
        if this.kind in LIES:
            assert this.refused >= this.faults
    assert sum(this.peer_blocks for this, _ in done) > 0
    assert sum(this.moves for this, _ in done) > 0


def test_each_kind_a_few_times(tmp_path: Path) -> None:
    check(tmp_path, "shm", KINDS + SIGNALS, burst=5)


@pytest.mark.netns
def test_some_kinds_between_machines(tmp_path: Path) -> None:
    kinds = (FaultKind.OTHER_LIFE.value, FaultKind.FAILED_BUT_WRITES.value)
    check(tmp_path, "mooncake", kinds + SIGNALS, burst=3)


def test_the_soak_notices_engines_that_believe_everything(tmp_path: Path) -> None:
    done = run(
        folder=tmp_path,
        backend="shm",
        kinds=[FaultKind.WRONG_GENERATION.value, FaultKind.SWAPPED.value],
        count=1,
        burst=5,
        seed=5,
        roots=2,
        options=["--blind"],
    )
    for this, _ in done:
        assert any("that it read lied, 0 were refused" in line for line in this.tally.leaks)
