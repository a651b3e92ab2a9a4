"""What `evctl bench planner` plays: works and splits, and how much better another split is."""

from __future__ import annotations

from typing import Final

import msgspec

from evctl.bench.planner.world.laws import Laws
from evctl.bench.planner.world.work import Work

SPEEDS: Final = (1.0, 1.03, 0.97, 1.02, 0.98, 1.01, 0.99, 1.04, 0.96)
LAWS: Final = Laws(SPEEDS)
WINDOW_S: Final = 600.0
SLICES: Final = 10
WARM_UP_S: Final = 900.0
AUTOCORRELATIONS: Final = (0.0, 0.3, 0.6)
MOST_RUNNING: Final = 64
L1_TOKENS: Final = 5_000_000


BEST: Final = "best"


class Case(msgspec.Struct, frozen=True):
    """name: "best", or by how many per cent another split is better. prefill_nodes of nine;
    output_tokens: mean, which sets the balance of the phases."""

    name: str
    prefill_nodes: int
    output_tokens: float
    agents: int = 110

    @property
    def split(self) -> str:
        return f"{self.prefill_nodes}P{len(SPEEDS) - self.prefill_nodes}D"

    def work(self, autocorrelation: float) -> Work:
        return Work(
            agents=self.agents,
            output_tokens=self.output_tokens,
            autocorrelation=autocorrelation,
            slice_s=WINDOW_S / SLICES,
        )


CASES: Final = (
    Case(BEST, 4, 835.0),
    Case(BEST, 3, 1150.0),
    Case("5 %", 3, 785.0),
    Case("10 %", 3, 655.0),
    Case("15 %", 3, 560.0),
    Case("15 %", 6, 970.0),
)
"""Where the present split is best, the next one is 1 to 4 % worse; the rest are short of prefill
nodes, but for the last, which has too many."""
