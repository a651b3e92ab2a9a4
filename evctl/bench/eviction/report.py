"""The grid's figures: lost reuse of every order, goals, and where ours loses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from evctl.bench.eviction.grid import Grid, Played
from evctl.bench.eviction.simulate import BELADY
from evctl.bench.measurement import Row

OURS = "expected"
PAPER = "paper"
LRU = "lru"
GOALS = ((30.0, 1.0, 1 / 4), (30.0, 0.8, 1 / 2), (300.0, 1.0, 1 / 3))
"""Gap cap, pool, most that ours may lose as a share of LRU's loss."""
GOALS_FROM = 100
"""Recorded conversations below which no goal is judged: a few tell nothing about the rest."""
PAPER_MARGIN = 1.05
"""Ours may lose this much of the paper rule's loss anywhere."""
BOUND_TOLERANCE = 0.001
"""Share of reusable blocks by which an order may seem to beat Belady's rule: stretches of up to
64 blocks go whole, so that the last one given up may be more than was needed."""
UNIT = "of reusable blocks lost"


class Square(msgspec.Struct, frozen=True, order=True):
    """A gap cap and a pool size."""

    gap_cap_s: float
    pool: float

    def __str__(self) -> str:
        return f"gaps {self.gap_cap_s:g} s, pool {self.pool:g}"


class Losses:
    """Share lost of each order in each square: over all seeds together, and seed by seed."""

    def __init__(self, played: Sequence[Played]) -> None:
        self._cells = {
            (Square(cell.gap_cap_s, cell.pool), cell.policy, cell.seed): cell.loss
            for load in played
            for cell in load.cells
        }
        self.squares = list(dict.fromkeys(square for square, _, _ in self._cells))
        self.policies = list(dict.fromkeys(policy for _, policy, _ in self._cells))
        self.seeds = list(dict.fromkeys(seed for _, _, seed in self._cells))

    def share(self, square: Square, policy: str) -> float:
        found = [self._cells[square, policy, seed] for seed in self.seeds]
        reusable = sum(loss.reusable_blocks for loss in found)
        return sum(loss.lost_blocks for loss in found) / reusable if reusable else 0.0

    def of_seed(self, square: Square, policy: str, seed: int) -> float:
        return self._cells[square, policy, seed].share


def rows(played: Sequence[Played]) -> list[Row]:
    """All rows: each order in each square against LRU, then goals, bound, and our losses."""
    losses = Losses(played)
    enough = all(load.recorded >= GOALS_FROM for load in played)
    goals = [*_lru_goals(losses), *_paper_goals(losses)] if enough else []
    return [
        *_loss_rows(losses),
        *goals,
        *_bound(losses),
        *_lost_to(losses),
    ]


def _loss_rows(losses: Losses) -> Iterator[Row]:
    for square in losses.squares:
        peer = losses.share(square, LRU) if LRU in losses.policies else None
        for policy in losses.policies:
            value = losses.share(square, policy)
            yield Row(
                name=f"{policy}, {square}",
                value=value,
                unit=UNIT,
                peer=peer,
                ratio=_ratio(value, peer),
            )


def _lru_goals(losses: Losses) -> Iterator[Row]:
    if not {OURS, LRU} <= set(losses.policies):
        return
    for cap_s, pool, most in GOALS:
        square = Square(cap_s, pool)
        if square not in losses.squares:
            continue
        value, peer = losses.share(square, OURS), losses.share(square, LRU)
        worst = max(
            _ratio(losses.of_seed(square, OURS, s), losses.of_seed(square, LRU, s)) or 0.0
            for s in losses.seeds
        )
        yield Row(
            name=f"goal: {OURS} against {LRU}, {square}",
            value=value,
            unit=UNIT,
            peer=peer,
            ratio=_ratio(value, peer),
            ok=value <= most * peer,
            goal=f"at most {most:.3g} of {LRU} (worst seed {worst:.3g})",
        )


def _paper_goals(losses: Losses) -> Iterator[Row]:
    if not {OURS, PAPER} <= set(losses.policies):
        return
    for square in losses.squares:
        value, peer = losses.share(square, OURS), losses.share(square, PAPER)
        yield Row(
            name=f"goal: {OURS} against {PAPER}, {square}",
            value=value,
            unit=UNIT,
            peer=peer,
            ratio=_ratio(value, peer),
            ok=value <= PAPER_MARGIN * peer,
            goal=f"at most {PAPER_MARGIN:g} of {PAPER}",
        )


def _bound(losses: Losses) -> Iterator[Row]:
    """Seed by seed: no order loses less than Belady's rule."""
    others = [policy for policy in losses.policies if policy != BELADY]
    if len(others) == len(losses.policies) or not others:
        return
    margins = {
        (square, policy, seed): losses.of_seed(square, policy, seed)
        - losses.of_seed(square, BELADY, seed)
        for square in losses.squares
        for policy in others
        for seed in losses.seeds
    }
    square, policy, seed = min(margins, key=lambda name: margins[name])
    least = margins[square, policy, seed]
    yield Row(
        name=f"least distance to {BELADY}: {policy}, {square}, seed {seed}",
        value=least,
        unit=UNIT,
        ok=least >= -BOUND_TOLERANCE,
        goal=f"nobody beats the bound by more than {BOUND_TOLERANCE:g}",
    )


def _lost_to(losses: Losses) -> Iterator[Row]:
    """Wherever another order, Belady's aside, loses less than ours."""
    if OURS not in losses.policies:
        return
    for square in losses.squares:
        value = losses.share(square, OURS)
        for policy in losses.policies:
            peer = losses.share(square, policy)
            if policy not in (OURS, BELADY) and peer < value:
                yield Row(
                    name=f"{OURS} loses to {policy}, {square}",
                    value=value,
                    unit=UNIT,
                    peer=peer,
                    ratio=_ratio(value, peer),
                )


def _ratio(value: float, peer: float | None) -> float | None:
    return value / peer if peer else None


def side_by_side(found: Sequence[Row], grid: Grid) -> tuple[list[str], list[list[str]]]:
    """The losses as people read them: a line for each square, a column for each order."""
    shares = {row.name: row.value for row in found}
    head = ["GAPS", "POOL", *(policy.upper() for policy in grid.policies)]
    lines = []
    for cap_s in grid.gap_caps_s:
        for pool in grid.pools:
            square = Square(cap_s, pool)
            cells = [f"{100 * shares[f'{p}, {square}']:.2f} %" for p in grid.policies]
            lines.append([f"{cap_s:g} s", f"{pool:g}", *cells])
    return head, lines


def told(found: Sequence[Row]) -> list[Row]:
    """The rows that are not in side_by_side: goals, the bound, and where ours loses."""
    return [row for row in found if row.goal is not msgspec.UNSET or " loses to " in row.name]
