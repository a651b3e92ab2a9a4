"""Bars of what a tier holds, and a node's own figures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.core.pool_status import NodePool, PoolStatus, TierOccupancy
from evctl.tui.look import ASCII, THEMES, UNICODE, Look
from evctl.tui.views import figures
from evctl.tui.views.detail import node_detail
from evctl.tui.views.occupancy import KINDS, kinds, legend, stacked, together
from tests.tui.fakes import POOL, cluster, model_of, node, replace, scene_of

LOOK = Look()
sizes = st.integers(0, 10**9)


def test_a_bar_is_as_long_as_the_shares() -> None:
    tier = TierOccupancy(100, 60, (10, 20, 30), 10)
    assert kinds(tier) == (30, 20, 10, 10, 30)
    assert stacked(tier, 10, LOOK).plain == "▓▓▓▒▒░×───"
    assert stacked(TierOccupancy(100, 0, (0, 0, 0)), 4, LOOK).plain == "────"
    assert stacked(TierOccupancy(100, 100, (0, 0, 100)), 4, LOOK).plain == "▓▓▓▓"


def test_one_block_of_a_million_has_a_cell() -> None:
    tier = TierOccupancy(10**6, 10**6, (1, 1, 10**6 - 3), 1)
    assert stacked(tier, 10, LOOK).plain == "▓▓▓▓▓▓▓▒░×"


@given(st.builds(TierOccupancy, sizes, sizes, st.tuples(sizes, sizes, sizes), sizes),
       st.integers(0, 80))  # fmt: skip
def test_bars_are_filled_exactly_and_lose_nothing_that_fits(
    tier: TierOccupancy, cells: int
) -> None:
    drawn = stacked(tier, cells, LOOK).plain
    assert len(drawn) == cells
    parts = kinds(tier)
    assert parts is not None
    there = {glyph for glyph, part in zip(UNICODE.stack, parts, strict=True) if part}
    if tier.total_blocks and cells >= len(KINDS) and there:
        assert set(drawn) == there


def test_shapes_differ_without_colour_and_say_nothing_else() -> None:
    for glyphs in (UNICODE, ASCII):
        assert len(set(glyphs.stack)) == len(KINDS) == len(glyphs.stack)
        assert glyphs.unknown not in glyphs.stack
    assert ASCII.stack.isascii()
    plain = {stacked(POOL.nodes[0].l2, 20, Look(UNICODE, c)).plain for c in THEMES.values()}
    assert len(plain) == 1


@pytest.mark.parametrize("width", [27, 35, 43, 60])
def test_the_legend_fits_and_names_the_shapes(width: int) -> None:
    said = legend(LOOK, width).plain
    assert len(said) <= width
    assert all(glyph in said for glyph in UNICODE.stack[:4])


def test_all_nodes_together_are_known_as_far_as_each_tells() -> None:
    whole = together(POOL.nodes)
    assert whole.l1 == TierOccupancy(3000, 2120, (600, 20, 1500), 0)
    assert whole.l2.quarantined_blocks == 2
    none = NodePool("n4", TierOccupancy(1000, 10), TierOccupancy(0, 0))
    assert together((*POOL.nodes, none)).l1.classes == ()
    assert together((*POOL.nodes, none)).l2.classes == whole.l2.classes, "it has no such tier"
    assert together(()).l1 == TierOccupancy(0, 0)


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (59e6, "59.0 MB"), (999_960_000, "1.0 GB"),
     (3e12, "3.0 TB"), (10**16, "10000.0 TB")],
)  # fmt: skip
def test_sizes(value: int, said: str) -> None:
    assert figures.size(int(value)) == said


def test_durations_and_large_counts() -> None:
    seen = [figures.duration(value) for value in (None, 0.0003, 0.0244, 0.9999, 1.534, 310.2)]
    assert seen == ["-", "0.3 ms", "24 ms", "1.00 s", "1.53 s", "310 s"]
    assert [figures.count(value) for value in (999_960, 2_000_000_000)] == ["1.0M", "2.0G"]


# ------------------------------------------------------------------------------ one node


def detail(pool: PoolStatus | None, width: int = 78) -> list[str]:
    scene = scene_of(model_of(cluster(pool=pool)))
    rows = node_detail(scene, "n1", width).plain.splitlines()
    assert all(len(row) <= width for row in rows), rows
    first = next(at for at, row in enumerate(rows) if row.startswith("cached"))
    last = next(at for at, row in enumerate(rows) if row.startswith("boot"))
    return rows[first + 1 : last]


def test_a_node_has_both_tiers_by_class_and_what_goes_on_there() -> None:
    rows = detail(POOL)
    assert rows[0].startswith("L1 blocks ▓▓▓")
    assert rows[0].endswith(" of 1000")
    assert " ".join(rows[1].split()) == "500 live 20 suspect 100 nobody 0 quarantined 380 empty"
    assert rows[2].endswith("×───── of 2000")
    assert " ".join(rows[3].split()) == "900 live 100 suspect 800 nobody 2 quarantined 198 empty"
    assert rows[4:] == ["L2 reads  pins 3, loans to peers 1", "L2 writes blocks waiting 14"]


def test_a_narrow_terminal_has_letters() -> None:
    rows = detail(POOL, 52)
    assert " ".join(rows[1].split()) == "500 l 20 s 100 n 0 q 380 e"


def test_what_a_node_does_not_tell_is_absent() -> None:
    quiet = replace(POOL.nodes[0], pins=None, loans=None, write_queue_blocks=None)
    quiet = replace(quiet, l1=TierOccupancy(1000, 0), l2=TierOccupancy(2000, 1000))
    rows = detail(replace(POOL, nodes=(quiet,)))
    assert rows[0].split() == ["L1", "blocks", "-", "of", "1000"]
    assert rows[1].strip() == "this engine does not tell classes"
    assert "?????" in rows[2]
    assert rows[4:] == ["L2 reads  pins -, loans to peers -", "L2 writes blocks waiting -"]
    assert detail(replace(POOL, nodes=())) == ["pool      -"]
    assert detail(None) == ["pool      -"]
    without = replace(POOL.nodes[0], l2=TierOccupancy(0, 0))
    assert detail(replace(POOL, nodes=(without,)))[2:] == ["L2 blocks no pool: l2_tokens is 0"]


def test_a_node_that_is_lost_keeps_no_figures() -> None:
    scene = scene_of(model_of(cluster(node("n1", state="lost"), pool=replace(POOL, nodes=()))))
    assert "pool      -" in node_detail(scene, "n1", 78).plain
