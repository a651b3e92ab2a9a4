"""`evctl bench eviction`: losses worked out by hand, and the model against plain recomputation."""

from __future__ import annotations

import json
from array import array
from collections import OrderedDict
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from evctl.bench.eviction.endings import read_endings
from evctl.bench.eviction.grid import POLICIES, Cell, Grid, Played, read, run
from evctl.bench.eviction.report import rows
from evctl.bench.eviction.simulate import Loss, simulate
from evctl.bench.eviction.stretches import MOST_BLOCKS, shape_all
from evctl.bench.eviction.timeline import NEVER, Event, Load, Timeline, build
from evctl.core.errors import UsageError
from evctl.policy.eviction import Ending
from evctl.trace import files
from evctl.trace.schema import Conversation, expand
from tests.trace.traces import HEADER, branch, family

A, B, C = [0, 1, 2], [3, 4, 5], [6, 7, 8]
"""Three contexts of three stretches of two blocks."""


def timeline(*events: Event, live_blocks: float = 10.0) -> Timeline:
    """By hand; next_use and seen are filled in. Measured from second 2 on."""
    next_use: array[int] = array("L")
    last: dict[int, int] = {}
    for index, event in enumerate(events):
        event.slot = len(next_use)
        event.seen = sum(stretch in last for stretch in event.path)
        for place, stretch in enumerate(event.path, event.slot):
            next_use.append(NEVER)
            if stretch in last:
                next_use[last[stretch]] = index
            last[stretch] = place
    load = Load(1, 0, 30.0, 100.0, 2.0)
    return Timeline(load, list(events), [2] * 9, [0, 2, 4] * 3, next_use, live_blocks, 0, 0)


def request(time_s: float, branch: int, path: list[int], **more: object) -> Event:
    return Event(time_s, 0, branch, path, **more)  # type: ignore[arg-type]


def test_two_contexts_in_turn_in_a_pool_that_lacks_two_blocks() -> None:
    """12 blocks in 10. LRU gives up the other's last stretch each time: 2 of 6 lost at each of
    the two measured requests. Belady gives up B's own tail at second 1 (A comes first): A hits
    whole at 2, its tail goes then (it never comes back), B lacks its tail at 3: 2 of 12."""
    played = timeline(
        request(0.0, 1, A), request(1.0, 2, B), request(2.0, 1, A), request(3.0, 2, B)
    )
    assert simulate(played, "lru", 1.0) == Loss(12, 4, 6)
    assert simulate(played, "belady", 1.0) == Loss(12, 2, 4)
    assert simulate(played, "lru", 1.2).lost_blocks == 0
    # all that is not lost is found: a pool of one stretch keeps the root of the last context
    assert simulate(played, "lru", 0.2).lost_blocks == 12


def test_what_lies_behind_a_hole_is_lost() -> None:
    """SIEVE knows no suffixes: A's tail was used at 1 and its root not, so the root goes."""
    played = timeline(
        request(0.0, 1, [0]),
        request(0.0, 2, B),
        request(1.0, 2, B),
        request(1.5, 1, [0, 1]),
        request(3.0, 1, [0, 1]),
        live_blocks=8.0,
    )
    # 0, B and 1 take 10 blocks of 8: the hand clears B and 0, and the newest, 1, goes; then
    # at 3.0 the root is found and 1 is not
    assert simulate(played, "sieve", 1.0) == Loss(4, 2, 4)


def test_the_papers_order_spares_what_is_referenced() -> None:
    """C ends at second 1 and is the most recent; the paper's rule gives it up for A's return."""
    played = timeline(
        request(0.0, 1, A),
        request(0.5, 3, C),
        Event(1.0, 1, 3, last=True, dropped=C),
        request(1.5, 2, B[:1]),
        request(2.0, 1, A),
        live_blocks=12.0,
    )
    assert simulate(played, "lru", 1.0) == Loss(6, 2, 4)
    for better in ("paper", "expected", "session-release", "belady"):
        assert simulate(played, better, 1.0) == Loss(6, 0, 2), better


# ---------------------------------------------------------------------------- the model


def sample() -> list[Conversation]:
    return list(files.open_trace(files.sample_path())[1])


def test_stretches_are_the_blocks_of_the_prompts() -> None:
    for shape in shape_all([*sample(), family()]):
        for steps, of in zip(shape.steps, shape.conversation.branches, strict=True):
            path: list[int] = []
            for step, blocks in zip(steps, expand(of), strict=True):
                path = [*path[: step.keep], *step.add]
                found = [shape.stretches[number] for number in path]
                assert [i for first, _, n in found for i in range(first, first + n)] == blocks
                assert [depth for _, depth, _ in found] == [
                    sum(n for _, _, n in found[:place]) for place in range(len(found))
                ]
                assert all(n <= MOST_BLOCKS for _, _, n in found)


