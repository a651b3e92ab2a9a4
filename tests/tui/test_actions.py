"""The action table, and that bindings, footer, help, palette and read-only derive from it."""

from __future__ import annotations

import pytest
from textual.binding import Binding

from evctl.core.status import SplitChange
from evctl.tui.actions import ACTIONS, BY_ID, FORBIDDEN_KEYS, Danger, Scope, key_name, why_not
from evctl.tui.application import TopApp
from evctl.tui.change import (
    Draft,
    Failure,
    Stage,
    answered,
    asked,
    cli_line,
    forced,
    obstacle,
    resolve,
    typed,
)
from evctl.tui.model import Model, fold
from evctl.tui.screens.overview import OverviewScreen
from evctl.tui.source import Stale
from evctl.tui.state import Ui
from evctl.tui.views.change import change_text
from evctl.tui.views.footer import entries, footer, help_text
from tests.tui.fakes import change_of, cluster, model_of, node, scene_of

NOW_S = 100.4


def test_ids_and_keys_are_given_once() -> None:
    assert len(BY_ID) == len(ACTIONS)
    keys = [key for action in ACTIONS for key in action.keys]
    assert len(set(keys)) == len(keys)


def test_no_key_is_one_that_hosts_eat_and_no_change_is_on_a_chord() -> None:
    for action in ACTIONS:
        assert not set(action.keys) & FORBIDDEN_KEYS
        if action.changes_cluster:
            assert all(len(key) == 1 for key in action.keys)
            assert action.cli, "what changes the cluster has a command that does the same"


def test_bindings_are_the_table() -> None:
    bound = {
        key: (binding.id, binding.action)
        for each in OverviewScreen.BINDINGS
        for binding in Binding.make_bindings([each])
        for key in [binding.key]
    }
    assert bound == {
        key: (action.id, f"app.do('{action.id}')") for action in ACTIONS for key in action.keys
    }
    assert TopApp.BINDINGS == []


def test_every_action_is_done_by_the_application() -> None:
    for action in ACTIONS:
        assert callable(getattr(TopApp, f"do_{action.id}"))


def test_the_footer_is_of_the_table() -> None:
    said = footer(scene_of(model_of(cluster())), 400).plain
    shown = [action for action in ACTIONS if action.footer]
    for action in shown:
        assert f"{key_name(action.keys[0])} {action.title}" in said
    assert len(said.split("  ")) == len(shown) or said.count("  ") >= len(shown) - 1


def test_help_is_of_the_table() -> None:
    said = help_text(scene_of(model_of(cluster()))).plain
    for action in ACTIONS:
        assert action.text in said
        assert action.cli in said
        for key in action.keys:
            assert key_name(key) in said
    for scope in Scope:
        assert any(action.scope is scope for action in ACTIONS)


def test_the_palette_is_of_the_table() -> None:
    scene = scene_of(model_of(cluster()))
    assert {each.action.id for each in entries(scene, "")} == set(BY_ID) - {"palette"}
    assert [each.action.id for each in entries(scene, "decode HOW")] == ["split"]
    assert entries(scene, "no such thing") == ()


def test_read_only_is_of_the_table() -> None:
    model = model_of(cluster())
    for action in ACTIONS:
        reason = why_not(action, model, Ui(locked=True), NOW_S)
        assert bool(reason) is (action.danger is not Danger.NONE)
        assert why_not(action, model, Ui(), NOW_S) == ""
    blocked = [each for each in entries(scene_of(model, locked=True), "") if each.reason]
    assert [each.action.id for each in blocked] == ["split", "hold", "mode"]


@pytest.mark.parametrize(
    ("model", "now_s", "said"),
    [
        (Model(), NOW_S, "not connected"),
        (model_of(cluster()), 106.5, "6.5s old"),
        (fold(model_of(cluster()), Stale(1, "x"), 101.0), 101.0, "until it is back"),
    ],
)
def test_nothing_is_changed_on_old_data(model: Model, now_s: float, said: str) -> None:
    assert said in why_not(BY_ID["split"], model, Ui(), now_s)
    assert why_not(BY_ID["quit"], model, Ui(), now_s) == ""


