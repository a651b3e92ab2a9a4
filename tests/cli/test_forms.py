"""Forms of results: what -o offers is what a command takes; and how tables fit a terminal."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml
from msgspec.structs import replace

from evctl.cli.loglines import parse_line, shown
from evctl.cli.output import Form, folded, table
from evctl.cli.plan_table import candidates_table
from evctl.cli.split_tables import difference, entries, history_table
from evctl.cli.why_tables import node_text
from evctl.core.moves import Move
from evctl.core.planning import Candidate, Forecast
from evctl.core.status import EventRecord, SplitChange, SplitWrite
from evctl.tui.views.planner import SAID
from tests.cli.conftest import Run
from tests.cli.test_terminal import complete
from tests.client.fake_admin import FakeAdmin
from tests.client.fake_why import NODE
from tests.conftest import ROOT


def functions_with_a_form() -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Each function of a command that chooses a form, with those it chooses from."""
    for path in sorted((ROOT / "evctl" / "cli" / "commands").glob("*.py")):
        module = importlib.import_module(f"evctl.cli.commands.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ != module.__name__:
                continue
            for call in ast.walk(ast.parse(inspect.getsource(function))):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Name)
                    and call.func.id == "chosen"
                    and "output" in inspect.signature(function).parameters
                    and isinstance(call.args[0], ast.Name)
                ):
                    forms = [getattr(Form, part.attr) for part in call.args[1:]]  # type: ignore[attr-defined]
                    yield f"{path.stem}.{name}", function, tuple(forms)


def test_what_is_offered_is_what_is_taken() -> None:
    seen = 0
    for name, function, forms in functions_with_a_form():
        hint = get_type_hints(function, include_extras=True)["output"]
        option = getattr(hint, "__metadata__", [None])[0]
        if option is None:
            continue  # called by commands, none itself
        seen += 1
        offered = option.metavar.strip("<>").split("|")
        assert set(offered) == set(forms), name
        assert option.autocompletion("") == offered
    assert seen > 15


def test_help_completion_and_errors_name_the_forms_of_the_command(
    run: Run, fake: FakeAdmin
) -> None:
    assert "--output <table|json|yaml>" in run("split", "set", "--help").out
    assert complete("evctl split set 1P2D -o ") == ["table", "json", "yaml"]
    assert complete("evctl logs -o ") == ["table", "jsonl", "json"]
    ran = run("version", "-o", "pdf")
    assert (ran.code, "not one of table, json, yaml, name" in ran.err) == (2, True)


def test_logs_are_lines_or_one_array(run: Run, fake: FakeAdmin, home: Path) -> None:
    log = home / "state" / "evctl" / "clusters" / "local" / "logs" / "n1.jsonl"
    log.write_text('{"time_s": 1, "level": "info", "message": "one"}\nTraceback\n')
    lines = [json.loads(line) for line in run("logs", "-o", "jsonl").out.splitlines()]
    assert [line["message"] for line in lines] == ["one", "Traceback"]
    assert json.loads(run("logs", "-o", "json").out) == lines
    assert json.loads(run("logs", "--grep", "nothing", "-o", "json").out) == []
    ran = run("logs", "-f", "-o", "json")
    assert (ran.code, "EV-1806" in ran.err) == (2, True)


def test_a_schema_has_forms(run: Run) -> None:
    content = json.loads(run("config", "schema").out)
    assert json.loads(run("config", "schema", "-o", "json").out) == content
    assert yaml.safe_load(run("config", "schema", "-o", "yaml").out) == content


def test_all_mistakes_of_a_file_are_told_once(run: Run) -> None:
    Path("bad.yaml").write_text("name: b\nnodes: 2\nsplit: 3P1D\nmodle: x\nl1_tokens: yes\n")
    ran = run("config", "validate", "bad.yaml")
    assert ran.code == 3
    told = ran.out.splitlines()
    assert [re.match(r"bad.yaml:(\d)", line)[1] for line in told] == ["3", "4", "5"]  # type: ignore[index]
    assert "split 3P1D is for 4 nodes, the cluster has 2" in told[0]
    assert "3 mistakes" in ran.err
    assert "modle" not in ran.err
    Path("bad.yaml").write_text("name: b\nnodes: x\nsplit: 3P1D\nmodel: y\n")
    told = run("config", "validate", "bad.yaml").out.splitlines()
    assert [line.split(":")[1] for line in told] == ["2", "4"], "the split may be right"


def test_topics_are_codes_by_number_and_then_terms(run: Run) -> None:
    names = run("explain", "-o", "name").out.split()
    codes = [name for name in names if name.startswith("EV-")]
    assert names[: len(codes)] == sorted(codes)
    assert names[len(codes) :] == sorted(names[len(codes) :])


def test_topics_stand_in_columns(run: Run) -> None:
    lines = run("explain").out.splitlines()
    assert len({len(line) - len(re.sub(r"^\S+ +", "", line)) for line in lines}) == 1


def test_every_verdict_is_explained(run: Run) -> None:
    of_splits = {"current", "chosen", "passed", "unsure", "small", "worse", "guarded", "bounded"}
    text = run("explain", "verdict").out
    assert {word for word in SAID.keys() | of_splits if word not in text} == set()


