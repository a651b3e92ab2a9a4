"""How long branches pause, learned online: the mean rest of a pause that has lasted so long.

A table is a histogram over fixed bins, eight an octave from a quarter of a second to about a
fortnight, so the tables of all nodes have the same bins and add up. Old pauses fade by the number
of new ones, not by the clock, so an idle night forgets nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from math import log2

import msgspec

from evctl.policy.eviction.port import Ending

FIRST_EDGE_S = 0.25
BINS_PER_OCTAVE = 8
BINS = 22 * BINS_PER_OCTAVE + 2
EDGES_S = (0.0, *(FIRST_EDGE_S * 2 ** (i / BINS_PER_OCTAVE) for i in range(BINS - 1)))
"""Lower edges; the last bin is open."""

HALF_LIFE = 4096.0
"""Observations after which one counts half."""
PRIOR = 1.0
"""Weight, in observations, of "it will last as long again": all there is to say without data."""
GUESS_WEIGHT = 16.0
"""Weight, in observations, of what a more general table says."""
HABIT_SHARE = 0.5
"""Of a branch's last pause in its habit."""
TOP_LEVEL = 16
"""Habit of half a day and more."""
LARGEST_UNIT = 1e12


class GapSnapshot(msgspec.Struct, frozen=True):
    """A table as it travels: weight and sum of seconds in each bin that holds any."""

    bins: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()
    sums_s: tuple[float, ...] = ()


class GapTable:
    """A fading histogram of pauses; bounded (two floats a bin)."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        """half_life: in observations, above 0."""
        if half_life <= 0:
            raise ValueError(f"a half-life of {half_life} observations")
        self._growth = 2.0 ** (1.0 / half_life)
        self._unit = 1.0  # what an observation weighs now; older ones weigh less than that
        self._weights = [0.0] * BINS
        self._sums_s = [0.0] * BINS
        self._above: list[tuple[float, float]] | None = None

    @property
    def observations(self) -> float:
        """How many fresh observations the table weighs."""
        return sum(self._weights) / self._unit

    def observe(self, gap_s: float) -> None:
        """A pause came to its end. ValueError unless it is a length of time."""
        if not 0 <= gap_s < float("inf"):
            raise ValueError(f"a pause of {gap_s} s")
        self._unit *= self._growth
        if self._unit > LARGEST_UNIT:
            self._rescale()
        place = bisect_right(EDGES_S, gap_s) - 1
        self._weights[place] += self._unit
        self._sums_s[place] += self._unit * gap_s
        self._above = None

    def weight_above(self, idle_s: float) -> float:
        """Fresh observations of pauses longer than idle_s."""
        return self._rest(idle_s)[0] / self._unit

    def residual_s(
        self, idle_s: float, guess_s: float | None = None, guess_weight: float = PRIOR
    ) -> float:
        """Mean of (pause - idle_s) over pauses longer than idle_s. O(log bins), after O(bins)
        once for each observation.

        The guess counts as guess_weight such pauses; None: as long again as it has lasted.
        Within a bin pauses count as spread evenly.
        """
        weight, rest_s = self._rest(idle_s)
        guessed = guess_weight * self._unit
        guess_s = idle_s if guess_s is None else guess_s
        return (rest_s + guessed * guess_s) / (weight + guessed)

    def merge(self, other: GapSnapshot) -> None:
        """Add what another table has seen."""
        for place, weight, sum_s in zip(other.bins, other.weights, other.sums_s, strict=True):
            self._weights[place] += weight * self._unit
            self._sums_s[place] += sum_s * self._unit
        self._above = None

    def snapshot(self) -> GapSnapshot:
        used = tuple(i for i, weight in enumerate(self._weights) if weight > 0)
        return GapSnapshot(
            used,
            tuple(self._weights[i] / self._unit for i in used),
            tuple(self._sums_s[i] / self._unit for i in used),
        )

    def _rest(self, idle_s: float) -> tuple[float, float]:
        """Weight of the pauses longer than idle_s, and the sum of what is left of them."""
        if self._above is None:
            self._above = self._suffix_sums()
        place = bisect_right(EDGES_S, idle_s) - 1
        weight, sum_s = self._above[place + 1]
        rest_s = sum_s - weight * idle_s
        if self._weights[place]:
            low_s = EDGES_S[place]
            high_s = EDGES_S[place + 1] if place + 1 < BINS else 2 * max(low_s, idle_s)
            longer = self._weights[place] * (high_s - idle_s) / (high_s - low_s)
            weight += longer
            rest_s += longer * (high_s - idle_s) / 2
        return weight, max(0.0, rest_s)

    def _suffix_sums(self) -> list[tuple[float, float]]:
        weights = [0.0, *accumulate(reversed(self._weights))]
        sums_s = [0.0, *accumulate(reversed(self._sums_s))]
        return list(zip(reversed(weights), reversed(sums_s), strict=True))

    def _rescale(self) -> None:
        self._weights = [weight / self._unit for weight in self._weights]
        self._sums_s = [sum_s / self._unit for sum_s in self._sums_s]
        self._unit = 1.0


class Habit:
    """How long a branch's pauses tend to be: a fading mean of their logarithms."""

    __slots__ = ("_log2",)

    def __init__(self) -> None:
        self._log2: float | None = None

    @property
    def level(self) -> int:
        """-1 before the first pause, then one an octave, at most TOP_LEVEL."""
        return -1 if self._log2 is None else min(TOP_LEVEL, int(self._log2))

    def paused(self, gap_s: float) -> None:
        octaves = log2(1.0 + gap_s)
        known = octaves if self._log2 is None else self._log2
        self._log2 = known + HABIT_SHARE * (octaves - known)


