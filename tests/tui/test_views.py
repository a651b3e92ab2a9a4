"""What panels say, as text."""

from __future__ import annotations

import pytest
from rich.text import Text

from evctl.core.status import ClusterStatus, QueueStatus, WatchFrame
from evctl.tui.look import ASCII, THEMES, UNICODE, Colours, Look
from evctl.tui.model import BUCKET_S, Model, fold
from evctl.tui.source import Stale
from evctl.tui.state import Layout, Notice, layout_for
from evctl.tui.terminal import detect
from evctl.tui.views import figures
from evctl.tui.views.events import event_lines
from evctl.tui.views.footer import footer, tabs
from evctl.tui.views.header import header
from evctl.tui.views.nodes import ordered
from evctl.tui.views.panels import latency_panel, queues_panel, split_panel, summary
from evctl.tui.views.scene import Scene
from evctl.tui.views.spark import series, sparkline
from tests.tui.fakes import cluster, event, model_of, node, replace, row_of, scene_of

LOOK = Look()


def words(text: Text) -> str:
    return " ".join(text.plain.split())


# ------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.04, "0.0s"), (9.94, "9.9s"), (14.2, "14s"), (720, "12m"), (9000, "2h"), (200_000, "2d")],
)
def test_ages(value: float, said: str) -> None:
    assert figures.age(value) == said


def test_absent_is_a_dash_and_never_zero() -> None:
    assert figures.seconds(None) == "-"
    assert figures.seconds(0.0) == "0.00"
    assert [figures.seconds(v) for v in (1.534, 24.06, 310.4)] == ["1.53", "24.1", "310"]
    assert [figures.count(v) for v in (950, 12_345, 4_100_000)] == ["950", "12.3k", "4.1M"]
    assert [figures.share(v) for v in (-1, 0.814, 7)] == ["0%", "81%", "100%"]


# --------------------------------------------------------------------------------- header


def test_the_header_says_which_cluster_and_how_fresh() -> None:
    said = header(scene_of(model_of(cluster())), 120)
    assert words(said) == "evctl replay · HOLD · 2P1D · gen 41 ● live 0.4s"
    assert len(said) == 120


def test_the_header_marks_what_makes_a_change_dangerous() -> None:
    scene = scene_of(model_of(cluster(held_by="bob")), protected=True, locked=True)
    said = words(header(scene, 120))
    assert "replay (protected) READ-ONLY" in said
    assert "HOLD by bob" in said


def test_a_stale_header_counts_on() -> None:
    model = fold(model_of(cluster()), Stale(3, "refused"), 101.0)
    assert "◌ stale 14s — retrying (3)" in header(scene_of(model, now_s=114.0), 120).plain
    silent = scene_of(model_of(cluster()), now_s=108.0)
    assert "◌ stale 8.0s — silent" in header(silent, 120).plain
    assert "◌ connecting" in header(scene_of(Model()), 120).plain


def test_the_header_drops_the_least_first() -> None:
    model = model_of(cluster())
    model = replace(model, last_move=None)
    moved = fold(model, _frame(2, cluster(split="1P2D", target_split="2P1D")), 101.0)
    wide = header(scene_of(moved, now_s=701.0), 120)
    assert "last move 10m ago (2P1D→1P2D)" in wide.plain
    assert "1P2D → 2P1D" in wide.plain
    for width in range(20, 120):
        said = header(scene_of(moved, now_s=101.2), width)
        assert len(said) == width
        assert "live" in said.plain
    assert "last move" not in header(scene_of(moved, now_s=101.2), 60).plain


def _frame(sequence: int, status: ClusterStatus) -> WatchFrame:
    return WatchFrame("status", sequence, status)


# --------------------------------------------------------------------------------- panels


def test_the_split_panel_counts_by_letter_and_shape() -> None:
    rows = split_panel(scene_of(model_of(cluster())), 37, 4).plain.splitlines()
    assert words(Text(rows[0])) == "P ■■ 2 nodes run 4 wait 3"
    assert words(Text(rows[1])) == "D ◆ 1 node run 5 wait 0"
    assert rows[2] == "no node is changing role"
    assert words(Text(rows[3])) == "2.41 req/s 7 in flight"
    assert max(len(row) for row in rows) <= 37


def test_the_split_panel_does_not_count_on_lost_nodes() -> None:
    status = cluster(node("n1"), node("n2", state="lost"), node("n3", "D"))
    scene = scene_of(model_of(status))
    rows = split_panel(scene, 37, 4).plain.splitlines()
    assert words(Text(rows[0])) == "P ■? 1 of 2 run 4 wait 3"
    assert rows[0].index("run") == rows[1].index("run")


