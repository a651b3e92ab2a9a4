"""The pool's figures on the screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.core.pool_status import AheadStatus, PoolStatus, TierOccupancy
from evctl.tui.model import Model
from evctl.tui.views.pool import pool_panel
from tests.tui.fakes import (
    POOL,
    cluster,
    model_of,
    node,
    node_pool,
    replace,
    scene_of,
)


def rows_of(
    pool: PoolStatus | None,
    width: int = 38,
    height: int = 12,
    *,
    nodes: int = 3,
    ascii_only: bool = False,
    **ui: object,
) -> list[str]:
    each = [node(f"n{number + 1}", "D" if number else "P") for number in range(nodes)]
    scene = scene_of(model_of(cluster(*each, pool=pool)), ascii_only=ascii_only, **ui)
    return pool_panel(scene, width, height).plain.splitlines()


# ------------------------------------------------------------------------------- what it says


def test_a_high_panel_has_a_row_for_each_path_and_each_node() -> None:
    assert rows_of(POOL, 38, 12) == [
        "40 fetches  mean 200 ms  hidden 94%",
        "own L1        900 blocks   59.0 MB",
        "own L2        300 blocks   19.7 MB",
        "peers' L2     600 blocks   39.3 MB",
        "recomputed 12 deadline, 3 gone",
        "ahead 120 blocks (7.9 MB)  8 done",
        "1 no room  9 sent  16 under way",
        "n1 L1 ▓▓▓▓▓▓▓▒░───── L2 ▓▓▓▓▓▓▒░░░░░×─",
        "n2 L1 ░░░░░░░─────── L2 ▓▓▓▓▓▓▓▓▓▓▓▓▓─",
        "n3 L1 ▓▓▓▓▓▓▓▓▓▓▓▓▓▓ L2 ░░░░░░░░░░░░░─",
    ]


def test_a_low_panel_puts_figures_on_one_line_and_nodes_into_one_bar() -> None:
    assert rows_of(POOL, 76, 5) == [
        "40 fetches  mean 200 ms  hidden 94%  recomputed 12 deadline, 3 gone",
        "own L1 900 (59.0 MB)  own L2 300 (19.7 MB)  peers' L2 600 (39.3 MB)",
        "ahead 120 blocks (7.9 MB)  8 done  1 no room  9 sent  16 under way",
        # Two blocks of six thousand are quarantined, and have a cell all the same.
        "all L1 ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒░░░░░░───────── L2 ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒░░░░░░░░░░░░░░×──",
    ]


def test_only_causes_that_happened_are_told() -> None:
    assert not any("recomputed" in row for row in rows_of(replace(POOL, recomputed_blocks={})))
    none = replace(POOL, recomputed_blocks={"gone": 0})
    assert not any("recomputed" in row for row in rows_of(none))
    told = "\n".join(rows_of(POOL))
    assert "corrupt" not in told


def test_what_is_not_known_is_absent_and_not_zero() -> None:
    unused = PoolStatus(nodes=POOL.nodes)
    assert rows_of(unused)[:5] == [
        "0 fetches  mean -  hidden -",
        "own L1          - blocks         -",
        "own L2          - blocks         -",
        "peers' L2       - blocks         -",
        "ahead none yet",
    ]
    # The size of the own blocks is known from engines; those of peers were counted.
    gone = replace(POOL, fetched_bytes={"l1": 0, "own_l2": 0, "peer_l2": 39_321_600}, nodes=())
    assert [row.split()[-1] for row in rows_of(gone)[1:4]] == ["-", "-", "MB"]
    nothing = replace(POOL, fetched_blocks={"l1": 0, "own_l2": 0, "peer_l2": 0})
    nothing = replace(nothing, fetched_bytes=dict(nothing.fetched_blocks))
    assert rows_of(nothing)[1] == "own L1          0 blocks       0 B"


def test_a_node_that_does_not_tell_has_no_classes() -> None:
    told, half = POOL.nodes[0], replace(POOL.nodes[1], l1=TierOccupancy(1000, 500))
    quiet = replace(POOL.nodes[2], l1=TierOccupancy(1000, 0), l2=TierOccupancy(0, 0))
    rows = rows_of(replace(POOL, nodes=(told, half, quiet)))
    assert rows[8].startswith("n2 L1 ???????─────── L2 ▓")
    assert rows[9].split() == ["n3", "L1", "-", "L2", "-"]
    rows = rows_of(replace(POOL, nodes=(told,)))
    assert rows[8:10] == ["n2 -", "n3 -"]


def test_without_l2_there_is_no_pool() -> None:
    nodes = tuple(replace(each, l2=TierOccupancy(0, 0)) for each in POOL.nodes)
    rows = rows_of(PoolStatus(nodes=nodes))
    assert rows[0] == "no pool: l2_tokens is 0"
    assert rows[1].startswith("n1 L1 ▓▓")
    assert "L2" not in "".join(rows)
    assert len(rows) == 4
    assert rows_of(PoolStatus())[0] == "0 fetches  mean -  hidden -", "nobody has joined yet"
    assert rows_of(replace(POOL, nodes=nodes))[0].startswith("40 fetches"), "it had one"


def test_a_control_plane_that_does_not_tell_is_no_zero() -> None:
    assert rows_of(None) == ["this control plane does not tell"]
    assert "waiting" in pool_panel(scene_of(Model()), 38, 8).plain


def test_nodes_follow_the_order_and_the_filter_of_their_table() -> None:
    def names(**ui: object) -> list[str]:
        return [row.split()[0] for row in rows_of(POOL, **ui) if " L1 ▓" in row or " L1 ░" in row]

    assert names() == ["n1", "n2", "n3"]
    assert names(descending=True) == ["n3", "n2", "n1"]
    assert names(needle="n2") == ["n2"]
    assert names(needle="zzz") == []


def test_more_nodes_than_rows_are_shown_as_one_and_the_first_of_them() -> None:
    many = replace(POOL, nodes=tuple(node_pool(f"n{n}", (1, 1, 1), (9, 9, 9)) for n in range(9)))
    rows = rows_of(many, 38, 14, nodes=9)
    assert [row.split()[0] for row in rows[7:13]] == ["all", "n1", "n2", "n3", "n4", "n5"]
    assert rows[13] == "and 4 nodes more"


def test_fetches_ahead_name_what_this_version_does_not_know() -> None:
    odd = AheadStatus({"on_\x1bhold": 2, "done": 1}, 0, 0, 0)
    assert rows_of(replace(POOL, ahead=odd), 44)[5] == "ahead 0 blocks (0 B)  1 done  2 on  hold"


# ------------------------------------------------------------------------------ it always fits

blocks = st.one_of(st.integers(0, 10_000), st.integers(0, 10**19))
tiers = st.builds(
    TierOccupancy,
    total_blocks=blocks,
    used_blocks=blocks,
    classes=st.one_of(st.just(()), st.tuples(blocks, blocks, blocks)),
    quarantined_blocks=blocks,
)
names = st.text(min_size=1, max_size=20)
pools = st.builds(
    PoolStatus,
    fetches=blocks,
    fetched_blocks=st.dictionaries(st.sampled_from(("l1", "own_l2", "peer_l2")), blocks),
    fetched_bytes=st.dictionaries(st.sampled_from(("l1", "own_l2", "peer_l2")), blocks),
    fetch_s=st.floats(0, 1e12),
    share_hidden=st.one_of(st.none(), st.floats(0, 1)),
    recomputed_blocks=st.dictionaries(names, blocks, max_size=8),
    ahead=st.builds(
        AheadStatus,
        outcomes=st.dictionaries(names, blocks, max_size=8),
        blocks=blocks,
        bytes=blocks,
        under_way_blocks=blocks,
    ),
    nodes=st.lists(
        st.builds(
            lambda number, l1, l2: replace(POOL.nodes[0], node=f"n{number}", l1=l1, l2=l2),
            st.integers(1, 6),
            tiers,
            tiers,
        ),
        max_size=6,
    ).map(tuple),
)


@given(pools, st.integers(1, 130), st.integers(1, 30), st.integers(1, 8), st.booleans())
def test_a_panel_of_any_size_never_wraps_nor_exceeds(
    pool: PoolStatus, width: int, height: int, nodes: int, ascii_only: bool
) -> None:
    each = [node(f"n{number + 1}") for number in range(nodes)]
    scene = scene_of(model_of(cluster(*each, pool=pool)), ascii_only=ascii_only)
    text = pool_panel(scene, width, height)
    rows = text.plain.split("\n")
    assert len(rows) <= height
    assert all(len(row) <= width for row in rows), rows
    assert text.no_wrap
    if ascii_only:
        assert text.plain.isascii()


@pytest.mark.parametrize("width", [28, 30, 38, 56, 76])
@pytest.mark.parametrize("height", [3, 4, 5, 7, 8, 10, 12, 24])
def test_what_lies_where_is_shown_from_three_rows_on(width: int, height: int) -> None:
    rows = rows_of(POOL, width, height)
    assert rows[0].startswith("40 fetches")
    assert any("L1 ▓" in row and "L2 " in row for row in rows)
