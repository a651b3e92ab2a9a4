"""Branches and blocks over the admin API: a real control plane, its client, agents' branches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from evctl.core.branches import BranchSignal
from evctl.core.errors import NotFoundError, UsageError
from evctl.core.kv_status import BranchName, BranchPlace
from evctl.core.split import Phase
from evctl.policy.directory import views
from tests.control.agents import ROOT, chain
from tests.control.study import Study

pytestmark = pytest.mark.slow

ODD = ("a/b", "a/b/tree", "a%2Fb", "%", "..", ".", "x?y=1#z", "é 漢", "end", "+&;", "\\")
"""Ids that a path could be mistaken about."""


@pytest_asyncio.fixture
async def study(tmp_path: Path) -> AsyncIterator[Study]:
    made = Study(tmp_path)
    await made.open()
    yield made
    await made.close()


# -------------------------------------------------------------------------------- branches


async def test_branches_are_what_the_directory_says(study: Study) -> None:
    study.family()
    expected = views.branches(study.plane.state.directory)
    found = (await study.page()).branches
    assert [(r.tenant, r.branch) for r in found] == [(r.tenant, r.branch) for r in expected]
    for row, want in zip(found, expected, strict=True):
        for field in ("parent", "kind", "state", "version", "blocks", "open_requests", "holders"):
            assert getattr(row, field) == getattr(want, field), (row, field)
        assert row.silent_s == pytest.approx(study.plane.clock() - want.seen_s, abs=2)
    assert {row.kind for row in found} == {"root", "fork", "sub-agent"}


async def test_branches_are_filtered(study: Study) -> None:
    study.family()
    prefill, _ = study.agents.serve("new", "zz")
    study.agents.arrive("asked", "yy")
    everything = ["asked", "fork", "main", "new", "other", "sub", "sub2"]
    assert await study.names(tenant="default") == everything
    assert await study.names(tenant="zeta") == ["main"]
    assert await study.names(tenant="nobody") == []
    assert await study.names(kind="sub-agent") == ["sub", "sub2"]
    assert await study.names(kind="fork") == ["fork"]
    assert await study.names(prefix="sub") == ["sub", "sub2"]
    assert await study.names(state="suspect") == []
    there = await study.names(node=prefill, tenant="default")
    assert "new" in there
    assert there == [
        row.branch
        for row in views.branches(study.plane.state.directory, node=prefill, tenant="default")
    ]
    assert await study.names(node="nowhere") == []
    page = await study.page(kind="sub-agent", limit=1)
    assert (page.matching, page.total, len(page.branches)) == (2, 8, 1)


@pytest.mark.parametrize("sort", ["name", "blocks", "silent"])
async def test_pages_hold_everything_once_and_in_order(study: Study, sort: str) -> None:
    for number in range(23):
        study.agents.serve(f"b{number:02}", "abcdefgh"[: number % 7 + 1])
        study.agents.serve(f"b{number:02}", "ab", tenant="zeta")
    rows, after = [], None
    for _ in range(20):
        page = await study.page(sort=sort, limit=5, after=after)
        rows += page.branches
        assert len(page.branches) == 5 or page.next is None
        after = page.next
        if after is None:
            break
    names = [(row.tenant, row.branch) for row in rows]
    assert len(names) == len(set(names)) == 46
    if sort == "name":
        assert names == sorted(names)
    elif sort == "blocks":
        assert rows == sorted(rows, key=lambda row: (-row.blocks, row.tenant, row.branch))
    else:  # as they were served
        served = [(tenant, f"b{n:02}") for n in range(23) for tenant in ("default", "zeta")]
        assert names == served


async def test_a_page_after_a_branch_that_is_gone_goes_on_there(study: Study) -> None:
    for name in "abcde":
        study.agents.serve(name, name)
    page = await study.page(limit=2)
    study.plane.end_branch("default", "b", by="ann", reason="")
    assert page.next == BranchPlace(0.0, "default", "b")
    assert await study.names(after=page.next) == ["c", "d", "e"]


async def test_a_branch_in_detail(study: Study) -> None:
    study.family()
    found = await study.ask(lambda: study.client.branch("default", "main"))
    want = views.branch(study.plane.state.directory, "default", "main")
    assert want is not None
    assert found.tip == want.tip.hex() == chain("abcdefgh")[-1].hex()
    assert (found.children, found.children_total) == (("fork", "sub"), 2)
    assert found.children == want.children
    for phase in ("P", "D"):
        got = [(p.start, p.end, p.node, p.verified) for p in found.intervals[phase]]
        assert got == [(p.start, p.end, p.node, p.verified) for p in want.intervals[phase]]
        assert got
        assert sum(p[1] - p[0] for p in got) == found.row.blocks == 8


async def test_verified_counts_only_what_is_stored(study: Study) -> None:
    request = study.agents.arrive("fresh", "mnop")
    node = study.plane.state.requests[request].prefill_node
    found = await study.ask(lambda: study.client.branch("default", "fresh"))
    (interval,) = found.intervals["P"]
    assert (interval.start, interval.end, interval.node, interval.verified) == (0, 4, node, 0)
    assert found.row.open_requests == 1


async def test_a_family_is_a_tree(study: Study) -> None:
    study.family()
    study.plane.end_branch("default", "main", by="ann", reason="")
    tree = await study.ask(lambda: study.client.branch_tree("default", "sub"))
    told = [(each.depth, each.row.branch, each.row.state) for each in tree.rows]
    assert told == [(0, "main", "ended"), (1, "sub", "live"), (2, "sub2", "live")]
    of_ended = await study.ask(lambda: study.client.branch_tree("default", "main"))
    assert [each.row.branch for each in of_ended.rows] == ["main", "fork", "sub", "sub2"]
    assert [each.depth for each in of_ended.rows] == [0, 1, 1, 2]


async def test_branches_that_name_each_other_as_parents_end_a_walk(study: Study) -> None:
    study.agents.serve("x", "a", parent="y")
    study.agents.serve("y", "b", parent="x")
    tree = await study.ask(lambda: study.client.branch_tree("default", "x"))
    assert [each.row.branch for each in tree.rows] == ["y", "x"]


@pytest.mark.parametrize("name", ODD)
async def test_any_id_can_be_asked_for(study: Study, name: str) -> None:
    for tenant in ("default", name):
        study.agents.serve(name, "ab", tenant=tenant)
        study.agents.serve("child", "abc", tenant=tenant, parent=name, op="fork")
        detail = await study.ask(lambda: study.client.branch(tenant, name))  # noqa: B023
        assert (detail.row.tenant, detail.row.branch) == (tenant, name)
        assert detail.children == ("child",)
        tree = await study.ask(lambda: study.client.branch_tree(tenant, name))  # noqa: B023
        assert [each.row.branch for each in tree.rows] == [name, "child"]
        ended = await study.ask(lambda: study.client.end_branch(tenant, name, by="a"))  # noqa: B023
        assert (ended.tenant, ended.branch, ended.applied) == (tenant, name, True)
        assert await study.names(tenant=tenant) == ["child"]


# ------------------------------------------------------------------------------------- end


async def test_an_end_takes_references_away_once_and_says_who(study: Study) -> None:
    prefill, decode = study.agents.serve("b", "abc")
    before = await study.ask(study.client.kv_summary)
    assert {n.node: n.classes for n in before.nodes}[prefill] == (0, 0, 3)
    done = await study.ask(
        lambda: study.client.end_branch("default", "b", by="ann@desk", reason="runaway")
    )
    assert (done.applied, done.reason) == (True, "")
    after = {n.node: n.classes for n in (await study.ask(study.client.kv_summary)).nodes}
    assert (after[prefill], after[decode]) == ((3, 0, 0), (3, 0, 0))
    again = await study.ask(lambda: study.client.end_branch("default", "b", by="bob"))
    assert (again.applied, again.reason) == (False, "branch b has ended")
    events = await study.ask(lambda: study.client.events(since=0, limit=1000))
    told = [event.what for event in events if "ended by" in event.what]
    assert told == ["branch b of tenant default ended by ann@desk: runaway"]


async def test_what_nobody_has_heard_of_is_not_found(study: Study) -> None:
    study.agents.serve("b", "abc")
    client = study.client
    for call in (
        lambda: client.branch("default", "B"),
        lambda: client.branch("zeta", "b"),
        lambda: client.branch_tree("default", "b2"),
        lambda: client.end_branch("zeta", "b", by="ann"),
    ):
        with pytest.raises(NotFoundError) as caught:
            await study.ask(call)
        assert caught.value.code == "EV-1354"
    assert await study.names() == ["b"]
    study.plane.end_branch("default", "b", by="ann", reason="")
    with pytest.raises(NotFoundError) as caught:
        await study.ask(lambda: client.branch("default", "b"))
    assert "ended" in caught.value.why


# ---------------------------------------------------------------------------------- blocks


async def test_a_block_by_key_is_what_the_directory_says(study: Study) -> None:
    study.family()
    study.agents.arrive("asked", "abcdz")
    for text in ("a", "abcd", "abcdx", "abcdefgh", "abcdz", "pqr"):
        key = chain(text)[-1]
        found = await study.ask(lambda: study.client.kv_block(key.hex().upper()))  # noqa: B023
        want = views.block(study.plane.state.directory, key)
        assert want is not None
        assert (found.key, found.position) == (key.hex(), len(text))
        assert [(b.tenant, b.branch) for b in found.branches] == list(want.branches)
        assert found.branches_total == len(want.branches)
        assert found.promised_by == want.promised_by
        fields = ("node", "tiers", "block_class", "live", "suspect", "leases", "by_phase")
        assert [tuple(getattr(c, f) for f in fields) for c in found.copies] == [
            tuple(getattr(c, f) for f in fields) for c in want.copies
        ]
    shared = await study.ask(lambda: study.client.kv_block(chain("abcd")[-1].hex()))
    assert BranchName("default", "fork") in shared.branches
    assert BranchName("zeta", "main") in shared.branches


async def test_a_block_by_the_beginning_of_its_key(study: Study) -> None:
    study.family()
    key = chain("abcde")[-1].hex()
    for digits in (8, 9, 31):
        found = await study.ask(lambda: study.client.kv_block(key[:digits]))  # noqa: B023
        assert found.key == key
    other = key[:8] + ("0" if key[8] != "0" else "1")
    for wanted in (other, "0" * 32, "f" * 9):
        with pytest.raises(NotFoundError) as caught:
            await study.ask(lambda: study.client.kv_block(wanted))  # noqa: B023
        assert caught.value.code == "EV-1355"


async def test_an_ambiguous_beginning_lists_the_keys(study: Study) -> None:
    one, two = bytes.fromhex("ab" * 4 + "01" * 12), bytes.fromhex("ab" * 4 + "02" * 12)
    directory = study.plane.state.directory
    life = directory.nodes["n1"].boot_id
    directory.add_root(bytes(16))
    directory.stored("n1", life, 2, bytes(16), one + two)
    with pytest.raises(UsageError) as caught:
        await study.ask(lambda: study.client.kv_block("ab" * 4))
    assert (caught.value.code, caught.value.exit_code) == ("EV-1356", 2)
    assert one.hex() in caught.value.why
    assert two.hex() in caught.value.why
    assert (await study.ask(lambda: study.client.kv_block("ab" * 4 + "02"))).position == 2


async def test_references_are_counted_where_the_block_is_held(study: Study) -> None:
    prefill, _ = study.agents.serve("b", "abcd")
    other = next(name for name in study.settings.nodes if name != prefill)
    directory, longer = study.plane.state.directory, b"".join(chain("abcdef"))
    directory.arrive("q", "default", ROOT, longer, study.plane.clock(), BranchSignal("b"))
    directory.place("q", Phase.PREFILL, other)
    directory.stored(other, directory.nodes[other].boot_id, 2, ROOT, longer, "q")
    held = {}
    for text in ("abc", "abcd", "abcde", "abcdef"):
        found = await study.ask(lambda: study.client.kv_block(chain(text)[-1].hex()))  # noqa: B023
        held[text] = {copy.node: copy.by_phase["P"] for copy in found.copies}
    assert [held[text].get(prefill, 0) for text in held] == [1, 1, 0, 0]
    assert [held[text][other] for text in held] == [0, 0, 1, 1]


async def test_a_key_is_not_found_across_two_others(study: Study) -> None:
    directory = study.plane.state.directory
    directory.add_root(bytes(16))
    keys = bytes(12) + b"\xab" * 4 + b"\xcd" * 16
    directory.stored("n1", directory.nodes["n1"].boot_id, 2, bytes(16), keys)
    for wanted in ("ab" * 4, "ab" * 4 + "cd" * 12):
        with pytest.raises(NotFoundError):
            await study.ask(lambda: study.client.kv_block(wanted))  # noqa: B023
    assert (await study.ask(lambda: study.client.kv_block("cd" * 4))).position == 2


async def test_a_copy_leaves_tier_by_tier(study: Study) -> None:
    prefill, _ = study.agents.serve("b", "abc")
    key = chain("abc")[-1].hex()

    async def tiers() -> dict[str, tuple[int, ...]]:
        found = await study.ask(lambda: study.client.kv_block(key))
        return {copy.node: copy.tiers for copy in found.copies}

    assert (await tiers())[prefill] == (1, 2)
    study.agents.evict(prefill, 1, "abc")
    assert (await tiers())[prefill] == (2,)
    study.agents.evict(prefill, 2, "abc")
    assert prefill not in await tiers()


@pytest.mark.parametrize("key", ["1234567", "g" * 8, "0" * 33])
async def test_a_key_that_is_none(study: Study, key: str) -> None:
    with pytest.raises(UsageError):
        await study.ask(lambda: study.client.kv_block(key))
