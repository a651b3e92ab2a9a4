"""Figures of the directory, the audit, and that no question holds up what serves."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from evctl.control.audit import Audit
from evctl.control.branch_list import Wanted
from evctl.control.frontdoor import OverloadedError
from evctl.control.walks import MOST_WAITING, Walks
from evctl.core.branches import BranchSignal
from evctl.core.errors import EvctlError
from evctl.policy.directory import views
from tests.control.agents import chain
from tests.control.state import until
from tests.control.study import Study

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture
async def study(tmp_path: Path) -> AsyncIterator[Study]:
    made = Study(tmp_path)
    await made.open()
    yield made
    await made.close()


# ----------------------------------------------------------------- summary, status, metrics


async def test_the_summary_adds_up(study: Study) -> None:
    study.family()
    study.plane.end_branch("default", "other", by="ann", reason="")
    study.agents.arrive("asked", "ab")
    study.plane.branch_signal("default", BranchSignal("other"), "end")
    found = await study.ask(study.client.kv_summary)
    want = views.summary(study.plane.state.directory)
    status = found.status
    assert (status.live, status.suspect, status.ended) == (want.live, want.suspect, want.ended)
    assert (status.live, status.ended) == (6, 1)
    assert (status.copies, status.tree_blocks, found.runs) == (
        want.copies,
        want.blocks,
        want.runs,
    )
    assert {n.node: n.classes for n in found.nodes} == want.classes
    assert {n.node: (n.l1, n.l2) for n in found.nodes} == want.tiers
    assert found.requests == 1
    assert found.tallies["ended_branch"] == 1


async def test_copies_are_counted_by_references(study: Study) -> None:
    for number in range(12):
        study.agents.serve(f"b{number}", "ab" + "cdefghijklmn"[number])
    study.plane.end_branch("default", "b0", by="ann", reason="")
    await asyncio.sleep(0.45)  # the least interval between two counts
    status = (await study.ask(study.client.status)).kv
    assert status is not None
    counted = dict.fromkeys(range(6), 0)
    directory = study.plane.state.directory
    for references, copies in views.reference_histogram(directory).items():
        bucket = references if references < 3 else 3 if references < 5 else 4 + (references > 8)
        counted[bucket] += copies
    assert status.references == tuple(counted.values())
    assert sum(status.references) == status.copies
    assert status.references[0] > 0
    assert sum(status.references[3:]) > 0, "blocks that several branches need"


async def test_status_says_how_much_of_a_node_is_referenced(study: Study) -> None:
    prefill, decode = study.agents.serve("keep", "abc")
    study.agents.serve("drop", "xyz")
    study.plane.end_branch("default", "drop", by="ann", reason="")
    nodes = {node.name: node for node in (await study.ask(study.client.status)).nodes}
    for node in nodes.values():
        classes = study.plane.state.directory.nodes[node.name].classes
        assert node.blocks == sum(classes)
        if not node.blocks:
            assert node.referenced is None
        else:
            assert node.referenced == pytest.approx(1 - classes[0] / sum(classes))
    assert nodes[decode].referenced == pytest.approx(0.5)
    assert nodes[prefill].referenced in (0.5, 1.0)


async def test_metrics_of_the_directory(study: Study) -> None:
    prefill, _ = study.agents.serve("b", "abc")
    study.agents.serve("c", "ab")
    study.plane.end_branch("default", "c", by="ann", reason="")
    study.plane.branch_signal("default", BranchSignal("c"), "end")
    text = (await study.http.get("/metrics")).text
    for line in (
        'evctl_branches{state="live"} 1.0',
        'evctl_branches{state="suspect"} 0.0',
        'evctl_branches{state="ended"} 1.0',
        f'evctl_node_kv_copies{{class="live",node="{prefill}"}} 3.0',
        f'evctl_node_kv_blocks{{node="{prefill}",tier="l2"}} 3.0',
        "evctl_kv_tree_blocks 3.0",
        'evctl_directory_events_total{what="ended_branch"} 1.0',
    ):
        assert line in text, text
    assert "directory_ended_branch" not in text, "told once"
    assert re.search(r'evctl_kv_copies\{references="9\+"\} \d', text)
    for name in re.findall(r"^# TYPE (\S+)", text, re.M):
        assert re.fullmatch(r"evctl_[a-z0-9_]+", name)


# ------------------------------------------------------------------------------- the audit


async def test_an_audit_finds_nothing_wrong_with_a_sound_directory(study: Study) -> None:
    study.family()
    found = await study.ask(study.client.kv_check)
    assert (found.clean, found.problems, found.found) == (True, (), 0)
    assert (found.branches, found.requests) == (6, 0)
    assert found.copies == views.summary(study.plane.state.directory).copies


async def test_an_audit_names_a_count_that_is_wrong(study: Study) -> None:
    study.family()
    node = study.plane.state.directory.nodes["n1"]
    node.classes[0] += 1
    found = await study.ask(study.client.kv_check)
    assert not found.clean
    assert any("n1" in problem and "classes" in problem for problem in found.problems)


async def test_a_large_audit_is_done_beside_the_loop(study: Study) -> None:
    study.family()
    audit = Audit(study.plane.state, small=0)
    here = await Audit(study.plane.state).run()
    apart = await audit.run()
    assert (apart.problems, apart.branches, apart.copies, apart.blocks) == (
        here.problems,
        here.branches,
        here.copies,
        here.blocks,
    )
    assert apart.paused_s < apart.seconds
    study.plane.state.directory.nodes["n2"].classes[1] += 5
    broken = await audit.run()
    assert broken.problems == (await Audit(study.plane.state).run()).problems
    assert broken.problems
    # What the copy of the process found out stays there: this one was not touched, and is whole.
    study.plane.state.directory.nodes["n2"].classes[1] -= 5
    assert (await audit.run()).clean
    assert (await study.ask(study.client.status)).cluster == "test"


async def test_audits_that_come_together_are_all_answered(study: Study) -> None:
    study.family()
    audit = Audit(study.plane.state, small=0)
    found = await asyncio.gather(*(audit.run() for _ in range(3)))
    assert all(each.clean for each in found)


async def test_an_audit_that_dies_says_so(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("evctl.control.audit._checked", die)
    with pytest.raises(EvctlError) as caught:
        await Audit(study.plane.state, small=-1).run()
    assert caught.value.code == "EV-1357"


async def test_the_books_of_an_idle_writer_are_audited_and_told(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = study.plane
    study.family()
    told: list[str] = []
    plane.writer.on_problem = told.append
    assert not plane.writer.audit_is_due()
    now_s = plane.clock()
    monkeypatch.setattr(plane.writer, "_clock", lambda: now_s + 31)
    assert plane.writer.audit_is_due()
    await plane._audit_books()
    assert (told, plane.writer.audit_is_due()) == ([], False)
    plane.state.directory.nodes["n1"].classes[0] += 1
    monkeypatch.setattr(plane.writer, "_clock", lambda: now_s + 62)
    await plane._audit_books()
    assert told
    assert "n1" in told[0]
    plane.writer.audited((), took_s=10.0)
    monkeypatch.setattr(plane.writer, "_clock", lambda: now_s + 62 + 400)
    assert not plane.writer.audit_is_due(), "a long audit is repeated rarely"
    monkeypatch.setattr(plane.writer, "_clock", lambda: now_s + 62 + 501)
    assert plane.writer.audit_is_due()
    study.agents.arrive("busy", "ab")
    assert not plane.writer.audit_is_due()


# ------------------------------------------------------------------------------- the gateway


async def test_a_gateway_gets_pages_of_one_tenant(study: Study) -> None:
    for number in range(5):
        study.agents.serve(f"b{number}", "ab")
        study.agents.serve(f"b{number}x", "ab", tenant="zeta")
    seen: list[str] = []
    while True:
        page = await study.plane.branches("zeta", after=seen[-1] if seen else "", limit=2)
        assert {row.tenant for row in page.branches} == {"zeta"}
        seen += [row.branch for row in page.branches]
        if page.next is None:
            break
    assert seen == [f"b{number}x" for number in range(5)]
    row = study.plane.branch("zeta", "b1x")
    assert row is not None
    assert row.blocks == 2
    assert study.plane.branch("zeta", "b1") is None
    study.plane.end_branch("zeta", "b1x", by="ann", reason="")
    assert study.plane.branch("zeta", "b1x") is None


async def test_walks_wait_for_each_other_and_not_without_bound() -> None:
    running, most = 0, 0

    def steps() -> Iterator[None]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(3):
            yield
            time.sleep(0.002)
        running -= 1

    walks = Walks()
    found = await asyncio.gather(
        *(walks.take(steps()) for _ in range(MOST_WAITING + 3)), return_exceptions=True
    )
    assert most == 1, "one at a time"
    turned_away = [each for each in found if each is not None]
    assert [type(each) for each in turned_away] == [OverloadedError] * 3
    await walks.take(steps())


# ------------------------------------------------------------------------------------ size


async def test_no_question_holds_up_the_loop(study: Study) -> None:
    for number in range(3000):
        parent = "s0" if number else ""
        study.agents.serve(f"s{number}", "ab" + chr(200 + number % 800), parent=parent)
    plane = study.plane
    worst_s, done = 0.0, False

    async def beat() -> None:
        nonlocal worst_s
        while not done:
            before_s = time.process_time()
            await asyncio.sleep(0)
            # Of this process, so that another one on the machine does not fail the test.
            worst_s = max(worst_s, time.process_time() - before_s)

    beating = asyncio.create_task(beat())
    key = chain("ab")[-1].hex()
    block = await plane.kv.blocks.find(key[:8])
    page = await plane.kv.branches.page(Wanted("default", sort="blocks", limit=10))
    tree = await plane.kv.branches.tree("default", "s0")
    detail = await plane.kv.branches.detail("default", "s0")
    done = True
    await beating
    assert (block.branches_total, len(block.branches)) == (3000, 1000)
    assert (page.matching, len(page.branches)) == (3000, 10)
    assert tree is not None
    assert (len(tree.rows), tree.left_out) == (1000, 2000)
    assert detail is not None
    assert (len(detail.children), detail.children_total) == (1000, 2999)
    assert worst_s < 0.05


async def test_references_of_a_large_tree_are_counted_in_the_background(study: Study) -> None:
    for number in range(600):
        study.agents.serve(f"s{number}", chr(200 + number) + "ab")
    references = study.plane.kv.references
    first = references.buckets()
    await until(lambda: references._task is None, 20, "the count to end")
    counted = references.buckets()
    assert sum(counted) == sum(sum(n.classes) for n in study.plane.state.directory.nodes.values())
    assert counted[0] == 0
    assert first in ((), counted)
    # It does not count again at once, whoever asks.
    study.plane.end_branch("default", "s0", by="ann", reason="")
    assert references.buckets() == counted
    await asyncio.sleep(0.5 + references.cost_s / 0.05)
    references.buckets()
    await until(lambda: references.buckets()[0] > 0, 20, "the end to be seen")
