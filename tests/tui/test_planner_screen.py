"""The planner on the screen: where it is, how it is reached; forecasts and the mode in modals."""

from __future__ import annotations

import json

import pytest

from evctl.core.errors import ConflictError
from evctl.tui.change import Draft, answered, asked, typed
from evctl.tui.mode import ModeDraft, cli_line, draft_of, obstacle, span_s, stepped
from evctl.tui.terminal import Terminal
from evctl.tui.views.change import change_text
from evctl.tui.views.footer import help_text
from evctl.tui.views.mode import mode_text
from tests.tui.fakes import (
    POOL,
    FakeSource,
    change_of,
    cluster,
    model_of,
    node,
    node_pool,
    replace,
    scene_of,
)
from tests.tui.minds import (
    BRAIN,
    CANDIDATES,
    CHANGE,
    LEARNING,
    MOVE,
    MOVING,
    SMALL,
    TIMES,
    UNKNOWN,
)
from tests.tui.screens import staged

NINE = tuple(node(f"n{n}", "P" if n < 4 else "D") for n in range(1, 10))
MANY_POOL = replace(
    POOL, nodes=tuple(node_pool(f"n{n}", (100, 20, 500), (800, 100, 900)) for n in range(1, 10))
)


# -------------------------------------------------------------------------------- on the screen


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 36), (200, 50), (80, 40)])
async def test_the_planner_is_above_the_events(size: tuple[int, int]) -> None:
    async with staged(FakeSource(cluster(pool=POOL, brain=BRAIN)), size=size) as stage:
        seen = await stage.sees("next decision in 3:12", "would move: 2P1D", "no events yet")
        await stage.sees("14 live", "+12.0%", "chosen")
        assert all(len(row) == size[0] for row in seen.splitlines())
        moved = replace(BRAIN, due_s=BRAIN.now_s + 61.0)
        stage.source.tell_status(cluster(pool=POOL, brain=moved))
        await stage.sees("next decision in 1:01")
        await stage.pass_time(3.0)
        await stage.sees("next decision in 0:58")
        await stage.press("tab", "tab")
        assert stage.app.ui.panel == "nodes", "it needs no turn of its own"


@pytest.mark.slow
async def test_nine_nodes_and_a_change_fit_the_usual_terminal() -> None:
    status = cluster(*NINE, pool=MANY_POOL, mode="auto", brain=MOVING, transition=CHANGE)
    async with staged(FakeSource(status)) as stage:
        await stage.sees(
            "AUTO   next decision in 3:12",
            "n4 D→P  cordoned 4.0s ago, flipped after 12 ms, draining 3 requests",
            "n5 D→P  cordoned 4.0s ago, draining 1 request",
            "● 3P6D", "→ 4P5D", "no events yet", "14 live",
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [Terminal(), Terminal(ascii=True, mono=True)])
async def test_a_low_terminal_shows_the_planner_in_turn(terminal: Terminal) -> None:
    source = FakeSource(cluster(pool=POOL, brain=BRAIN))
    async with staged(source, size=(80, 24), terminal=terminal) as stage:
        seen = await stage.sees("14 live", "tab: planner", "no events yet")
        assert "next decision" not in seen
        await stage.press("tab", "tab")
        seen = await stage.sees("next decision in 3:12", "would move", "+12.0%", "current")
        assert "14 live" not in seen
        if terminal.ascii:
            assert seen.isascii()
        await stage.press("y")
        await stage.sees("copied the planner")
        assert json.loads(stage.app.clipboard)["slices_seen"] == 6
        await stage.press("enter")
        await stage.sees("iteration times", "esc closes")
        await stage.press("escape", "tab", "tab")
        await stage.sees("14 live", "no events yet")
        assert stage.app.ui.panel == "nodes"


@pytest.mark.slow
async def test_the_planner_has_a_tab_where_one_panel_is_shown() -> None:
    status = cluster(*NINE, mode="auto", brain=MOVING, transition=CHANGE)
    async with staged(FakeSource(status), size=(60, 20)) as stage:
        await stage.press(*["tab"] * 4)
        seen = await stage.sees("[planner]", "● 3P6D", "guarded", "bounded", "latency  tab")
        assert all(len(row) == 60 for row in seen.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 36), (80, 24), (60, 20)])
async def test_the_screen_of_the_planner_is_live_and_scrolls(size: tuple[int, int]) -> None:
    status = cluster(*NINE, brain=MOVING, times=TIMES, transition=CHANGE)
    async with staged(FakeSource(status), size=size) as stage:
        await stage.press("4")
        await stage.sees("decision 14", "esc closes", "verdict")
        await stage.press(*["j"] * 40)
        await stage.sees("c1 12.3 us ±8%", "? the data cannot tell")
        stage.source.tell_status(cluster(*NINE, brain=MOVING))
        await stage.until(lambda: "c1 12.3 us" not in stage.text())
        await stage.press("escape")
        assert len(stage.app.screen_stack) == 1