def test_the_last_column_goes_on_below_itself() -> None:
    rows = [["3 min ago", "ada@desk", "evening load, as every day"], ["1 s ago", "bob", "-"]]
    assert table(("WHEN", "BY", "WHY"), rows, width=36) == (
        "WHEN       BY        WHY\n"
        "3 min ago  ada@desk  evening load,\n"
        "                     as every day\n"
        "1 s ago    bob       -"
    )
    assert "evening load, as every day" in table(("WHEN", "BY", "WHY"), rows)


def test_a_figure_that_is_not_known_is_no_zero() -> None:
    """A split that too few slices tell of has no error bar, one that cannot be has no forecast."""
    shown = candidates_table(
        (
            Candidate("1P3D", Forecast(1.2, 9.0, 9.9, 27.0), -0.3, 0.0, "worse", "-30%"),
            Candidate("4P0D", Forecast(0.0), 0.0, 0.0, "bounded", "too few nodes"),
            Candidate("2P2D", Forecast(2.1, 3.4, 4.2, 8.4), 0.0, 0.0, "current", ""),
        ),
        None,
    )
    rows = [" ".join(row.split()) for row in shown.splitlines()]
    assert rows[1] == "1P3D 1.20 9.00 s 9.90 s 27 s -30.0% - worse -30%"
    assert rows[2] == "4P0D - - - - - - bounded too few nodes"
    assert rows[3] == "2P2D 2.10 3.40 s 4.20 s 8.40 s - - current -"


@pytest.mark.parametrize(
    ("move", "said"),
    [
        (Move("n", "P", "D", 1, 2), "P -> D; 1 running finishes there, 2 queued move"),
        (Move("n", "D", "P", 1, 2), "D -> P; 1 running and 2 to come finish there"),
        (Move("n", "D", "P", 0, 1), "D -> P; 0 running and 1 to come finishes there"),
        (Move("n", "D", "P", 3, 0), "D -> P; 3 running finish there"),
    ],
)
def test_what_becomes_of_the_work_of_a_node_that_moves(move: Move, said: str) -> None:
    """What is being prefilled for a decode node keeps it: only what waits for prefill moves."""
    change = SplitChange("2P2D", "1P3D", (move,), generation=1, applied=False)
    assert difference(change) == f"2P2D -> 1P3D\n  n: {said}"


def test_a_history_fits_a_narrow_terminal() -> None:
    """From the fake's events: a move with a reason, and a change of mode without one."""
    moved = SplitWrite(
        "hold", "2P1D", "1P2D", "ada@desk", "evening load, as on every day of this week", 8,
        (Move("n2", "P", "D", 1, 2),),
    )  # fmt: skip
    advised = SplitWrite("advise", "1P2D", "1P2D", "bob@laptop", "", 9)
    events = [
        EventRecord(i, time.time(), "split", "", one.told(), write=one)
        for i, one in enumerate((moved, advised))
    ]
    assert history_table(entries(events), 60).splitlines() == [
        "WHEN     GEN  SPLIT         MODE    FLIP  WHOLE  OUTCOME",
        "0 s ago    8  2P1D -> 1P2D  hold       -      -  -",
        "              n2 P>D; by ada@desk: evening load, as on every",
        "              day of this week",
        "0 s ago    9  1P2D          advise     -      -  -",
        "              by bob@laptop",
    ]
    assert "by ada@desk" not in history_table(entries(events), 120)
    assert history_table(entries(events), None) == history_table(entries(events), 200)


def test_requests_of_a_node_fit_a_narrow_terminal() -> None:
    (one,) = NODE.requests
    one = replace(one, request_id=f"cmpl-{24 * 'a'}")
    there = replace(NODE, requests=(one,))
    assert "WAIT  PREFILL     TTFT" in node_text(there, 120)
    narrow = node_text(there, 76)
    assert "WAIT     TTFT" in narrow
    assert max(map(len, narrow.splitlines()[-4:])) <= 76


def test_sentences_go_on_below_themselves() -> None:
    assert folded("one two three\n\nfour", 12) == "one two\n  three\n\nfour"
    assert folded("one two three", None) == "one two three"


def test_lines_of_a_log_break_between_words() -> None:
    text = json.dumps({"time_s": 1, "level": "info", "message": "a word " * 12, "node": "n1"})
    told = shown(parse_line("control", text), io.StringIO(), 60).splitlines()
    assert len(told) > 2
    assert all(len(line) <= 60 for line in told)
    assert told[1].startswith(" " * 30 + "word") or told[1].startswith(" " * 30 + "a")
    assert "\n" not in shown(parse_line("control", text), io.StringIO())


def test_completion_offers_what_there_is(fake: FakeAdmin) -> None:
    assert complete("evctl up ve") == ["verify"]
    assert complete("evctl config validate re") == ["replay"]
    assert complete("evctl status ver") == [], "it is not up"
    assert complete("evctl split set ") == ["1P2D", "2P1D"]
    assert complete("evctl up --split 2") == ["2P1D"]
    assert complete("evctl config get gateway.p") == ["gateway.port", "gateway.port_strict"]
    assert complete("evctl config get out") == ["output"]
    assert complete("evctl trace stats sam") == ["sample"]
    assert complete("evctl trace stats clu") == ["clusters/"]
    assert complete("evctl trace stats clusters/l") == ["clusters/local.yaml"]
    assert complete("evctl logs --level w") == ["warning"]