def test_the_split_panel_names_who_is_moving() -> None:
    moving = cluster(node("n1"), node("n2", target_role="D"), node("n3", "D"))
    rows = split_panel(scene_of(model_of(moving)), 37, 4).plain.splitlines()
    assert rows[2] == "◧ n2 P→D"
    many = cluster(*(node(f"gb300-{i:03}", target_role="D") for i in range(64)), node("d", "D"))
    rows = split_panel(scene_of(model_of(many)), 37, 4).plain.splitlines()
    assert "■×64" in rows[0]
    assert len(rows[2]) <= 37


def test_queues_show_waits_and_the_last_minutes() -> None:
    status = cluster(decode=QueueStatus(0, 0, None, None))
    rows = queues_panel(scene_of(model_of(status)), 41, 4).plain.splitlines()
    assert words(Text(rows[1])) == "P ■ 0.42 1.84 ▇"
    assert words(Text(rows[2])) == "D ◆ - -"
    assert rows[0].endswith("p95, last 3m  ▇ 1.84")
    assert all(len(row) <= 41 for row in rows)


def test_waits_of_both_phases_have_one_scale() -> None:
    status = cluster(prefill=QueueStatus(0, 0, 0.1, 8.0), decode=QueueStatus(0, 0, 0.1, 0.5))
    for width in (41, 36, 30):
        rows = queues_panel(scene_of(model_of(status)), width, 4).plain.splitlines()
        assert (rows[1][-1], rows[2][-1]) == ("▇", "▁")
        assert all(len(row) <= width for row in rows[:3]), rows


@pytest.mark.parametrize("width", [76, 37])
def test_latency_fits(width: int) -> None:
    status = cluster(requests_done=12_345, requests_failed=2, requests_rejected=7)
    said = latency_panel(scene_of(model_of(status)), width, 1).plain
    assert len(said.splitlines()) == 1
    rows = latency_panel(scene_of(model_of(status)), 33, 4).plain.splitlines()
    assert words(Text(rows[0])) == "TTFT p50 0.71 p95 2.43 s"
    assert "2.41 req/s" in rows[1]
    assert "7 in flight" in rows[2]
    assert words(Text(rows[3])) == "done 12.3k failed 2 rejected 7"
    assert max(len(row) for row in rows) <= 33


def test_five_lines_say_it_all_where_nothing_fits() -> None:
    model = model_of(cluster(node("n1"), node("n2", "D", state="lost")), event(1, "n2 is lost"))
    rows = summary(scene_of(model), 50).plain.splitlines()
    assert len(rows) == 5
    assert rows[0].startswith("replay 1P1D hold gen 41")
    assert rows[0].endswith("● live 0.4s")
    assert "2 nodes: 1 ok, 1 lost" in rows[3]
    assert "n2 is lost" in rows[4]


def test_before_the_first_snapshot_every_panel_says_so() -> None:
    scene = scene_of(Model())
    for panel in (split_panel, queues_panel, latency_panel):
        assert "waiting for the first snapshot" in panel(scene, 40, 4).plain
    assert ordered(scene) == ()


# ----------------------------------------------------------------------------- sparklines


def test_a_sparkline_scales_to_its_largest_and_leaves_gaps() -> None:
    drawn = sparkline([None, 0.0, 1.0, 3.5, 7.0], LOOK, "")
    assert drawn.plain == " ▁▂▄▇"
    assert sparkline([0.0, 0.0], LOOK, "").plain == "▁▁"
    assert sparkline([1.0, 7.0], Look(ASCII), "").plain == ":#"


def test_the_last_cell_is_now() -> None:
    model = model_of(cluster(), at_s=100 * BUCKET_S)
    later_s = 102 * BUCKET_S
    wave = series(model.history, lambda bucket: bucket.throughput_rps, 4, later_s)
    assert wave == [None, 2.41, None, None]


# --------------------------------------------------------------------------- footer, looks


def test_the_footer_says_what_is_possible_and_how_to_leave() -> None:
    scene = scene_of(model_of(cluster()))
    assert words(footer(scene, 120)).startswith("? help : palette s split h hold")
    for width in (60, 80, 120):
        said = footer(scene, width)
        assert len(said) <= width
        assert words(said).endswith("q quit")
    assert "ctrl+o unlock" in footer(scene_of(model_of(cluster()), locked=True), 60).plain