@pytest.mark.slow
async def test_the_pool_keeps_the_names_of_its_shapes_when_it_is_full() -> None:
    async with staged(FakeSource(cluster(pool=POOL, brain=BRAIN))) as stage:
        await stage.sees("n3 L1 ▓", "▓live ▒suspect ░nobody ×quarantined ─╯")


def test_help_and_palette_have_the_planner() -> None:
    said = help_text(scene_of(model_of(cluster()))).plain
    assert "What the planner weighed and decided" in said
    assert "as evctl plan" in said
    assert "Who decides the split: auto, advise or hold" in said


# ------------------------------------------------------------------------- forecast of a change


def planned(split: str, **changes: object) -> str:
    status = cluster(*changes.pop("nodes", ()), **changes)  # type: ignore[misc]
    draft = asked(typed(Draft(), split, status), status)
    draft = answered(draft, change_of(status, draft.split, draft.generation, plan=True))
    scene = scene_of(model_of(status), now_s=100.0)
    said = change_text(draft, scene, 74).plain
    assert all(len(row) <= 74 for row in said.split("\n"))
    return said


def test_the_forecast_stands_beside_the_present_one() -> None:
    said = planned("1P2D", brain=BRAIN)
    assert "forecast  2P1D   2.41 req/s, TTFT 0.71, E2E 7.94 s\n" in said
    assert "          1P2D   2.70 req/s, TTFT 0.71, E2E 7.94 s  +12.0% ±1.5%, chosen\n" in said


def test_a_hold_of_the_present_split_has_one_forecast() -> None:
    said = planned("2P1D", brain=BRAIN)
    assert "forecast  2P1D   2.41 req/s, TTFT 0.71, E2E 7.94 s  3m ago\n" in said


def test_a_gain_over_another_split_names_it() -> None:
    brain = replace(BRAIN, decision=replace(SMALL, current="1P2D"))
    flat = tuple(
        replace(each, verdict="chosen" if each.split == "2P1D" else "current", gain=0.05)
        for each in SMALL.candidates
    )
    brain = replace(brain, decision=replace(SMALL, current="1P2D", candidates=flat))
    assert "+5.0% over 1P2D" in planned("2P1D", brain=brain)


@pytest.mark.parametrize(
    ("brain", "said"),
    [
        (None, "forecast of 1P2D: not known yet\n"),
        (LEARNING, "not known yet, learning iteration times: 0 of 2 nodes"),
        (
            replace(BRAIN, decision=replace(MOVE, candidates=(), why="no requests")),
            "not known, the last decision weighed nothing: no\n  requests\n",
        ),
        (replace(BRAIN, decision=MOVE), "not known, the last decision leaves it out"),
        (
            replace(
                BRAIN, decision=replace(SMALL, candidates=(replace(CANDIDATES[-1], split="1P2D"),))
            ),
            "forecast of 1P2D: none, too few nodes that are alive or must stay in a",
        ),
    ],
)
def test_without_a_forecast_it_says_why(brain: object, said: str) -> None:
    assert said in planned("1P2D", brain=brain, times=UNKNOWN)


def test_a_split_that_the_decision_left_out_has_the_present_one_beside_it() -> None:
    only = replace(SMALL, candidates=SMALL.candidates[:1])
    said = planned("1P2D", brain=replace(BRAIN, decision=only))
    assert "forecast  2P1D   not known\n" in said


@pytest.mark.slow
async def test_the_largest_change_fits_a_low_terminal() -> None:
    many = replace(
        MOVE,
        candidates=tuple(
            replace(each, split="8P1D") if each.split == "4P5D" else each
            for each in CANDIDATES[:-1]
        ),
    )
    source = FakeSource(cluster(*NINE, brain=replace(BRAIN, decision=many)))
    source.refused_until_s = 1_700_000_000.0
    async with staged(source, size=(80, 24), protected=True) as stage:
        await stage.press("s", *"8P1D", "enter")
        await stage.sees(
            "forecast  3P6D   2.41", "8P1D   2.70", "and 1 more", "unless --force",
            "same as", "cluster name", "Apply (y)",
        )  # fmt: skip


# ------------------------------------------------------------------------------------ the mode


def test_what_is_offered_first() -> None:
    assert draft_of(cluster(mode="hold")).mode == "auto"
    assert draft_of(cluster(mode="advise")).mode == "auto"
    assert draft_of(cluster(mode="auto")).mode == "hold"
    draft = draft_of(cluster())
    assert [stepped(draft, by).mode for by in (1, 2, 3, -1)] == ["advise", "hold", "auto", "hold"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("30m", 1800.0), ("1h30m", 5400.0), ("1.5h", 5400.0), ("0s", None)]
    + [(text, None) for text in ("", "30", "m", "30 m", "-3m", "1y")],
)
def test_how_long_a_hold_lasts(text: str, seconds: float | None) -> None:
    assert span_s(text) == seconds


