"""`evctl bench transfer`: how figures become verdicts, and one small run of each process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec import UNSET

from evctl.bench.measurement import Measurement
from evctl.bench.transfer import run
from evctl.bench.transfer.report import Pair, Runs, copy_rows, cost_rows, damage_row, interval
from evctl.core.errors import EvctlError, RefusedError
from tests.conftest import ROOT

MIB_16 = 16 << 20


def runs(ours_s: float, plain_s: float) -> Runs:
    return Runs("scattered", [ours_s] * 5, [ours_s] * 5, [plain_s] * 5, [plain_s] * 5)


def pairs(*costs: float) -> list[Pair]:
    return [Pair(256, 1.0 + cost, 1.0, 1.0 + cost, 1.0) for cost in costs]


@pytest.mark.parametrize(
    ("backend", "ours_s", "ok"),
    [("shm", 0.0016, True), ("shm", 0.0017, False), ("mooncake", 0.00119, False)],
)
def test_speed_is_judged_by_its_share_of_the_plain_way(
    backend: str, ours_s: float, ok: bool
) -> None:
    speed, *rest = copy_rows(backend, runs(ours_s, 0.001), MIB_16)
    assert speed.ratio == pytest.approx(0.001 / ours_s)
    assert speed.value == pytest.approx(MIB_16 / ours_s / (1 << 30))
    assert speed.ok is ok
    assert [row.ok for row in rest] == [UNSET, UNSET]


def test_a_damaged_block_that_passes_fails_the_bench() -> None:
    assert damage_row("shm", 2, 2).ok is True
    assert damage_row("shm", 1, 2).ok is False


def test_an_interval_is_students() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.within == pytest.approx(4.302653 / 3**0.5)  # t of 2 degrees, 97.5 %


@pytest.mark.parametrize(
    ("costs", "ok"),
    [
        ((0.01, 0.012, 0.011), True),
        ((0.05, 0.052, 0.051), False),
        ((0.2, -0.2, 0.1, -0.05), UNSET),
    ],
    ids=["small", "large", "nobody knows"],
)
def test_a_cost_is_judged_where_its_interval_allows(costs: tuple[float, ...], ok: object) -> None:
    cpu, wall, rates = cost_rows(pairs(*costs))
    assert cpu.ok is wall.ok is ok
    assert cpu.value == pytest.approx(100 * sum(costs) / len(costs))
    assert rates.value == pytest.approx(256 * len(costs) / (len(costs) + sum(costs)))


def test_mooncake_without_a_namespace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(RefusedError, match="needs root"):
        run.measure(run.Plan(backends=("mooncake",), pairs=0))


@pytest.mark.system
def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(EvctlError, match="no model"):
        run.measure(run.Plan(backends=(), pairs=2, model="no-such-model"))


def names(found: Measurement) -> list[str]:
    return [row.name.partition(":")[0] for row in found.rows]


@pytest.mark.system
def test_a_small_run() -> None:
    """What comes out, not how fast it was: but every damaged block was noticed."""
    found = run.measure(run.Plan(backends=("shm",), blocks=8, repeats=3, pairs=2))
    shapes = ["shm, contiguous"] * 3 + ["shm, scattered"] * 3 + ["shm"]
    assert names(found)[:7] == shapes
    assert found.rows[6].ok is True
    kept = found.rows[-1]
    assert kept.ok is True, kept.name
    assert all(row.value > 0 for row in found.rows[:7])


@pytest.mark.netns
def test_a_small_run_over_mooncake() -> None:
    command = [sys.executable, "-m", "evengine.benches.transfer", "mooncake"]
    done = subprocess.run(
        [*command, "--blocks", "16", "--repeats", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 3
    assert lines[-1] == '{"damaged": 2}'
