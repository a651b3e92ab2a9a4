"""Directory and block model side by side, and faults that this must find."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.policy.directory.driver import ROWS, Driver
from tests.policy.directory.mutants import MUTANTS, copy_to, passes_soak, survives
from tests.policy.directory.soak import soak, starved

RANDOMS = st.randoms(use_true_random=False)
"""Every choice of a step is drawn by hypothesis, which so can shrink it."""


class Machine(RuleBasedStateMachine):
    """The moves of the driver as rules. Everything is compared after each."""

    @initialize(relabel=st.booleans())
    def begin(self, relabel: bool) -> None:
        self.driver = Driver(0, relabel=relabel)

    def _step(self, choices: random.Random, name: str) -> None:
        self.driver.random = choices
        self.driver.now += choices.choice((0.0, 0.1, 0.5))
        getattr(self.driver, name)()
        self.driver.compare()

    @rule(choices=RANDOMS)
    def arrive(self, choices: random.Random) -> None:
        self._step(choices, "arrive")

    @rule(choices=RANDOMS)
    def place(self, choices: random.Random) -> None:
        self._step(choices, "place")

    @rule(choices=RANDOMS)
    def finish_move(self, choices: random.Random) -> None:
        self._step(choices, "finish_move")

    @rule(choices=RANDOMS)
    def close(self, choices: random.Random) -> None:
        self._step(choices, "close")

    @rule(choices=RANDOMS)
    def stored(self, choices: random.Random) -> None:
        self._step(choices, "stored")

    @rule(choices=RANDOMS)
    def evicted(self, choices: random.Random) -> None:
        self._step(choices, "evicted")

    @rule(choices=RANDOMS)
    def node_lost(self, choices: random.Random) -> None:
        self._step(choices, "node_lost")

    @rule(choices=RANDOMS)
    def role(self, choices: random.Random) -> None:
        self._step(choices, "role")

    @rule(choices=RANDOMS)
    def signal(self, choices: random.Random) -> None:
        self._step(choices, "signal")

    @rule(choices=RANDOMS)
    def silence(self, choices: random.Random) -> None:
        self._step(choices, "silence")

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.driver.random = random.Random(1)
            self.driver.finish()


Machine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
TestDirectory = Machine.TestCase


@pytest.mark.parametrize("seed", range(4))
def test_the_directory_is_the_block_model(seed: int) -> None:
    driver = Driver(seed, relabel=seed % 2 == 1)
    for _ in range(400):
        driver.step()
    driver.finish()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_twenty_thousand_steps_touch_every_row_of_the_table() -> None:
    rows = soak(20_000, seed=1)
    assert not starved(rows, 20_000)
    assert set(ROWS) <= set(rows)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_fault_is_found(tmp_path: Path) -> None:
    copy_to(tmp_path)
    assert passes_soak(tmp_path), "the copy without a fault must pass"
    assert [name for name in MUTANTS if survives(name, tmp_path)] == []