def test_the_command_that_does_the_same() -> None:
    assert cli_line(ModeDraft("auto", 1, lasts="30m"), " -c x") == "evctl split auto -c x"
    assert cli_line(ModeDraft("hold", 1, lasts="30m")) == "evctl split hold --for 30m"
    assert cli_line(ModeDraft("hold", 1, lasts="3x")) == "evctl split hold"


@pytest.mark.parametrize(
    ("draft", "changes", "said"),
    [
        (ModeDraft("auto", 41), {}, ""),
        (ModeDraft("auto", 40), {"held_by": "bob"}, "generation moved 40 to 41 by bob: e looks"),
        (ModeDraft("hold", 41), {}, "the mode is hold already"),
        (ModeDraft("hold", 41), {"held_until_s": 1e9}, ""),
        (ModeDraft("hold", 41, lasts="30m"), {}, ""),
        (ModeDraft("hold", 41, lasts="30"), {}, "30 is no time"),
        (ModeDraft("auto", 41, sending=True), {}, "sending"),
    ],
)
def test_what_stands_in_the_way(draft: ModeDraft, changes: dict[str, object], said: str) -> None:
    found = obstacle(draft, model_of(cluster(**changes)), 100.4, protected=False)
    assert found.startswith(said)
    assert bool(found) is bool(said)


def test_the_modal_says_what_the_planner_would_be_left_to() -> None:
    status = cluster(brain=BRAIN, held_by="ann", held_until_s=1_700_000_000.0, mode_after="auto")
    said = mode_text(draft_of(status), scene_of(model_of(status)), 78).plain
    assert "now 2P1D, hold by ann until 22:13:20, then auto" in said
    assert "planner 3m ago: would move: 2P1D -> 1P2D" in said
    assert "next decision in 3:12" in said
    assert "▸ auto    the planner moves nodes once it is sure" in said


@pytest.mark.slow
async def test_a_hold_is_handed_to_the_planner() -> None:
    source = FakeSource(cluster(held_by="ann@desk", hold_reason="evening load"))
    async with staged(source) as stage:
        await stage.press("a")
        await stage.sees(
            "Who decides the split of replay", "2P1D, hold by ann@desk: evening load",
            "evctl split auto", "Apply (y)",
        )  # fmt: skip
        await stage.press("enter")
        assert source.modes == [], "the focus is on Cancel"
        await stage.press("a", "y")
        await stage.sees("the mode is auto, generation 42")
        assert source.modes == [("auto", "alice", 41, None)]
        stage.source.tell_status(cluster(mode="auto", generation=42))
        await stage.sees("AUTO")


@pytest.mark.slow
@pytest.mark.parametrize("size", [(120, 36), (80, 24), (60, 20)])
async def test_a_hold_with_an_end_and_advice(size: tuple[int, int]) -> None:
    source = FakeSource(cluster(mode="auto"))
    async with staged(source, size=size) as stage:
        await stage.press("a")
        await stage.sees("▸ hold", "until somebody releases it", "f: how long")
        await stage.press("f", *"30x")
        await stage.sees("30x is no time")
        await stage.press("backspace", "m", "enter")
        await stage.sees("for 30m", "evctl split hold --for 30m", "y applies", "Apply (y)")
        await stage.press("y")
        await stage.sees("the mode is hold, generation 42")
        await stage.press("a", "up", "y")
        await stage.sees("the mode is advise")
        assert source.modes == [("hold", "alice", 41, 1800.0), ("advise", "alice", 41, None)]


@pytest.mark.slow
async def test_two_operators_do_not_overwrite_each_other() -> None:
    async with staged() as stage:
        await stage.press("a")
        await stage.sees("y applies")
        stage.source.tell_status(cluster(generation=42, held_by="bob"))
        await stage.sees("generation moved 41 to 42 by bob: e looks again")
        await stage.press("y")
        assert stage.source.modes == []
        await stage.press("e")
        await stage.sees("hold by bob", "y applies")
        # Bob writes again, and this time only the control plane knows.
        stage.source.errors = [
            ConflictError(
                what="the split was not changed",
                why="bob changed it meanwhile: it is at generation 43, you saw 42",
                next_step="look again",
                code="EV-1351",
            )
        ]
        await stage.press("y")
        await stage.sees("bob changed it meanwhile", "Apply (y)")
        assert stage.source.modes == [("auto", "alice", 42, None)]


@pytest.mark.slow
async def test_a_protected_cluster_is_named_before_its_mode_changes() -> None:
    async with staged(protected=True) as stage:
        await stage.press("a", "y")
        await stage.sees("protected: type replay to confirm")
        assert stage.source.modes == []
        await stage.press(*"replay", "enter")
        await stage.sees("the mode is auto")