@pytest.fixture(scope="module")
def played() -> Timeline:
    recording = read(files.SAMPLE)
    return build(recording.header, recording.shapes, {}, Load(8, 1, 30.0, 2400.0, 600.0))


def test_time_references_and_future_by_plain_recomputation(played: Timeline) -> None:
    contexts: dict[int, set[int]] = {}
    seen: set[int] = set()
    area = before_s = 0.0
    for index, event in enumerate(played.events):
        live = set().union(*contexts.values()) if contexts else set()
        assert event.time_s >= before_s
        from_s = max(before_s, 600.0)
        area += sum(played.blocks[s] for s in live) * max(0.0, event.time_s - from_s)
        before_s = event.time_s
        if event.kind == 0:
            assert [s in seen for s in event.path].count(True) == event.seen
            seen.update(event.path)
            contexts[event.branch] = set(event.path)
            if index % 50 == 0:
                for place, stretch in enumerate(event.path, event.slot):
                    later = (
                        i
                        for i, e in enumerate(played.events[index + 1 :], index + 1)
                        if e.kind == 0 and stretch in e.path
                    )
                    assert played.next_use[place] == next(later, NEVER)
        elif event.last:
            del contexts[event.branch]
        now = set().union(*contexts.values()) if contexts else set()
        assert set(event.dropped) == live - now
        assert set(event.taken) == now - live
    live = set().union(*contexts.values())
    area += sum(played.blocks[s] for s in live) * (2400.0 - before_s)
    assert played.live_blocks == pytest.approx(area / 1800.0)


def test_whole_stretches_lose_what_single_blocks_would(played: Timeline) -> None:
    """LRU block by block, written down plainly, against the order on stretches."""
    pool: OrderedDict[tuple[int, int], None] = OrderedDict()
    most = int(0.8 * played.live_blocks)
    reusable = lost = 0
    for event in played.events:
        blocks = [(s, i) for s in event.path for i in range(played.blocks[s])]
        if event.kind == 0 and event.time_s >= 600.0:
            seen = sum(played.blocks[s] for s in event.path[: event.seen])
            hit = next((i for i, block in enumerate(blocks) if block not in pool), seen)
            reusable += seen
            lost += seen - min(hit, seen)
        for block in reversed(blocks):
            pool[block] = None
            pool.move_to_end(block)
        while len(pool) > most:
            pool.popitem(last=False)
    found = simulate(played, "lru", 0.8)
    assert found.reusable_blocks == reusable
    assert lost > 0.02 * reusable
    assert found.share == pytest.approx(lost / reusable, abs=0.02)


def test_sub_agents_share_run_beside_their_parent_and_end() -> None:
    """One agent plays `family` again and again, of which only the second is whole."""
    shapes = shape_all([family()])
    found = build(HEADER, shapes, {}, Load(1, 0, 30.0, 400.0, 0.0))
    first = min(e.branch for e in found.events if e.branch >= 4) // 4 * 4
    of = {b: [e for e in found.events if e.branch == first + b] for b in range(4)}
    assert [len(of[b]) for b in range(4)] == [10, 6, 4, 4]
    main = of[0]
    ends = [of[b][-1] for b in (1, 2)]
    assert all(end.last and end.dropped for end in ends)
    # the parent's third request waits for both; its second answer started them
    assert main[4].time_s == pytest.approx(max(end.time_s for end in ends))
    assert of[1][0].time_s == pytest.approx(main[3].time_s)
    assert of[3][0].time_s == pytest.approx(main[7].time_s)


def test_pauses_are_as_recorded_up_to_the_cap() -> None:
    prompts = [([0], 0, 60)] * 8
    long = Conversation("c", (branch("main", prompts, waits_s=50.0),))
    for cap_s, expected_s in ((30.0, 30.0), (300.0, 50.0)):
        found = build(HEADER, shape_all([long]), {}, Load(1, 0, cap_s, 900.0, 0.0))
        main = [e for e in found.events if e.branch == 0]
        gaps = [b.time_s - a.time_s for a, b in pairwise(main)][1::2]
        assert gaps == pytest.approx([expected_s] * len(gaps))
        assert len(gaps) >= 1


def test_seeds_differ_and_repeat(played: Timeline) -> None:
    recording = read(files.SAMPLE)
    load = Load(8, 1, 30.0, 2400.0, 600.0)
    again = build(recording.header, recording.shapes, {}, load)
    other = build(recording.header, recording.shapes, {}, msgspec.structs.replace(load, seed=2))
    assert msgspec.to_builtins(again.events) == msgspec.to_builtins(played.events)
    assert other.live_blocks != played.live_blocks