class GapModel:
    """Tables from the general to the particular: all pauses, those after one ending, those of
    branches with one habit too. Each is the next one's guess, so that a thin table says little
    against a thick one. Beside them, how long responses take."""

    def __init__(self, half_life: float = HALF_LIFE) -> None:
        self._half_life = half_life
        self.pooled = GapTable(half_life)
        self.by_ending = {ending: GapTable(half_life) for ending in Ending}
        self.by_habit: dict[tuple[Ending, int], GapTable] = {}
        self.service = GapTable(half_life)

    def paused(self, ending: Ending, habit: Habit, gap_s: float) -> None:
        """A branch came back; its habit is brought up to date."""
        self.pooled.observe(gap_s)
        self.by_ending[ending].observe(gap_s)
        self._of_habit(ending, habit.level).observe(gap_s)
        habit.paused(gap_s)

    def served(self, service_s: float) -> None:
        """A response was complete."""
        self.service.observe(service_s)

    def idle_residual_s(self, ending: Ending, habit: Habit | None, idle_s: float) -> float:
        """Mean time until a branch comes back that has been idle for idle_s."""
        guess_s = self.pooled.residual_s(idle_s)
        guess_s = self.by_ending[ending].residual_s(idle_s, guess_s, GUESS_WEIGHT)
        table = None if habit is None else self.by_habit.get((ending, habit.level))
        return guess_s if table is None else table.residual_s(idle_s, guess_s, GUESS_WEIGHT)

    def flight_residual_s(self, elapsed_s: float) -> float:
        """Mean time until the next request of a branch whose response has taken elapsed_s."""
        return self.service.residual_s(elapsed_s) + self.pooled.residual_s(0.0)

    def snapshot(self) -> dict[str, GapSnapshot]:
        """All tables, as the control plane ships them from node to node."""
        return {name: table.snapshot() for name, table in self._tables().items()}

    def merge(self, other: Mapping[str, GapSnapshot]) -> None:
        """Add what another node has seen; unknown names are from another version, and ignored."""
        levels = range(-1, TOP_LEVEL + 1)
        for ending, level in ((e, n) for e in Ending for n in levels):
            if _habit_name(ending, level) in other:
                self._of_habit(ending, level)
        for name, table in self._tables().items():
            table.merge(other.get(name, GapSnapshot()))

    def _of_habit(self, ending: Ending, level: int) -> GapTable:
        if (ending, level) not in self.by_habit:
            self.by_habit[ending, level] = GapTable(self._half_life)
        return self.by_habit[ending, level]

    def _tables(self) -> dict[str, GapTable]:
        tables = {"pooled": self.pooled, "service": self.service}
        tables |= {ending.value: table for ending, table in self.by_ending.items()}
        return tables | {_habit_name(*key): table for key, table in self.by_habit.items()}


def _habit_name(ending: Ending, level: int) -> str:
    return f"{ending.value}/{level}"
