"""`evctl bench model`: what it says is off is off, and what it compares with is no straw man."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys

import msgspec
import pytest

from evctl.bench.model import run
from evctl.bench.model.predictors import Constant, Ours, TotalInput
from evctl.bench.model.report import Compared, floor_of, iterations_off
from evctl.bench.model.run import Heard, Plan, judged
from evctl.bench.model.traffic import Agents, Alone, Mix, Seen
from evctl.core.costs import Coefficients
from evctl.core.events import IterationSample
from evctl.core.split import Phase
from evctl.core.workload import attention_pairs
from tests.conftest import ROOT
from tests.policy.costmodel.generated import TRUTH, samples

SLOWER = msgspec.structs.replace(TRUTH, c1_s=2 * TRUTH.c1_s, d2_s=3 * TRUTH.d2_s)


def seen(truth: Coefficients, seed: int, seconds: float = 60.0) -> list[Seen]:
    return [Seen(at, sample) for at, sample in samples(truth, seed, seconds=seconds, noise=0.05)]


def alone(truth: Coefficients, seed: int) -> list[Alone]:
    rng = random.Random(seed)
    found = []
    for _ in range(20):
        new, cached, output = rng.randint(16, 600), rng.choice((0, 3000)), rng.randint(4, 40)
        pairs = attention_pairs(new, cached)
        prefill_s = truth.prefill_s(new, pairs, 0) + truth.c0_s * (-(-new // 256) - 1)
        decode_s = (output - 1) * truth.decode_s(1, new + cached)
        found.append(Alone(new + cached, new, 0, output, prefill_s, decode_s))
    return found


def same(noise: float) -> list[Seen]:
    """Repeated work, half of it off by `noise` from the rest."""
    found = []
    for index in range(40):
        factor = 1.0 + noise * (index % 2)
        found.append(Seen(0.0, IterationSample(Phase.PREFILL, 0.1 * factor, 256, 1.0, 0, 0)))
        found.append(Seen(0.0, IterationSample(Phase.DECODE, 0.02 * factor, 0, 1.0, 0, 8)))
    return found


def verdicts(heard: Heard) -> dict[str, object]:
    rows, _, _ = judged(Plan(window_s=5.0), heard)
    return {row.name: row.ok for row in rows if row.ok is not msgspec.UNSET}


def test_a_machine_that_stays_as_it_was_meets_the_goals() -> None:
    heard = Heard(seen(TRUTH, 1), alone(TRUTH, 1), seen(TRUTH, 2), alone(TRUTH, 2), [], True)
    assert set(verdicts(heard).values()) == {True}
    assert len(verdicts(heard)) == 8


def test_one_that_does_other_work_than_was_learned_misses_them() -> None:
    heard = Heard(seen(TRUTH, 1), alone(TRUTH, 1), seen(SLOWER, 2), alone(SLOWER, 2), [], True)
    found = verdicts(heard)
    assert found["prefill iteration: median error"] is False
    assert found["decode iteration: median error"] is False
    assert found["request, prefill: median error"] is False


def test_nothing_fitted_is_a_goal_missed() -> None:
    only = [s for s in seen(TRUTH, 1) if s.sample.prefill_tokens]
    rows, model, why = judged(Plan(), Heard(only, [], [], [], [], False))
    assert model is None
    assert rows[0].ok is False
    assert "decode" in why


def test_ours_must_beat_both_others_and_not_only_be_close() -> None:
    """Iterations that are all alike: the constant is perfect, so ours does not beat it."""
    alike = [Seen(0.0, IterationSample(Phase.PREFILL, 0.1, 256, 32_896.0, 0, 0))] * 30
    model = Coefficients(0.104, *(0.0,) * 6)
    compared = Compared(Ours(model, 256), {"constant": Constant(alike, [])})
    (row, *_) = compared.rows("x", iterations_off(alike, prefill=True), [])
    assert row.value == pytest.approx(4.0)
    assert row.ok is False


def test_the_floor_widens_the_goal_by_as_much_as_repeating_differs() -> None:
    prefills, decodes = floor_of(same(0.2), 256, 8)
    assert max(prefills) == pytest.approx(100 * (1.2 / 1.1 - 1))
    assert len(decodes) == 40
    heavy = [Seen(0.0, IterationSample(Phase.PREFILL, 0.1, 256, 1.0, 0, 0))] * 9
    off = iterations_off(heavy, prefill=True)
    far = Constant([Seen(0.0, IterationSample(Phase.PREFILL, 0.3, 256, 1.0, 0, 0))], [])
    compared = Compared(Ours(Coefficients(0.115, *(0.0,) * 6), 256), {"constant": far})
    assert [row.ok for row in compared.rows("x", off, [])][::2] == [False, False]
    assert [row.ok for row in compared.rows("x", off, [6.0] * 9)][::2] == [True, True]


def test_total_input_is_given_what_it_can_use() -> None:
    """It gets whole prompts of fresh tokens right, and is lost where most are cached."""
    fresh = [Alone(n, n, 0, 1, TRUTH.c0_s + TRUTH.c1_s * n, 0.0) for n in range(50, 250, 10)]
    predictor = TotalInput([], fresh)
    assert predictor.prefill_s(fresh[3]) == pytest.approx(fresh[3].prefill_s, rel=1e-6)
    cached = Alone(5000, 50, 0, 1, TRUTH.c0_s + TRUTH.c1_s * 50, 0.0)
    assert predictor.prefill_s(cached) > 10 * cached.prefill_s
    chunk = IterationSample(Phase.PREFILL, 0.1, 100, attention_pairs(100, 900), 0, 0)
    line = TotalInput([Seen(0.0, chunk), Seen(0.0, chunk)], [])
    assert line.iteration_s(chunk) == pytest.approx(0.1)


def test_agents_build_on_their_context_until_it_is_full() -> None:
    mix = Mix(2, (30.0, 1.0), (4, 9), 400, shared_tokens=10)
    agents = Agents(mix, random.Random(1), 100)
    first, output = agents.ask(0)
    agents.answered(0, [7] * output)
    second, _ = agents.ask(0)
    assert second[: len(first) + output] == [*first, *[7] * output]
    lengths = []
    for _ in range(60):
        prompt, output = agents.ask(1)
        agents.answered(1, [5] * output)
        lengths.append(len(prompt) + output)
        assert prompt[:10] == first[:10]
    assert max(lengths) <= 400
    assert any(b < a for a, b in itertools.pairwise(lengths))


def test_waves_change_how_many_ask() -> None:
    mix = Mix(5, (1.0, 1.0), (1, 1), 10, waves=(2, 5))
    assert [mix.asking(s) for s in (0.0, 4.9, 5.0, 9.9, 10.0)] == [2, 2, 5, 5, 2]
    assert Mix(5, (1.0, 1.0), (1, 1), 10).asking(3.0) == 5


def test_quick_is_quick() -> None:
    plan = run.Plan().quick()
    assert plan.warm_up_s + plan.held_out_s < 30.0


@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_real_engine_is_fitted_and_told() -> None:
    """Seconds only, so whether goals are met is not looked at: everything is there, and a model
    with both phases came out."""
    command = [sys.executable, "-m", "evctl.cli", "bench", "model", "--quick", "-o", "json"]
    done = subprocess.run(
        [*command, "--model", "random-4l256"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=280,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads(done.stdout)
    assert found["kind"] == "Measurement"
    assert found["why_not"] == ""
    assert found["coefficients"]["c1"] > 0.0
    assert found["coefficients"]["d0"] + found["coefficients"]["d3"] > 0.0
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["of them mixed, left out"]["value"] == 0
    assert rows["iterations of warm-up"]["value"] > 50
    assert rows["request, prefill: median error"]["value"] < 100.0
    assert "ok" in rows["prefill iteration: median error"]