def test_endings_are_read_beside_the_importer(tmp_path: Path) -> None:
    ask = {"t": 0.0, "type": "n", "in": 128, "out": 1, "hash_ids": [1, 2]}
    silent = {"t": 0.0, "type": "subagent", "requests": []}
    child = {
        "t": 9.0,
        "type": "subagent",
        "requests": [{**ask, "hash_ids": [7, 8], "stop": "tool_use"}, {**ask, "stop": ""}],
    }
    document = {
        "id": "x",
        "block_size": 64,
        "requests": [{**ask, "stop": "tool_use"}, silent, child, {**ask, "stop": "end_turn"}],
    }
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    found = read_endings(path)
    branches = next(files.open_trace(path)[1]).branches
    assert {name for _, name in found} == {b.id for b in branches}
    assert found["x", "main"] == (Ending.TOOL_CALL, Ending.TURN)
    assert found["x", "a1"] == (Ending.TOOL_CALL, Ending.UNKNOWN)
    assert read_endings(files.sample_path()) == {}


# ---------------------------------------------------------------------------- the report

SMALL = Grid(agents=6, hours=0.5, warm_up_s=600.0, seeds=(0,), gap_caps_s=(30.0,), pools=(0.8,))


def test_the_bound_holds_on_the_sample_for_every_order() -> None:
    found = run(SMALL)
    shares = {cell.policy: cell.loss.share for cell in found[0].cells}
    assert set(shares) == set(POLICIES)
    assert shares["belady"] <= min(shares.values()) + 0.001
    assert 0 < shares["belady"] < shares["lru"]
    (bound,) = [row for row in rows(found) if row.name.startswith("least distance")]
    assert bound.ok is True


def cell(pool: float, policy: str, lost: int, seed: int = 0) -> Cell:
    return Cell(30.0, seed, pool, policy, Loss(1000, lost, 0))


def report_of(*cells: Cell, recorded: int = 100) -> dict[str, msgspec.Struct]:
    load = Load(1, 0, 30.0, 2.0, 1.0)
    return {row.name: row for row in rows([Played(load, list(cells), 1.0, 1, 1, recorded)])}


@pytest.mark.parametrize(
    ("ours", "lru", "paper", "belady", "verdicts"),
    [
        (50, 200, 190, 40, (True, True, True)),
        (51, 200, 190, 40, (False, True, True)),
        (50, 200, 47, 40, (True, False, True)),
        (50, 200, 190, 52, (True, True, False)),
    ],
)
def test_goals_are_judged(
    ours: int, lru: int, paper: int, belady: int, verdicts: tuple[bool, bool, bool]
) -> None:
    names = {"lru": lru, "paper": paper, "expected": ours, "belady": belady}
    found = report_of(*(cell(1.0, name, lost) for name, lost in names.items()))
    assert found["expected, gaps 30 s, pool 1"].ratio == pytest.approx(ours / lru)
    judged = {name: row.ok for name, row in found.items() if row.ok is not msgspec.UNSET}
    assert tuple(judged.values()) == verdicts
    assert ("expected loses to paper, gaps 30 s, pool 1" in found) == (ours > paper)


def test_a_few_conversations_decide_no_goal() -> None:
    cells = [cell(1.0, "lru", 200), cell(1.0, "paper", 200), cell(1.0, "expected", 199)]
    assert any(row.ok is False for row in report_of(*cells).values())
    assert all(row.ok is msgspec.UNSET for row in report_of(*cells, recorded=99).values())


def test_losses_of_seeds_are_added_before_they_are_divided() -> None:
    found = report_of(
        Cell(30.0, 0, 1.0, "lru", Loss(1000, 100, 0)), Cell(30.0, 1, 1.0, "lru", Loss(3000, 0, 0))
    )
    assert found["lru, gaps 30 s, pool 1"].value == 0.025


@pytest.mark.parametrize(
    "wrong",
    [{"policies": ("lru", "mru")}, {"agents": 0}, {"warm_up_s": 9e9}, {"pools": ()}],
)
def test_a_grid_that_makes_no_sense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError) as refused:
        Grid(**wrong)  # type: ignore[arg-type]
    assert refused.value.code == "EV-1606"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    from evctl.cli.main import main

    options = "--agents 4 --hours 0.3 --warm-up-s 300 --seeds 1 --gap-cap-s 30 --pool 0.8,1.3"
    chosen = ["--policy", "lru,expected,belady", "-o", "json"]
    code = main(["bench", "eviction", *options.split(), *chosen])
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["kind"] == "Measurement"
    assert "1/1 loads" in err
    assert {"lru, gaps 30 s, pool 0.8", "belady, gaps 30 s, pool 1.3"} <= {
        row["name"] for row in found["rows"]
    }
    assert code == (0 if all(row.get("ok", True) for row in found["rows"]) else 1)
    assert main(["bench", "eviction", "--pool", "much"]) == 2