# --------------------------------------------------------------------- a change being made


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("1P2D", "1P2D"),
        ("2d1p", "1P2D"),
        ("+1P", "3P2D"),
        ("-1p", "1P4D"),
        ("+2D", "0"),
        ("x", ""),
    ],
)
def test_what_is_typed(text: str, split: str) -> None:
    if split in {"", "0"}:
        draft = typed(Draft(), text, cluster())
        assert draft.split == ""
        assert draft.wrong
    else:
        assert str(resolve(text, "2P3D")) == split


def planned(text: str = "1P2D") -> Draft:
    status = cluster()
    draft = asked(typed(Draft(), text, status), status)
    return answered(draft, change_of(status, draft.split, draft.generation, plan=True))


def test_a_reviewed_change_has_no_obstacle() -> None:
    assert obstacle(planned(), model_of(cluster()), NOW_S, protected=False) == ""


def test_the_generation_must_not_move_between_review_and_apply() -> None:
    moved = model_of(cluster(generation=42, held_by="bob"))
    assert obstacle(planned(), moved, NOW_S, protected=False) == (
        "generation moved 41 to 42 by bob: e plans again"
    )


def test_age_is_checked_when_it_is_sent() -> None:
    assert "old" in obstacle(planned(), model_of(cluster()), 107.0, protected=False)


def test_protected_clusters_are_named() -> None:
    model = model_of(cluster())
    assert "type replay" in obstacle(planned(), model, NOW_S, protected=True)
    from msgspec.structs import replace

    assert obstacle(replace(planned(), typed="replay"), model, NOW_S, protected=True) == ""


def test_another_text_drops_the_plan() -> None:
    draft = typed(forced(planned()), "2P1D", cluster())
    assert (draft.plan, draft.generation, draft.force) == (None, None, False)
    wrong = typed(draft, "4P5D", cluster())
    assert wrong.wrong == "4P5D is 9 nodes and the cluster has 3"


def test_a_refusal_can_be_forced_and_a_failure_cannot() -> None:
    refused = answered(planned(), Failure("not now", "within the cooldown", refused=True))
    said = change_text(refused, scene_of(model_of(cluster())), 78).plain
    assert "within the cooldown" in said
    assert "f passes the rule with --force" in said
    assert cli_line(forced(refused)) == "evctl split set 1P2D --force"
    failed = answered(planned(), Failure("gone", "nobody listens"))
    assert "--force" not in change_text(failed, scene_of(model_of(cluster())), 78).plain


def test_the_modal_shows_diff_reach_and_command() -> None:
    said = change_text(planned(), scene_of(model_of(cluster())), 78).plain
    assert "now 2P1D  →  1P2D" in said
    assert "n2             ■ P → ◆ D   2 running, 3 queued" in said
    assert "1 node changes role: 2 running requests finish in place, 3 queued move" in said
    assert "same as  evctl split set 1P2D" in said


def test_what_is_on_its_way_to_a_decode_node_stays_with_it() -> None:
    status = cluster(node("n1"), node("d1", "D"), node("d2", "D"))
    draft = asked(typed(Draft(stage=Stage.REVIEW), "2P1D", status), status)
    said = change_text(
        answered(draft, change_of(status, "2P1D", 41, plan=True)), scene_of(model_of(status)), 78
    ).plain
    assert "■ P   2 running, 3 to come" in said
    assert "1 node changes role: 2 running requests and 3 to come finish in place" in said
    assert "queued" not in said


def test_many_moves_are_cut() -> None:
    status = cluster(*(node(f"n{i}") for i in range(20)), node("d", "D"))
    draft = asked(typed(Draft(stage=Stage.REVIEW), "1P20D", status), status)
    plan: SplitChange = change_of(status, "1P20D", 41, plan=True)
    said = change_text(answered(draft, plan), scene_of(model_of(status)), 78).plain
    assert "and 15 more" in said
    assert "19 nodes change role" in said
