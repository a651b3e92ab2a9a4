"""The table of nodes, everything about one, and the events."""

from __future__ import annotations

from evctl.tui.look import ASCII, Look
from evctl.tui.views.detail import node_detail
from evctl.tui.views.events import event_lines, scrolled
from evctl.tui.views.nodes import COLUMNS, PADDING, columns_for, ordered
from evctl.tui.views.scene import Scene, safe
from tests.tui.fakes import cluster, event, model_of, node, replace, row_of, scene_of

# ---------------------------------------------------------------------------------- nodes


def test_a_row_of_the_table() -> None:
    each = node("n1", l2=0.0, pid=None)
    row = row_of(scene_of(model_of(cluster(each))), each)
    assert row[:6] == ["n1", "■ P", "ok", "3", "2", "2 / 0"]
    assert row[6].endswith("81%")
    assert row[7].endswith("0%")
    assert row[8:] == ["63%", "8c1f44d2", "-", "0.8s"]


def test_a_changing_node_has_an_arrow_and_a_lost_one_shouts() -> None:
    moving = node("n1", "P", target_role="D")
    gone = node("n2", "D", state="lost", age_s=33.0)
    scene = scene_of(model_of(cluster(moving, gone)))
    assert row_of(scene, moving)[1] == "◧ P→D"
    assert row_of(scene, gone)[2] == "LOST"
    strange = node("n3", "X")
    assert row_of(scene, strange)[1] == "? X"


def test_each_row_has_its_own_age_and_it_counts_while_the_stream_is_silent() -> None:
    slow = node("n2", age_s=5.0)
    model = model_of(cluster(node("n1"), slow))
    assert row_of(scene_of(model, now_s=114.0), slow)[-1] == "19s"


def test_columns_go_by_priority_and_always_fit() -> None:
    nodes = (node("n1"),)
    assert [c.key for c in columns_for(118, nodes)] == [c.key for c in COLUMNS]
    for width in range(56, 300):
        columns = columns_for(width, nodes)
        assert sum(c.width + PADDING for c in columns) <= width
        assert {"name", "role", "state", "queue", "running", "age"} <= {c.key for c in columns}
    assert "l1" in {c.key for c in columns_for(78, nodes)}
    assert columns_for(118, (node("gb300-rack12-07"),))[0].width == 15


def test_order_is_natural_filtered_and_stable() -> None:
    nodes = (node("n10"), node("n2", "D", queue=9), node("n1", state="late"))
    scene = scene_of(model_of(cluster(*nodes)))
    assert names(scene) == ["n1", "n2", "n10"]
    assert names(scene, sort="queue", descending=True) == ["n2", "n1", "n10"]
    assert names(scene, sort="state") == ["n1", "n2", "n10"]
    assert names(scene, needle="decode") == ["n2"]
    assert names(scene, needle="LATE") == ["n1"]


def names(scene: Scene, **ui: object) -> list[str]:
    changed = replace(scene, ui=replace(scene.ui, **ui))
    return [each.name for each in ordered(changed)]


def test_everything_about_a_node() -> None:
    each = node("n2", "D", target_role="P")
    model = model_of(cluster(each), event(1, "joined", node="n2"), event(2, "other", node="n1"))
    said = node_detail(scene_of(model), "n2", 70).plain
    for part in ("◧ D→P", "2 running (0 prefill, 2 decode)", "8c1f44d2aa", "joined", "81%"):
        assert part in said
    assert "other" not in said
    assert "not among the nodes" in node_detail(scene_of(model), "n9", 70).plain


# --------------------------------------------------------------------------------- events


def test_events_have_a_time_a_word_and_a_node() -> None:
    model = model_of(
        cluster(), event(1, "silent for 8 s", level="error", node="n2"), event(2, "n3 joined")
    )
    rows = event_lines(scene_of(model), 60, 4).plain.splitlines()
    assert rows == ["22:13:21 FAIL n2: silent for 8 s", "22:13:22 n3 joined"]
    filtered = event_lines(scene_of(model, needle="joined"), 60, 4).plain
    assert filtered == "22:13:22 n3 joined"


def test_events_scroll_and_stay_where_they_were_scrolled_to() -> None:
    model = model_of(cluster(), *(event(n, f"e{n}") for n in range(1, 10)))
    assert scrolled(scene_of(model), -1) == 8
    assert scrolled(scene_of(model, events_until=8), 1) is None
    assert scrolled(scene_of(model, events_until=1), -1) == 1
    assert event_lines(scene_of(model, events_until=3), 40, 1).plain.endswith("e3")


def test_text_from_outside_cannot_drive_the_terminal() -> None:
    model = model_of(cluster(), event(1, "a\x1b[2Jb\nc\x07"))
    said = event_lines(scene_of(model), 60, 3).plain
    assert "\x1b" not in said
    assert len(said.splitlines()) == 1
    assert safe("ü→", Look(ASCII)) == "?->"
