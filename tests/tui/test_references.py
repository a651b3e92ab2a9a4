"""Branches and reference counts on the screen."""

from __future__ import annotations

import pytest

from evctl.core.kv_status import REFERENCE_BUCKETS, KvStatus, reference_bucket
from evctl.tui.model import Model
from evctl.tui.terminal import Terminal
from evctl.tui.views.detail import node_detail
from evctl.tui.views.nodes import columns_for, ordered
from evctl.tui.views.references import references_panel
from tests.tui.fakes import FakeSource, cluster, model_of, node, replace, row_of, scene_of
from tests.tui.screens import staged

KV = KvStatus(3600, 2400, 14, 2, 120, (1332, 1500, 600, 120, 30, 18), 0.2)


def panel(width: int, height: int, *, ascii_only: bool = False, **changes: object) -> list[str]:
    status = cluster(kv=replace(KV, **changes))
    scene = scene_of(model_of(status), ascii_only=ascii_only)
    return references_panel(scene, width, height).plain.splitlines()


def words(row: str) -> list[str]:
    return [word for word in row.split() if not set(word) <= set("━─#.")]


def test_every_count_has_one_bucket_and_neighbours_meet() -> None:
    names = [REFERENCE_BUCKETS[reference_bucket(count)] for count in range(12)]
    assert names == ["0", "1", "2", "3-4", "3-4", *["5-8"] * 4, *["9+"] * 3]


def test_high_panels_have_bars_that_are_as_long_as_their_shares() -> None:
    rows = panel(38, 8)
    assert rows[0] == "refs of 3600 copies"
    assert [words(row) for row in rows[1:7]] == [
        ["0", "37%", "1332"],
        ["1", "42%", "1500"],
        ["2", "17%", "600"],
        ["3-4", "3%", "120"],
        ["5-8", "1%", "30"],
        ["9+", "<1%", "18"],
    ]
    filled = [row.count("━") for row in rows[1:7]]
    cells = filled[0] + rows[1].count("─")
    assert filled == [round(part / 3600 * cells) for part in KV.references]
    assert rows[7] == "14 live  2 suspect  120 ended"


@pytest.mark.parametrize("width", [28, 30, 38, 56])
@pytest.mark.parametrize("height", range(1, 12))
def test_panels_of_any_size_fit_and_never_lose_the_branches(width: int, height: int) -> None:
    big = {"references": (10**7,) * 6, "copies": 6 * 10**7, "ended": 65_536, "live": 100_000}
    for changes in ({}, big, {"references_age_s": 31.0}):
        rows = panel(width, height, **changes)
        assert len(rows) <= height
        assert max(len(row) for row in rows) <= width, rows
        assert "live" in rows[-1] or " l" in rows[-1]
    if height >= 4:
        assert all(
            any(name in row.split() for row in panel(width, height)) for name in ("0", "9+")
        )


def test_what_was_not_counted_is_absent_and_not_zero() -> None:
    rows = panel(38, 8, references=())
    assert rows[0] == "refs counting"
    assert all("-" in words(row)[-1] and "%" not in row for row in rows[1:7])
    assert panel(38, 8, references=(), copies=0)[0] == "refs no blocks yet"


def test_old_counts_say_their_age() -> None:
    assert panel(38, 8, references_age_s=31.0)[0] == "refs of 3600 copies, 31s ago"


def test_ascii_terminals_get_ascii() -> None:
    for height in (8, 5):
        assert all(row.isascii() for row in panel(38, height, ascii_only=True))
    assert "#" in panel(38, 8, ascii_only=True)[1]


def test_a_control_plane_that_does_not_tell_is_no_zero() -> None:
    scene = scene_of(model_of(cluster(kv=None)))
    assert references_panel(scene, 38, 8).plain == "this control plane does not tell"
    assert "waiting" in references_panel(scene_of(Model()), 38, 8).plain


# ------------------------------------------------------------------------------- the nodes


def test_a_node_shows_the_share_of_its_blocks_that_is_referenced() -> None:
    nodes = (node("n1", referenced=0.634), node("n2", referenced=None, blocks=0), node("n3", "D"))
    scene = scene_of(model_of(cluster(*nodes)))
    at = [column.key for column in columns_for(118, nodes)].index("ref")
    assert [row_of(scene, each)[at] for each in nodes] == ["63%", "-", "63%"]
    by_share = replace(scene, ui=replace(scene.ui, sort="ref"))
    assert [each.name for each in ordered(by_share)] == ["n2", "n3", "n1"]


def test_references_are_shown_in_80_columns_and_dropped_below() -> None:
    for width, shown in ((118, True), (78, True), (66, False), (58, False)):
        keys = [column.key for column in columns_for(width, (node("n1"),))]
        assert ("ref" in keys) == shown, width
        assert {"name", "role", "state", "queue", "running", "age"} <= set(keys)


def test_a_node_in_detail() -> None:
    scene = scene_of(model_of(cluster(node("n1", blocks=12_345, referenced=0.5))))
    assert "cached    12.3k blocks, 50% with a reference" in node_detail(scene, "n1", 78).plain
    scene = scene_of(model_of(cluster(node("n1", blocks=0, referenced=None))))
    assert "cached    no blocks" in node_detail(scene, "n1", 78).plain


# ------------------------------------------------------------------------------ the screen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "terminal"),
    [((120, 36), Terminal()), ((80, 24), Terminal()), ((80, 24), Terminal(ascii=True))],
)
async def test_references_are_on_the_overview(size: tuple[int, int], terminal: Terminal) -> None:
    async with staged(FakeSource(cluster(kv=KV)), size=size, terminal=terminal) as stage:
        seen = await stage.sees("refs of 3600 copies", "14 live  2 suspect  120 ended", "63%")
        for name in (*REFERENCE_BUCKETS, "37%", "42%", "<1%", "no events yet"):
            assert name in seen
        if terminal.ascii:
            assert seen.isascii()
        stage.source.tell_status(cluster(kv=replace(KV, live=15, suspect=1)))
        await stage.sees("15 live  1 suspect  120 ended")


@pytest.mark.slow
async def test_references_have_a_tab_where_one_panel_is_shown() -> None:
    async with staged(FakeSource(cluster(kv=KV)), size=(60, 20)) as stage:
        assert "14 live" not in stage.text()
        await stage.press("tab", "tab")
        await stage.sees("[refs]", "14 live  2 suspect  120 ended", "42%")
        await stage.pilot.resize_terminal(50, 10)
        await stage.until(lambda: "14 live" not in stage.text())
        await stage.pilot.resize_terminal(80, 24)
        await stage.sees("14 live  2 suspect", "L1 used", "no events yet")