def test_a_notice_is_said_for_a_while() -> None:
    notice = Notice("copied", "ok", 102.0)
    assert words(footer(scene_of(model_of(cluster()), notice=notice), 80)) == "copied"
    late = scene_of(model_of(cluster()), notice=notice, now_s=103.0)
    assert "help" in footer(late, 80).plain


def test_tabs_mark_the_one_shown() -> None:
    scene = scene_of(model_of(cluster()), layout=Layout.TABS, panel="queues")
    assert "[queues]" in tabs(scene, 60).plain
    assert len(tabs(scene, 60)) == 60


@pytest.mark.parametrize(
    ("width", "height", "layout"),
    [
        (120, 36, Layout.FULL),
        (200, 50, Layout.FULL),
        (119, 36, Layout.STACK),
        (80, 24, Layout.STACK),
        (79, 24, Layout.TABS),
        (60, 15, Layout.TABS),
        (120, 16, Layout.TABS),
        (59, 40, Layout.SUMMARY),
        (120, 14, Layout.SUMMARY),
        (1, 1, Layout.SUMMARY),
    ],
)
def test_no_terminal_is_too_small(width: int, height: int, layout: Layout) -> None:
    assert layout_for(width, height) is layout


def every_view(s: Scene) -> list[str]:
    return [
        header(s, 120).plain,
        split_panel(s, 40, 4).plain,
        queues_panel(s, 40, 4).plain,
        latency_panel(s, 40, 4).plain,
        event_lines(s, 60, 4).plain,
        summary(s, 50).plain,
        footer(s, 120).plain,
        *row_of(s, node("n1", target_role="D")),
    ]


def test_ascii_mode_is_ascii() -> None:
    moving = cluster(node("n1", target_role="D"), node("n2", "D"), cluster="clüster")
    model = model_of(moving, event(1, "split 2P1D → 1P2D"))
    for model_now in (model, fold(model, Stale(1, "x"), 101.0), Model()):
        for said in every_view(scene_of(model_now, ascii_only=True)):
            assert said.isascii(), said


def test_stale_values_are_faint_and_keep_letter_and_shape() -> None:
    live = model_of(cluster())
    stale = fold(live, Stale(1, "x"), 101.0)
    before = split_panel(scene_of(live), 40, 4)
    after = split_panel(scene_of(stale), 40, 4)
    assert after.plain == before.plain
    assert {str(span.style) for span in after.spans if str(span.style)} <= {
        THEMES["dark"].faint,
        f"{THEMES['dark'].faint} bold",
    }


def test_colours_never_stand_alone() -> None:
    """P and D, and the states of a node, differ in text whatever the theme."""
    scene = scene_of(model_of(cluster()))
    shapes = {row_of(scene, node("n", role))[1] for role in ("P", "D")}
    states = {row_of(scene, node("n", state=state))[2] for state in ("ok", "late", "lost")}
    assert (len(shapes), len(states)) == (2, 3)
    for glyphs in (UNICODE, ASCII):
        assert len({glyphs.prefill, glyphs.decode, glyphs.switching, glyphs.unknown}) == 4


def test_mono_names_no_colour() -> None:
    attributes = {"", "bold", "dim", "reverse", "reverse bold"}
    assert {getattr(THEMES["mono"], name) for name in Colours.__struct_fields__} <= attributes


@pytest.mark.parametrize(
    ("environ", "ascii_only", "mono", "remote"),
    [
        ({"LANG": "en_GB.UTF-8"}, False, False, False),
        ({"LANG": "C.utf8", "NO_COLOR": ""}, False, False, False),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": "C"}, True, False, False),
        ({"LC_CTYPE": "C.UTF-8"}, True, False, False),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C.UTF-8"}, False, False, False),
        ({"LC_CTYPE": "C.UTF-8", "EVCTL_GLYPHS": "unicode"}, False, False, False),
        ({"LANG": "en_GB.UTF-8", "NO_COLOR": "1"}, False, True, False),
        ({"LANG": "en_GB.UTF-8", "SSH_TTY": "/dev/pts/1"}, False, False, True),
    ],
)
def test_the_terminal_is_read_off_the_environment(
    environ: dict[str, str], ascii_only: bool, mono: bool, remote: bool
) -> None:
    found = detect(environ)
    assert (found.ascii, found.mono, found.remote) == (ascii_only, mono, remote)
