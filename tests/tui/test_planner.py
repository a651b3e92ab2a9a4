"""What the planner's panel and screen say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evctl.core.brain_status import BrainStatus
from evctl.core.planning import Candidate
from evctl.core.predictions import ErrorStatus, PredictionStatus
from evctl.tui.model import Model
from evctl.tui.views.models import short
from evctl.tui.views.planner import clock, planner_panel
from evctl.tui.views.planner_detail import planner_detail
from evctl.tui.views.predictions import prediction_rows
from tests.tui.fakes import cluster, model_of, replace, scene_of
from tests.tui.minds import (
    BRAIN,
    CANDIDATES,
    CHANGE,
    LEARNING,
    MOVE,
    MOVING,
    TIMES,
    UNKNOWN,
    candidate,
    decided,
    model,
)

ERRORS = PredictionStatus(
    ttft=ErrorStatus(300, 0.12, 0.41, 0.05), throughput=ErrorStatus(4, 0.034, 0.09, -0.02)
)


def rows_of(
    brain: BrainStatus | None,
    width: int = 74,
    height: int = 14,
    *,
    now_s: float = 100.0,
    ascii_only: bool = False,
    **changes: object,
) -> list[str]:
    model = model_of(cluster(brain=brain, **{"times": TIMES, **changes}))
    scene = scene_of(model, now_s=now_s, ascii_only=ascii_only)
    return planner_panel(scene, width, height).plain.splitlines()


def detail_of(brain: BrainStatus | None, width: int = 78, **changes: object) -> str:
    status = cluster(brain=brain, **{"times": TIMES, **changes})
    return planner_detail(scene_of(model_of(status), now_s=100.0), width).plain


# ------------------------------------------------------------------------------- what it says


def test_who_decides_what_was_decided_on_what_and_when_next() -> None:
    assert rows_of(replace(MOVING, draining={}), mode="auto") == [
        "AUTO   next decision in 3:12   6 of 10 slices",
        "3m ago: moves: 3P6D -> 4P5D: throughput +12.0%, sure above 3.1%",
        "  split   req/s  TTFT s   E2E s     gain     ±SE  verdict",
        "  1P8D     0.92    0.71    7.94   -62.0%    2.0%  worse",
        "  2P7D     1.66    0.71    7.94   -31.0%    2.0%  worse",
        "● 3P6D     2.41    0.71    7.94        -       -  current",
        "→ 4P5D     2.70    0.71    7.94   +12.0%    1.5%  chosen",
        "  5P4D     2.55    0.71    7.94    +6.0%    2.0%  passed",
        "  6P3D     2.46    0.71    7.94    +2.0%    3.0%  unsure",
        "  7P2D     2.61    0.71    7.94    +9.0%    3.0%  guarded",
        "  8P1D        -       -       -        -       -  bounded",
        "iteration times  2 of 3 nodes, off by 3% at most, c3 not told by the data",
    ]


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("move", "moves: because"),
        ("stay", "stays: because"),
        ("advise", "would move: because"),
        ("blind", "decides nothing: because"),
        ("idle", "has nothing to weigh: because"),
        ("cooldown", "waits out the cooldown: because"),
        ("settling", "waits for a change: because"),
        ("revert", "takes its move back: because"),
        ("failed", "could not decide: because"),
        ("novel", "novel: because"),
    ],
)
@pytest.mark.parametrize("height", [1, 2, 8])
def test_every_verdict_is_told_in_words(verdict: str, said: str, height: int) -> None:
    rows = rows_of(decided(verdict, "because"), 74, height)
    assert f"3m ago: {said}" in rows[:2]
    assert ("verdict" in "".join(rows)) is (height > 2 and verdict in ("move", "stay", "advise"))


def test_before_the_first_decision_it_says_how_far_that_is() -> None:
    assert rows_of(LEARNING, times=UNKNOWN)[1:] == ["learning iteration times: 0 of 2 nodes"]
    assert (
        rows_of(LEARNING, times=(model("n1"), model("n2")))[1]
        == "no decision yet: 3 of 10 slices seen"
    )
    assert "no window yet" in rows_of(replace(LEARNING, due_s=None))[0]


def test_what_is_not_told_is_said_so() -> None:
    assert rows_of(None) == ["this control plane does not tell"]
    assert "waiting" in planner_panel(scene_of(Model()), 38, 8).plain
    assert detail_of(None) == "this control plane does not tell"


def test_a_hold_says_by_whom_and_until_when() -> None:
    held = {"mode": "hold", "held_by": "ann@desk", "held_until_s": 1_700_000_000.0}
    rows = rows_of(BRAIN, mode_after="auto", **held)
    assert rows[0] == "HOLD 2P1D by ann until 22:13:20, then auto   next decision in 3:12"
    assert rows_of(BRAIN, 40, mode_after="auto", **held)[0] == (
        "HOLD 2P1D by ann until 22:13:20, then a…"
    )


def test_times_count_down_between_two_statuses() -> None:
    assert "next decision in 3:05" in rows_of(BRAIN, now_s=107.0)[0]
    assert "next decision is due" in rows_of(BRAIN, now_s=400.0)[0]
    cooling = replace(BRAIN, slices_seen=10, cooldown_ends_s=BRAIN.now_s + 80.0)
    assert rows_of(cooling)[0].endswith("next decision in 3:12   cooldown 1:20")
    assert "cooldown" not in rows_of(cooling, now_s=181.0)[0]
    assert [clock(seconds) for seconds in (0.2, 59.0, 61.0, 3725.0)] == [
        "0:01", "0:59", "1:01", "1:02:05",
    ]  # fmt: skip


def test_a_change_under_way_says_what_each_node_still_has() -> None:
    rows = rows_of(MOVING, transition=CHANGE)
    assert rows[2] == "◧ n4 D→P  cordoned 4.0s ago, flipped after 12 ms, draining 3 requests"
    assert rows[3] == "◧ n5 D→P  cordoned 4.0s ago, draining 1 request"
    assert not any("n6" in row for row in rows), "it has settled"
    rows = rows_of(MOVING, 90, 5, transition=CHANGE)
    assert rows[2].endswith("draining 3 requests   and 1 more")


def test_the_gain_may_be_of_the_latency() -> None:
    by_e2e = candidate("1P2D", "passed", 0.031, 0.01, measure="e2e")
    one = candidate("2P1D", "worse", -0.2, 0.01)
    brain = replace(BRAIN, decision=replace(MOVE, candidates=(by_e2e, one)))
    table = rows_of(brain)[3:5]
    assert "+3.1%  E2E    1.0%  passed" in table[0]
    assert "-20.0%         1.0%  worse" in table[1]


def test_unlikely_figures_stay_in_their_columns() -> None:
    wild = candidate("1P2D", "unsure", 1e18, 1e18, 1e9)
    brain = replace(BRAIN, decision=replace(MOVE, candidates=(*CANDIDATES, wild)))
    rows = rows_of(brain)
    assert ">99999    0.71    7.94    >999%   >999%  unsure" in rows[-2]


# ------------------------------------------------------------------------------ narrow and low


@pytest.mark.parametrize(
    ("width", "head"),
    [
        (120, "  split   req/s  TTFT s   E2E s     gain     ±SE  verdict"),
        (56, "  split   req/s   E2E s     gain     ±SE  verdict"),
        (42, "  split   req/s     gain     ±SE  verdict"),
        (36, "  split     gain     ±SE  verdict"),
        (30, "  split     gain  verdict"),
    ],
)
def test_columns_go_by_priority(width: int, head: str) -> None:
    assert rows_of(MOVING, width)[2 if width > 60 else 3].rstrip() == head


def test_what_matters_most_has_the_rows_that_there_are() -> None:
    splits = [row.split()[1] for row in rows_of(decided("advise"), 74, 6)[3:5]]
    assert splits == ["3P6D", "4P5D"]
    rows = rows_of(decided("advise"), 74, 7)
    assert [row.split()[-1] for row in rows[3:]] == ["current", "chosen", "guarded", "more"]
    assert rows[-1] == "  and 5 more"
    rows = rows_of(decided("advise"), 74, 4)
    assert rows[2] == "→ 4P5D  2.70 req/s  gain +12.0%  ± 1.5%  chosen"


def test_of_many_splits_the_others_are_counted() -> None:
    rows = rows_of(replace(MOVING, left_out=86), 74, 14)
    assert "  and 86 more" in rows


def test_reasons_are_beside_where_there_is_room() -> None:
    rows = rows_of(MOVING, 116)
    assert rows[9].endswith("guarded   95 % would wait up to 12.4 s for prefill")


def test_a_long_verdict_has_two_rows_where_there_are_enough() -> None:
    why = "3P6D -> 4P5D: " + "word " * 14 + "end"
    rows = rows_of(decided("advise", why), 74, 12)
    assert rows[2] == "  " + "word " * 6 + "end"
    assert rows_of(decided("advise", why), 74, 5)[1].endswith("…")


def test_what_is_not_told_and_what_was_off_are_told_whole_where_there_is_room() -> None:
    terms = ("c0", "c1", "c2", "c3", "d0", "d2")
    times = (model("n1", unidentified=terms),)
    errors = PredictionStatus(*(ErrorStatus(9, 0.5, 0.9, 0.1) for _ in range(5)))
    rows = rows_of(BRAIN, 56, 20, times=times, predictions=errors)
    assert rows[-4:] == [
        "iteration times  1 of 1 nodes, off by 3% at most, c0 c1",
        "  c2 c3 d0 d2 not told by the data",
        "predictions off by TTFT 50%, wait 50%, service 50%,",
        "  fetch 50%, throughput 50%",
    ]
    assert rows_of(BRAIN, 56, 6, times=times, predictions=errors)[-1].endswith("…")


def test_terms_never_run_into_each_other() -> None:
    terms, errors = (
        {"d0": 0.00283, "d1": 0.0123, "d2": 0.0},
        {"d0": 0.034, "d1": 0.12288, "d2": 0.0},
    )
    wild = model("n1", coefficients=terms, errors=errors, unidentified=())
    said = detail_of(BRAIN, times=(wild,))
    assert "d0 2.83 ms ±>9x  d1 12.3 ms ±999% d2 0" in said


def test_a_prediction_line_comes_last() -> None:
    rows = rows_of(BRAIN, predictions=ERRORS)
    assert rows[-1] == "predictions off by TTFT 12%, throughput 3%"
    assert "predictions" not in rows_of(BRAIN, predictions=PredictionStatus())[-1]


# -------------------------------------------------------------------------------- the screen


def test_the_screen_has_every_term_with_its_error() -> None:
    said = detail_of(BRAIN)
    assert "n1  fitted, 24 prefill and 20 decode windows, off by 3%" in said
    assert "    c0 11.0 ms ±2%   c1 12.3 us ±8%   c2 0.20 ns ±31%  c3 ?" in said
    assert "    d0 8.01 ms ±1%   d1 0             d2 410 us ±5%" in said
    assert "n2  kept from an earlier life" in said
    lent = (model("n1", "borrowed", borrowed={"decode": "n2"}),)
    assert "n1  borrowed from nodes alike" in detail_of(BRAIN, times=lent)
    assert "n3  none yet: the node is learning" in said
    assert "c2 a query-key pair" in said
    assert "d3" not in said


def test_a_term_of_a_later_version_is_shown_too() -> None:
    later = (model("n1", coefficients={"d3": 0.011}, errors={"d3": 0.00022}),)
    assert "d3 11.0 ms ±2%" in detail_of(BRAIN, times=later)
    assert "d3 a token of context" in detail_of(BRAIN, times=later)


def test_each_reason_is_told_once() -> None:
    for width in (78, 108):
        said = detail_of(MOVING, width)
        assert said.count("95 % would wait up to 12.4 s for prefill") == 1
        assert "decision 14, weighed against 3P6D; the split is 2P1D by now" in said


def test_probation_and_what_is_barred() -> None:
    brain = replace(
        BRAIN, trial="4P5D", barred="5P4D", barred_until_s=BRAIN.now_s + 600.0, left_out=3
    )
    said = detail_of(brain)
    assert "4P5D is on probation" in said
    assert "5P4D was taken back, and is not chosen for 10:00" in said
    assert "and 3 more, which promise less" in said


def test_predictions_are_told_with_what_is_not_known() -> None:
    look = scene_of(model_of(cluster())).look
    rows = [row.plain.split() for row in prediction_rows(ERRORS, look)]
    assert rows[1] == ["TTFT", "12%", "41%", "+5%", "300"]
    assert rows[2] == ["wait", "-", "-", "-", "-"]
    assert rows[5] == ["throughput", "3%", "9%", "-2%", "4"]
    assert "predictions" in detail_of(BRAIN, predictions=ERRORS)
    assert "predictions" not in detail_of(BRAIN, predictions=PredictionStatus())


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0, "0"),
        (1.5, "1.50 s"),
        (0.011, "11.0 ms"),
        (0.9996, "1.00 s"),
        (1.234e-5, "12.3 us"),
        (2e-10, "0.20 ns"),
        (3e-13, "3e-04 ns"),
    ],
)
def test_seconds_in_three_digits(seconds: float, said: str) -> None:
    assert short(seconds) == said


# ------------------------------------------------------------------------------ it always fits

figures = st.floats(0, 1e12)
candidates = st.builds(
    Candidate,
    split=st.builds("{}P{}D".format, st.integers(1, 999), st.integers(1, 999)),
    forecast=st.builds(
        lambda rps, ttft: replace(CANDIDATES[0].forecast, throughput_rps=rps, ttft_s=ttft),
        figures,
        st.one_of(st.none(), figures),
    ),
    gain=st.floats(-1, 1e18),
    error=figures,
    verdict=st.sampled_from(("current", "chosen", "passed", "guarded", "bounded", "é\x1b")),
    why=st.text(max_size=80),
    measure=st.sampled_from(("throughput", "e2e")),
)
brains = st.builds(
    lambda found, verdict, why, left, seen: replace(
        MOVING,
        decision=replace(MOVE, candidates=tuple(found), verdict=verdict, why=why),
        left_out=left,
        slices_seen=seen,
    ),
    st.lists(candidates, max_size=9),
    st.sampled_from(("move", "stay", "blind", "x\n")),
    st.text(max_size=200),
    st.integers(0, 100),
    st.integers(0, 10),
)


@given(brains, st.integers(1, 130), st.integers(1, 30), st.booleans(), st.booleans())
def test_a_panel_of_any_size_never_wraps_nor_exceeds(
    brain: BrainStatus, width: int, height: int, moving: bool, ascii_only: bool
) -> None:
    status = cluster(brain=brain, predictions=ERRORS, transition=CHANGE if moving else None)
    scene = scene_of(model_of(status), ascii_only=ascii_only)
    text = planner_panel(scene, width, height)
    rows = text.plain.split("\n")
    assert len(rows) <= height
    assert all(len(row) <= width for row in rows), rows
    assert text.no_wrap
    detail = planner_detail(scene, max(30, width))
    if ascii_only:
        assert text.plain.isascii()
        assert detail.plain.isascii()
