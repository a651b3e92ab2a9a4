"""The application under a pilot: every action, at three sizes."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest

from evctl.core.errors import RefusedError
from evctl.tui.actions import BY_ID
from evctl.tui.application import MOST_CLIPBOARD_BYTES
from evctl.tui.source import Stale
from evctl.tui.state import Ui
from evctl.tui.terminal import Terminal
from tests.tui.fakes import FakeSource, cluster, event, node, replace, snapshot
from tests.tui.screens import SIZES, staged

pytestmark = pytest.mark.slow

sizes = pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")

EXPECTED = {
    "help": "How many nodes prefill",
    "palette": "palette",
    "split": "Change the split of replay",
    "hold": "Hold the split of replay",
    "mode": "Who decides the split of replay",
    "open": "node n1",
    "planner": "this control plane does not tell",
    "why": "the reasons: evctl why node n1",
    "filter": "filter: part of a name",
    "unlock": "READ-ONLY",
    "pause": "paused",
    "faster": "painted every 0.25 s",
    "slower": "painted every 1 s",
    "copy": "copied node n1",
    "theme": "theme light",
    "sort": "node▾",
    "sort_right": "role▴",
    "sort_left": "age▴",
}


@sizes
async def test_each_action_shows(size: tuple[int, int]) -> None:
    async with staged(size=size) as stage:
        for name, said in EXPECTED.items():
            stage.app.ui = Ui(layout=stage.app.ui.layout)
            await stage.press(BY_ID[name].keys[0])
            await stage.sees(said)
            await stage.press("escape")
            assert len(stage.app.screen_stack) == 1, name


@sizes
async def test_panels_fit_and_are_reached(size: tuple[int, int]) -> None:
    async with staged(size=size) as stage:
        rows = stage.text().splitlines()
        assert all(len(row) == size[0] for row in rows)
        seen = stage.text()
        for _ in range(7):
            before = stage.app.ui.panel
            await stage.press("tab")
            await stage.until(lambda before=before: stage.app.ui.panel != before, "moved on")
            seen += stage.text()
        for part in ("queues", "latency", "TTFT", "wait s", "no events yet", "n3", "2.41 req/s"):
            assert part in seen
        await stage.press("1")
        assert stage.app.ui.panel == "nodes"
        await stage.press("shift+tab")
        assert stage.app.ui.panel != "nodes"


async def test_five_lines_when_nothing_fits_and_back() -> None:
    async with staged(size=(50, 10)) as stage:
        await stage.sees("replay 2P1D hold gen 41")
        stage.source.tell_status(cluster(generation=42))
        await stage.sees("gen 42")
        await stage.pilot.resize_terminal(120, 36)
        await stage.sees("L2 used")
        await stage.pilot.resize_terminal(80, 24)
        await stage.until(lambda: "L2 used" not in stage.text())
        await stage.sees("L1 used", "latency")


# ---------------------------------------------------------------------------- the split


@sizes
async def test_a_split_is_typed_planned_reviewed_and_sent(size: tuple[int, int]) -> None:
    async with staged(size=size) as stage:
        await stage.press("s")
        await stage.sees("type a split such as 2P1D, or +1P")
        await stage.press(*"1P2D")
        await stage.sees("1 node changes role", "evctl split set 1P2D")
        assert stage.source.calls == [("1P2D", True, False, 41)]
        await stage.press("enter")
        await stage.sees("Cancel", "Apply (y)")
        assert stage.app.focused is not None
        assert stage.app.focused.id == "cancel"
        await stage.press("y")
        await stage.sees("accepted and held, generation 42")
        assert stage.source.calls[-1] == ("1P2D", False, False, 41)


@pytest.mark.parametrize(
    "keys", [["enter", "enter"], ["enter", "escape"], ["escape"], ["enter", "s"]]
)
async def test_what_does_not_confirm(keys: list[str]) -> None:
    async with staged() as stage:
        await stage.press("s", *"1P2D")
        await stage.sees("1 node changes role")
        await stage.press(*keys)
        assert all(plan for _, plan, _, _ in stage.source.calls)


async def test_hold_reviews_the_split_as_it_is() -> None:
    async with staged() as stage:
        await stage.press("h")
        await stage.sees("no node changes role", "evctl split hold", "Apply (y)")
        assert "evctl split set" not in stage.text()
        await stage.press("y")
        await stage.sees("accepted and held")
        assert stage.source.calls[-1] == ("2P1D", False, False, 41)


async def test_the_preview_follows_the_cluster() -> None:
    async with staged() as stage:
        await stage.press("s", *"1P2D", "enter")
        await stage.sees("Apply (y)", "3 queued")
        nodes = [replace(each, queue=7) for each in stage.source.status_now.nodes]
        await stage.pass_time(1.5)
        stage.source.tell_status(cluster(*nodes))
        await stage.sees("7 queued")
        await stage.press("y")
        await stage.sees("accepted and held")


async def test_the_preview_says_until_when_it_would_be_refused() -> None:
    source = FakeSource()
    source.refused_until_s = 1_700_000_000.0
    async with staged(source) as stage:
        await stage.press("s", *"1P2D", "enter")
        screen = await stage.sees("(cooldown 120 s after the last move) unless --force")
        assert re.search(r"refused until \d\d:\d\d:\d\d ", screen)
        await stage.press("y")
        assert all(plan for _, plan, _, _ in source.calls)
        await stage.press("f")
        await stage.sees("--force passes the rule", "evctl split set 1P2D --force")
        await stage.press("y")
        await stage.sees("accepted and held")


async def test_a_control_plane_that_is_gone_says_what_to_do() -> None:
    async with staged() as stage:
        stage.source.tell(Stale(3, "nobody listens", 0.5))
        await stage.sees("control plane does not answer: evctl status, evctl up replay", "quit")
        await stage.sees("retrying (3)", "ok?")
        stage.source.tell(snapshot(cluster()))
        await stage.until(lambda: "does not answer" not in stage.text())
        assert "ok?" not in stage.text()


async def test_a_generation_that_moves_under_the_modal_stops_it() -> None:
    async with staged() as stage:
        await stage.press("s", *"1P2D", "enter")
        await stage.sees("Apply (y)", "1 node changes role")
        stage.source.tell_status(cluster(generation=42, held_by="bob"))
        await stage.sees("generation moved 41 to 42 by bob")
        await stage.press("y")
        assert all(plan for _, plan, _, _ in stage.source.calls)
        await stage.press("e", "enter")
        await stage.sees("generation 42", "y applies")
        await stage.until(lambda: stage.source.calls[-1][3] == 42)
        await stage.until(lambda: "y applies" in stage.text())
        await stage.press("y")
        await stage.sees("accepted and held, generation 43")


async def test_a_snapshot_that_ages_under_the_modal_stops_it() -> None:
    async with staged() as stage:
        await stage.press("s", *"1P2D", "enter")
        await stage.sees("Apply (y)", "1 node changes role")
        await stage.pass_time(7.0)
        await stage.sees("7.0s old")
        await stage.press("y")
        assert all(plan for _, plan, _, _ in stage.source.calls)


async def test_a_refusal_is_told_and_forced_only_by_its_own_key() -> None:
    refusal = RefusedError(
        what="the split was not changed",
        why="the last change is 12 s ago and the cooldown is 120 s",
        next_step="wait, or pass --force",
        code="EV-1406",
    )
    async with staged() as stage:
        stage.source.errors = [refusal]
        await stage.press("s", *"1P2D", "enter")
        await stage.sees("cooldown is 120 s", "f passes the rule")
        await stage.press("y")
        assert all(plan for _, plan, _, _ in stage.source.calls)
        await stage.press("f")
        await stage.sees("evctl split set 1P2D --force", "1 node changes role")
        await stage.press("y")
        await stage.sees("accepted and held")
        assert stage.source.calls[-1] == ("1P2D", False, True, 41)


async def test_a_protected_cluster_is_named_first() -> None:
    async with staged(protected=True) as stage:
        await stage.sees("replay (protected)")
        await stage.press("s", *"1P2D", "enter")
        await stage.sees("protected: type replay to confirm", "cluster name")
        assert stage.app.focused is not None
        assert stage.app.focused.id == "cancel"
        await stage.press("y")
        await stage.press(*"reply", "enter")
        assert all(plan for _, plan, _, _ in stage.source.calls)
        await stage.press(*["backspace"] * 5, *"replay", "enter")
        await stage.sees("accepted and held")


async def test_a_split_of_another_size_never_leaves_here() -> None:
    async with staged() as stage:
        await stage.press("s", *"4P5D", "enter")
        await stage.sees("4P5D is 9 nodes and the cluster has 3")
        assert stage.source.calls == []


async def test_keys_work_while_a_call_hangs() -> None:
    async with staged() as stage:
        stage.source.hold_calls.clear()
        await stage.press("s", *"1P2D")
        await stage.sees("planning")
        await stage.press("escape", "question_mark")
        await stage.sees("moving about")
        stage.source.hold_calls.set()


# ---------------------------------------------------------------------------- read-only


async def test_read_only_locks_until_the_word_is_typed() -> None:
    async with staged(read_only=True) as stage:
        await stage.sees("READ-ONLY", "ctrl+o unlock")
        await stage.press("s")
        await stage.sees("read-only: ctrl+o unlocks")
        await stage.press("ctrl+o", *"open", "enter", "escape")
        assert stage.app.ui.locked
        await stage.press("ctrl+o", *"unlock", "enter")
        await stage.until(lambda: not stage.app.ui.locked)
        assert "READ-ONLY" not in stage.text()
        await stage.press("s")
        await stage.sees("Change the split")


# ----------------------------------------------------------------------- finding, copying


async def test_the_filter_narrows_and_escape_clears_it() -> None:
    async with staged() as stage:
        await stage.press("slash", *"decode", "enter")
        await stage.sees("filter: decode")
        assert " n1 " not in stage.text()
        await stage.press("escape")
        await stage.sees(" n1 ")


async def test_the_palette_does_what_is_chosen() -> None:
    async with staged() as stage:
        await stage.press("colon", *"hold the", "enter")
        await stage.sees("Hold the split of replay")
        await stage.press("escape", "ctrl+p", *"zzz", "enter", "escape")
        assert len(stage.app.screen_stack) == 1


async def test_events_scroll_and_follow_again() -> None:
    source = FakeSource()
    source.events_now = [event(n, f"event number {n}") for n in range(1, 100)]
    async with staged(source) as stage:
        await stage.sees("event number 99")
        await stage.press("tab", *["k"] * 50)
        await stage.sees("event number 49")
        assert "event number 99" not in stage.text()
        await stage.press("escape")
        await stage.sees("event number 99")


async def test_copies_are_json_and_long_ones_go_to_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    async with staged() as stage:
        await stage.press("y")
        assert json.loads(stage.app.clipboard)["name"] == "n1"
        many = cluster(*(node(f"n{i}") for i in range(400)), node("d", "D"))
        stage.source.tell_status(many)
        await stage.sees("401 nodes")
        await stage.press("tab", "y")
        await stage.sees("too long for the clipboard")
        (written,) = tmp_path.iterdir()
        assert len(written.read_bytes()) > MOST_CLIPBOARD_BYTES
        assert json.loads(written.read_text())["cluster"] == "replay"


async def test_a_node_is_opened_and_is_live() -> None:
    async with staged() as stage:
        await stage.press("down", "enter")
        await stage.sees("node n2", "2 running (2 prefill, 0 decode)")
        stage.source.tell_status(cluster(node("n1"), node("n2", queue=99), node("n3", "D")))
        await stage.sees("99 waiting")
        await stage.press("escape")
        assert len(stage.app.screen_stack) == 1


@sizes
async def test_ascii_everywhere(size: tuple[int, int]) -> None:
    async with staged(size=size, terminal=Terminal(ascii=True, mono=True)) as stage:
        for keys in ([], ["question_mark"], ["escape", "colon"], ["escape", "enter"]):
            await stage.press(*keys)
            assert stage.text().isascii(), stage.text()
        await stage.press("escape", "s", *"1P2D")
        await stage.sees("1 node changes role")
        assert stage.text().isascii()


async def test_every_theme_paints() -> None:
    async with staged() as stage:
        for name in ("light", "contrast", "ansi", "mono", "dark"):
            await stage.press("t")
            assert stage.app.ui.theme == name
            await stage.sees("theme " + name)
            await stage.press("question_mark", "escape", "s", "escape")


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_leaving_waits_for_nobody(key: str) -> None:
    async with staged() as stage:
        stage.source.hold_calls.clear()
        await stage.press("s", *"1P2D")
        await stage.sees("planning")
        await stage.press("escape")
        began_s = time.monotonic()
        await stage.pilot.press(key)
        assert time.monotonic() - began_s < 5
        assert stage.app.return_code == 0
        stage.source.hold_calls.set()
    assert threading.active_count() < 50


async def test_escape_never_quits() -> None:
    async with staged() as stage:
        await stage.press(*["escape"] * 5)
        assert stage.app.return_code is None
