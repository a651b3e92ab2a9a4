"""`evctl bench directory` on tiny inputs: what comes out, never how fast it was."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from msgspec import UNSET

from evctl.bench.directory import growth, hashing, inputs, ours, turns
from evctl.bench.directory.cases import FULL, QUICK, TINY, Case, Wanted, cases
from evctl.bench.directory.inputs import MATCH, Input
from evctl.bench.directory.interleave import OURS, Side, interleave, peer_side, run
from evctl.bench.directory.recorded import recorded
from evctl.bench.directory.run import OURS_ONLY, flatness, measure, rows_of
from evctl.bench.drawing import check_drawing, place
from evctl.bench.measurement import Measurement, short
from evctl.core.errors import EvctlError, NotFoundError, UsageError
from evctl.policy.directory.audit import check
from evctl.trace.files import SAMPLE

STANDIN = Side("standin", (sys.executable, str(Path(__file__).with_name("peer_standin.py"))))
TASKS = {
    "match": ours.match,
    "recorded": ours.recorded,
    "ingest": ours.ingest,
    "memory": ours.memory,
    "leave": ours.leave,
    "turns": turns.turns,
    "hashing": hashing.hashing,
    "tokenising": hashing.tokenising,
}


def made_for(case: Case, folder: Path) -> tuple[Input, bytes]:
    file = folder / "input"
    inputs.write(file, case.make(), 1)
    return inputs.read(file)


def tiny() -> list[Case]:
    return list(cases(TINY, SAMPLE))


@pytest.mark.parametrize("case", tiny(), ids=lambda case: case.name)
def test_every_case_gives_the_figures_that_its_rows_want(case: Case, tmp_path: Path) -> None:
    figures = TASKS[case.task](*made_for(case, tmp_path), case.options)
    rows = rows_of(case, figures, None)
    assert [row.name for row in rows] == [wanted.name for wanted in case.rows]
    for row in rows:
        # What a test process's memory grows by may be less than nothing.
        assert row.value >= 0 or case.task == "memory"
        assert (row.peer, row.ratio, row.ok) == (None, None, UNSET)


@pytest.mark.parametrize("size", [FULL, QUICK], ids=["full", "quick"])
def test_names_of_cases_and_rows_are_unique(size: object) -> None:
    assert isinstance(size, type(FULL))
    found = list(cases(size, SAMPLE))
    names = [case.name for case in found]
    rows = [wanted.name for case in found for wanted in case.rows]
    assert len(set(names)) == len(names)
    assert len(set(rows)) == len(rows)
    assert set(names) >= OURS_ONLY


@pytest.mark.parametrize(
    "made",
    [
        inputs.sequences(3, 6, 40, 8, asked=30),
        inputs.fragmented(3, 64, 16),
        inputs.families(3, 200, 4),
        inputs.departure(3, 5, 100, 8),
        inputs.agents(3, 6, 40, runs=4, turns=2),
        recorded(SAMPLE, 3, conversations=3, prompts=12),
    ],
    ids=["sequences", "fragmented", "families", "departure", "agents", "recorded"],
)
def test_an_input_is_taken_in_whole_and_answers_what_it_stored(
    made: Input, tmp_path: Path
) -> None:
    file = tmp_path / "input"
    inputs.write(file, made, 1)
    again, keys = inputs.read(file)
    assert again == made
    side = ours.Side(again, keys)
    stored: dict[tuple[int, int], set[int]] = {}
    for node, path, start, end in made.operations:
        if node == MATCH:
            continue
        side.store((node, path, start, end))
        places = [first + at for first, count in made.paths[path] for at in range(count)]
        stored.setdefault((node, 0), set()).update(places[start:end])
    assert check(side.directory) == []
    for path in range(len(made.paths)):
        places = [first + at for first, count in made.paths[path] for at in range(count)]
        expected = {}
        for node in range(made.nodes):
            held = stored.get((node, 0), set())
            lead = next((at for at, place in enumerate(places) if place not in held), len(places))
            if lead:
                expected[ours.name(node)] = lead
        prompt = side.slice(path, 0, made.length(path))
        assert side.directory.match(prompt).coverage == expected


def test_a_fragmented_path_has_the_runs_that_it_says() -> None:
    made = inputs.fragmented(3, 256, 32)
    side = ours.Side(made, bytes(range(256)) * (made.blocks // 16 + 1))
    keys = b"".join(at.to_bytes(16, "big") for at in range(made.blocks))
    side.keys = keys
    asked = side.build()
    run_, _ = side.directory.tree.descend(asked[0], side.directory.tree.root, 0)
    assert len(side.directory.tree.path(run_)) == 32


def test_families_have_runs_of_the_length_that_they_say(tmp_path: Path) -> None:
    file = tmp_path / "input"
    inputs.write(file, inputs.families(3, 3000, 10), 1)
    figures = ours.memory(*inputs.read(file), {})
    assert figures["mean_run"] == 10
    assert figures["branches"] * 15 == figures["runs"] * 8


def test_both_sides_run_in_processes_of_their_own_and_share_rows() -> None:
    told: list[str] = []
    found = measure(TINY, SAMPLE, peer=STANDIN, repeats=2, only="cold", told=told.append)
    assert told == [f"cold-3: {side}, {n} of 2" for n in (1, 2) for side in ("evctl", "standin")]
    assert (found.kind, found.peer, found.repeats) == ("Measurement", "standin", 2)
    first = found.rows[0]
    assert first.peer == 50.0
    assert first.ratio == first.value / 50.0
    assert first.ok is (first.ratio <= 0.2)
    head, cells = found.table()
    assert head[3] == "STANDIN"
    assert all(len(line) == len(head) for line in cells)


def test_a_row_is_what_scripts_rely_on() -> None:
    case = Case("c", "match", lambda: Input(0, [], [], 0), (
        Wanted("time", "p50", "us", "p50", at_most=0.2, orientation=15.0),
        Wanted("rate", "rate", "blocks/s", "rate", at_least=5.0),
        Wanted("alone", "runs", "runs"),
    ))  # fmt: skip
    rows = rows_of(case, {"p50": 10.0, "rate": 40.0, "runs": 2.0}, {"p50": 100.0, "rate": 10.0})
    told = msgspec.to_builtins(rows)
    assert told == [
        {"name": "time", "value": 10.0, "unit": "us", "peer": 100.0, "ratio": 0.1, "ok": True,
         "goal": "ratio <= 0.2", "orientation": 15.0},
        {"name": "rate", "value": 40.0, "unit": "blocks/s", "peer": 10.0, "ratio": 4.0,
         "ok": False, "goal": "ratio >= 5"},
        {"name": "alone", "value": 2.0, "unit": "runs", "peer": None, "ratio": None},
    ]  # fmt: skip
    whole = Measurement(
        subject="directory", peer="x", input="", repeats=1, wall_s=0, load=(0, 0), machine="",
        rows=rows,
    )  # fmt: skip
    assert not whole.ok
    assert whole.table()[1][1][5] == "FAIL ratio >= 5"
    assert [short(value) for value in (0.0, 0.1234, 12.34, 999.9, 12345.6)] == [
        "0", "0.123", "12.3", "1,000", "12,346",
    ]  # fmt: skip


def test_an_orientation_never_decides() -> None:
    case = Case("c", "match", lambda: Input(0, [], [], 0), (
        Wanted("time", "p50", "us", orientation=15.0),
    ))  # fmt: skip
    (row,) = rows_of(case, {"p50": 1e9}, None)
    assert row.ok is UNSET


def test_flatness_compares_the_longest_context_with_the_shortest() -> None:
    known = {at: {"arrive_p50": at / 100, "turn_p50": 5.0} for at in (200, 2000, 20_000)}
    assert [row.value for row in flatness(known)] == [100.0, 1.0]
    assert flatness({200: known[200]}) == []


def test_a_missing_environment_names_the_script(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        peer_side("dynamo", tmp_path)
    assert (caught.value.code, caught.value.next_step) == ("EV-1630", "run scripts/setup-peers")
    with pytest.raises(UsageError):
        peer_side("sglang", tmp_path)


def test_a_side_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    case = Case("broken", "match", lambda: inputs.sequences(1, 1, 4, 2), (), {"fail": True})
    with pytest.raises(EvctlError, match="told to fail") as caught:
        interleave(case, [STANDIN], 1)
    assert caught.value.code == "EV-1631"
    silent = Side("silent", (sys.executable, "-c", "pass"))
    with pytest.raises(EvctlError, match="no figures"):
        run(silent, case, tmp_path / "input")


def test_growth_has_points_of_both_sides_and_rows() -> None:
    scale = growth.Scale((2,), (5,), (3,), (4,), rounds=1, sampled=3)
    points = growth.grow(scale, peer=STANDIN, repeats=1)
    assert {(p.axis, p.side) for p in points} == {
        (axis, side) for axis in growth.AXES for side in (OURS.name, STANDIN.name)
    }
    rows = growth.rows(points, STANDIN.name)
    assert rows[0].name == "cold match, 4,096 blocks, p50"
    assert rows[0].peer == 50.0


def test_a_drawing_has_its_data_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = [
        growth.Point(axis, at, side, growth.COLD, at * 1.0, at * 2.0, None)
        for axis in growth.AXES
        for side in ("evctl", "dynamo")
        for at in (1, 10, 100)
    ]
    whole = growth.Growth("DirectoryGrowth", "dynamo", 1, "here", points)
    file = place(tmp_path / "perf", growth.FILE)
    data = growth.write(file, whole)
    assert msgspec.json.decode(data.read_bytes(), type=growth.Growth) == whole
    first = file.read_bytes()
    growth.write(file, whole)
    assert file.read_bytes() == first


def test_without_matplotlib_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EvctlError) as caught:
        check_drawing()
    assert caught.value.next_step == "python -m pip install 'evctl[bench]'"


def test_a_drawing_is_svg(tmp_path: Path) -> None:
    assert place(tmp_path, "a.svg") == tmp_path / "a.svg"
    assert place(tmp_path / "new" / "x.svg", "a.svg") == tmp_path / "new" / "x.svg"
    assert (tmp_path / "new").is_dir()
    with pytest.raises(UsageError, match="drawings are SVG"):
        place(tmp_path / "x.png", "a.svg")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot draw into"):
        place(tmp_path / "file" / "x.svg", "a.svg")
