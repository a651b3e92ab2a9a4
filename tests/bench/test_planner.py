"""`evctl bench planner`: its world, what is learned of it, and how moves are counted."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise
from random import Random

import pytest
from msgspec import UNSET

from evctl.bench.measurement import Row
from evctl.bench.planner.cases import BEST, CASES, LAWS, WINDOW_S, Case
from evctl.bench.planner.fits import fit
from evctl.bench.planner.report import LEAST_WINDOWS, judged, rows
from evctl.bench.planner.run import Played, play, record, truth
from evctl.bench.planner.world.loop import World
from evctl.bench.planner.world.work import Mix, Work, tailed
from evctl.core.costs import TERMS

SMALL = Case(BEST, 4, 835.0, agents=40)
TINY = Case(BEST, 4, 835.0, agents=8)


def test_the_world_knows_nothing_of_the_policy() -> None:
    code = (
        "import sys, evctl.bench.planner.world.loop;"
        "print([m for m in sys.modules if m.startswith(('evctl.policy', 'evctl.core'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Diary:
    """Checks what the world tells, and in which order."""

    def __init__(self) -> None:
        self.stages: dict[str, str] = {}
        self.asked_s: dict[str, float] = {}
        self.branches: dict[str, int] = {}
        self.e2e_s: list[float] = []
        self.last_s = 0.0

    def _step(self, request: str, before: str, after: str, now_s: float) -> None:
        assert now_s >= self.last_s
        self.last_s = now_s
        assert self.stages.get(request, "") == before
        self.stages[request] = after

    def arrived(self, request: str, branch: str, now_s: float) -> None:
        self._step(request, "", "arrived", now_s)
        assert not self.branches.get(branch), "a branch asks for one thing at a time"
        self.branches[branch] = 1
        self.asked_s[request] = now_s

    def began(self, request: str, uncached: int, cached: int, now_s: float) -> None:
        self._step(request, "arrived", "began", now_s)
        assert uncached > 0
        assert cached >= 0

    def sampled(self, request: str, now_s: float) -> None:
        self._step(request, "began", "sampled", now_s)

    def decodes(self, request: str, now_s: float) -> None:
        self._step(request, "sampled", "decodes", now_s)

    def done(self, request: str, branch: str, output: int, now_s: float, *, last: bool) -> None:
        self._step(request, "decodes", "done", now_s)
        self.branches[branch] = 0
        self.e2e_s.append(now_s - self.asked_s[request])
        assert last == ("." in branch and self._ended(branch))

    def _ended(self, branch: str) -> bool:
        self.branches[branch] = self.branches.get(branch, 0)
        self.count = getattr(self, "count", {})
        self.count[branch] = self.count.get(branch, 0) + 1
        return bool(self.count[branch] == 4)


def test_requests_pass_through_the_world_in_order_and_its_loop_closes() -> None:
    """Little's law over agents, which the world does not use: their time is requests, pauses and
    waits for sub-agents."""
    world = World(LAWS, SMALL.work(0.3), 4, 3)
    diary = world.watcher = Diary()
    world.play(3000.0)
    assert world.done == len(diary.e2e_s) > 4000
    agents = sum(1 for name in diary.branches if "." not in name)
    assert agents == 40
    assert len(diary.branches) > 100, "sub-agents come and go"
    mean_s = sum(diary.e2e_s) / len(diary.e2e_s)
    in_flight = world.done / 3000.0 * mean_s
    assert 0 < in_flight < 40 * 1.6


def test_the_same_seed_plays_the_same() -> None:
    assert record(TINY, 0.6, 1, 5) == record(TINY, 0.6, 1, 5) != record(TINY, 0.6, 1, 6)


def test_slices_are_whole_and_hold_every_request() -> None:
    slices = record(SMALL, 0.0, 2, 5)
    assert len(slices) == 20
    assert all(b.start_s == pytest.approx(a.end_s) for a, b in pairwise(slices))
    done = sum(one.completions for one in slices) / (2 * WINDOW_S)
    assert done == pytest.approx(truth(SMALL, 4, 2, 5), rel=0.1)
    for one in slices:
        assert one.branches > one.in_flight > 0
        assert one.squared_variation > 0.5, "prompts are unlike"


@pytest.mark.parametrize("autocorrelation", [0.0, 0.3, 0.6])
def test_the_mix_drifts_with_the_autocorrelation_that_was_asked_for(
    autocorrelation: float,
) -> None:
    work = Work(1, autocorrelation=autocorrelation, drift=0.1)
    mix = Mix(work, Random(2))
    values = [mix.at(60.0 * i + 1.0)[0] - 1.0 for i in range(5000)]
    square = sum(v * v for v in values)
    found = sum(a * b for a, b in pairwise(values)) / square
    assert found == pytest.approx(autocorrelation, abs=0.05)
    assert (square / 5000) ** 0.5 == pytest.approx(0.1, rel=0.1)


def test_tails_are_heavy_and_keep_their_mean() -> None:
    random = Random(4)
    drawn = sorted(tailed(random, 5200.0, 1.4) for _ in range(100_000))
    assert sum(drawn) / len(drawn) == pytest.approx(5200.0, rel=0.05)
    assert sum(drawn[-5000:]) > 0.35 * sum(drawn), "the top 5 % hold over a third"


def test_the_fit_is_close_and_not_exact() -> None:
    """The laws have another form than Eq. 1 and 2, so that a model error remains."""
    model = fit(LAWS, 0, Random(1))
    off = []
    for batch in (2, 8, 16):
        true_s = LAWS.iteration_s(0, batch, batch * 120_000.0)
        off.append(abs(model.decode_s(batch) / true_s - 1.0))
    for uncached in (300, 3000, 30_000):
        random = Random(uncached)
        times_s = [LAWS.prefill_s(0, uncached, 120_000.0, random) for _ in range(500)]
        pairs = uncached * 120_000.0 + uncached * uncached / 2
        off.append(abs(model.prefill_s(uncached, pairs, 0.0) / (sum(times_s) / 500) - 1.0))
    assert 0.005 < max(off) < 0.15
    assert len(model.errors) == len(TERMS)


def test_a_window_of_play_has_a_choice_of_every_rule() -> None:
    played = play(TINY, 0.0, 3, 2)
    for rule in ("paper", "sound", "plus"):
        assert len(played.first[rule]) == 3
        assert len(played.later[rule]) == len(played.within[rule]) == 1


def test_moves_are_counted_as_false_and_right_by_what_is_true() -> None:
    """Two windows where the present split is best: one move, once seen from one window and never
    from three. Where another is 15 % better, a move that wins less than half of that is no
    right one."""
    best, better = CASES[0], next(c for c in CASES if c.name == "15 %")
    both = {"paper": ["3P6D", "3P6D"], "sound": ["", ""], "plus": ["3P6D", ""]}
    none: dict[str, list[str]] = {rule: ["", ""] for rule in both}
    moves = {
        "paper": ["4P5D", "5P4D"],
        "sound": ["4P5D", "4P5D"],
        "plus": ["4P5D", "2P7D"],
    }
    played = [
        Played(case, 0.3, 0.2, first, later, first)
        for case, first, later in ((best, both, none), (better, moves, moves))
    ]
    truths = {
        best: {"4P5D": 7.0, "3P6D": 6.9},
        better: {"3P6D": 7.0, "4P5D": 8.05, "5P4D": 7.4, "2P7D": 5.0},
    }
    found = {row.name: row for row in rows(played, truths)}
    false = found["plus: false moves per window, autocorrelation 0.3"]
    assert (false.value, false.peer, false.ok) == (25.0, 50.0, False)
    assert found["sound: false moves per window, autocorrelation 0.3"].ok is UNSET
    right = found["plus: right moves in one window, 15 % better, autocorrelation 0.3"]
    assert (right.value, right.peer, right.ok) == (50.0, 50.0, False)
    assert found["sound: right moves in one window, 15 % better, autocorrelation 0.3"].value == 100
    gain = found[f"true gain of 4P5D over 3P6D ({better.name})"]
    assert gain.value == pytest.approx(15.0)


def test_a_few_windows_pass_no_verdict() -> None:
    row = Row(name="false moves", value=0.0, unit="%", ok=True, goal="at most 5%")
    assert judged([row], LEAST_WINDOWS) == [row]
    (found,) = judged([row], LEAST_WINDOWS - 1)
    assert (found.ok, found.goal) == (UNSET, "at most 5%")
