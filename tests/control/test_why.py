"""Why: stories of requests, from memory and from journals; nodes, splits, blocks, the plan."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from evctl.cli.why_tables import request_text
from evctl.control.outcomes import LEAST_REQUESTS, Errors, Outcomes
from evctl.control.recollect import Recollection, recollect
from evctl.control.stories import Stories
from evctl.core.branches import BranchSignal
from evctl.core.effects import Decided, Prediction, TransitionEnded
from evctl.core.errors import EvctlError, NotFoundError
from evctl.core.events import (
    EngineFact,
    FetchEnded,
    FirstToken,
    FromNode,
    KvHeld,
    PrefillStarted,
    Recalled,
    RequestArrived,
    RequestCancelled,
    RequestDone,
    Tick,
    TransferDone,
)
from evctl.core.kv import FetchSource
from evctl.core.transitions import Transition
from evctl.core.why import RequestWhy
from evctl.policy.state import StepResult
from tests.client.fake_why import decision
from tests.control.test_admin import Office
from tests.policy.cluster import Cluster, key, keys
from tests.policy.router.test_append import again
from tests.policy.router.test_append import cluster_of as appendable

pytestmark = pytest.mark.slow


class Bureau(Office):
    """The admin API over engines that say what the test tells them to."""

    def arrive(self, request_id: str, tokens: int = 40, branch: str = "") -> None:
        signal = BranchSignal(branch) if branch else None
        self.plane.writer.feed(
            RequestArrived(request_id, "t", signal, tokens, 16, b"", keys(1, 2))
        )

    def fact(self, node: str, fact: EngineFact) -> None:
        self.plane.writer.feed(FromNode(node, "b", fact))

    def live(self, request_id: str) -> None:
        """From arrival to end, on n1 and n3."""
        self.arrive(request_id, branch="b/1")
        self.fact("n1", PrefillStarted(request_id, 8, 32))
        self.fact("n1", FirstToken(request_id, 40))
        self.fact("n1", TransferDone(request_id, "n3", 1, 1, 0))
        self.fact("n3", RequestDone(request_id, "length", 40, 8, 5))

    async def why(self, request_id: str) -> RequestWhy:
        return await self.ask(lambda: self.client.why.request(request_id))


@pytest_asyncio.fixture
async def bureau(tmp_path: Path) -> AsyncIterator[Bureau]:
    made = Bureau(tmp_path)
    await made.open()
    yield made
    await made.close()


async def test_a_request_tells_each_nodes_terms_and_what_then_happened(bureau: Bureau) -> None:
    bureau.live("r/1")
    found = await bureau.why("r/1")
    assert (found.state, found.reason, found.branch) == ("done", "length", "b/1")
    assert found.source == "memory"
    (sent,) = found.decisions
    assert (sent.why, sent.prefill_node, sent.decode_node) == ("arrived", "n1", "n3")
    assert set(sent.prefill) == {"n1", "n2"}
    assert sent.prefill["n1"]["uncached_tokens"] == 40
    assert set(sent.decode) == {"n3"}
    assert isinstance(sent.predicted, Prediction)
    then = found.outcome
    for span in (then.wait_s, then.prefill_s, then.handover_s, then.ttft_s, then.e2e_s):
        assert span is not None
        assert 0 <= span < 5
    assert (then.cached_tokens, then.uncached_tokens, then.output_tokens) == (8, 32, 5)
    status = await bureau.ask(bureau.client.status)
    assert status.predictions is not None
    assert status.predictions.ttft is not None
    assert status.predictions.ttft.count == 1
    text = (await bureau.http.get("/metrics")).text
    assert 'evctl_prediction_error_ratio_count{what="ttft"} 1.0' in text


async def test_a_recalled_request_tells_both_decisions_while_it_runs(bureau: Bureau) -> None:
    for name in ("r1", "r2", "r3"):
        bureau.arrive(name)
    bureau.fact("n1", PrefillStarted("r1", 0, 40))
    bureau.plane.overrides.set_split("1P2D", by="ann")
    bureau.fact("n2", Recalled("r2"))
    found = await bureau.why("r2")
    assert found.state == "waiting"
    assert [one.why for one in found.decisions] == ["arrived", "recalled"]
    assert [one.prefill_node for one in found.decisions] == ["n2", "n1"]
    assert found.outcome.ttft_s is None
    bureau.plane.writer.feed(RequestCancelled("r2"))
    assert (await bureau.why("r2")).state == "cancelled"
    text = (await bureau.http.get("/metrics")).text
    assert 'evctl_node_moves_total{outcome="settled"} 1.0' in text
    assert 'evctl_node_move_seconds_bucket{le="5.0",until="flip"} 1.0' in text
    assert 'evctl_node_move_requests_total{what="requeued"} 1.0' in text


async def test_what_memory_has_lost_is_read_from_the_journal(bureau: Bureau) -> None:
    bureau.live("r1")
    bureau.arrive("r2")
    remembered = {name: await bureau.why(name) for name in ("r1", "r2")}
    bureau.plane.records.stories._stories.clear()
    await asyncio.sleep(0.4)  # until the journal's thread has written it
    for name, before in remembered.items():
        found = await bureau.why(name)
        assert found.source == "journal of epoch 1"
        assert found.decisions == before.decisions
        assert (found.state, found.outcome) == (before.state, before.outcome)
        assert found.arrived_s == pytest.approx(before.arrived_s, abs=0.05)
    with pytest.raises(NotFoundError) as unknown:
        await bureau.why("r3")
    assert (unknown.value.code, unknown.value.exit_code) == ("EV-1363", 9)


@pytest.mark.parametrize("name", ["\0", "r1\0", "a\nb", "r" * 20_000])
async def test_a_name_that_no_request_has_is_not_looked_for(bureau: Bureau, name: str) -> None:
    bureau.live("r1")
    with pytest.raises(NotFoundError) as unknown:
        await bureau.why(name)
    assert unknown.value.code == "EV-1363"


async def test_another_life_still_knows_and_gives_up_in_time(bureau: Bureau) -> None:
    bureau.live("r1")
    folder = bureau.plane.directory.journal
    await asyncio.sleep(0.4)
    assert recollect(folder, "r1", -1.0).gave_up
    found = recollect(folder, "r1").found
    assert found is not None
    assert found.state == "done"
    assert recollect(folder, "r").found is None, "a part of an id is none"
    hasty = Recollection(folder, limit_s=-1.0)
    with pytest.raises(EvctlError) as caught:
        await hasty.find("r1")
    assert caught.value.code == "EV-1365"


async def test_a_node_tells_how_it_came_to_its_role(bureau: Bureau) -> None:
    found = await bureau.ask(lambda: bureau.client.why.node("n1"))
    assert (found.role, found.last) == ("P", None)
    assert "by the configuration" in found.how
    assert not found.warming
    bureau.plane.state.nodes["n1"].warming = True
    assert (await bureau.ask(lambda: bureau.client.why.node("n1"))).warming
    bureau.plane.state.nodes["n1"].warming = False
    bureau.arrive("r1")
    bureau.fact("n1", PrefillStarted("r1", 0, 40))
    bureau.plane.overrides.set_split("2P1D", by="ann")
    bureau.plane.overrides.set_split("1P2D", by="bob", reason="decode waits")
    (moved,) = [n.name for n in bureau.plane.state.nodes.values() if n.role == "D"][:1]
    found = await bureau.ask(lambda: bureau.client.why.node(moved))
    assert found.how == "2P1D -> 1P2D by bob: decode waits"
    busy = await bureau.ask(lambda: bureau.client.why.node("n1"))
    assert [(one.request_id, one.stage) for one in busy.requests] == [("r1", "prefill")]
    assert busy.requests[0].predicted is not None
    with pytest.raises(NotFoundError, match="nodes are n1, n2, n3"):
        await bureau.ask(lambda: bureau.client.why.node("n9"))


async def test_the_split_tells_the_planners_decisions_and_what_came_of_them(
    bureau: Bureau,
) -> None:
    found = await bureau.ask(bureau.client.why.split)
    assert (found.split, found.decisions) == ("2P1D", ())
    bureau.plane.state.planner.kept(decision(time_s=bureau.plane.clock()))
    found = await bureau.ask(lambda: bureau.client.why.split(1))
    (one,) = found.decisions
    assert one.number == 1
    assert abs(one.time_s - bureau.plane.why._wall_s()) < 60
    with pytest.raises(NotFoundError) as caught:
        await bureau.ask(lambda: bureau.client.why.split(7))
    assert caught.value.code == "EV-1367"


async def test_without_enough_work_the_plan_says_so(bureau: Bureau) -> None:
    plan = await bureau.ask(bureau.client.why.plan)
    assert plan.verdict in ("blind", "idle")
    assert plan.why
    assert bureau.plane.state.planner.number == 0, "asking decides nothing"


async def test_a_block_tells_when_it_would_go(bureau: Bureau) -> None:
    bureau.fact("n1", KvHeld(2, b"", keys(1, 2)))
    found = await bureau.ask(lambda: bureau.client.why.block(key(1).hex()))
    assert [copy.evicted for copy in found.copies] == ["first of all: nobody refers to it"]
    bureau.live("r1")
    bureau.arrive("r2", branch="b/1")
    found = await bureau.ask(lambda: bureau.client.why.block(key(1).hex()))
    assert found.block.branches_total == 1
    assert any(copy.evicted.endswith("live branches refer to it") for copy in found.copies)


# ---------------------------------------------------------------- records on their own


class Recorded(Cluster):
    """A cluster of the policy tests whose steps are observed."""

    def __init__(self, stories_kept: int = 10) -> None:
        self.stories: Stories | None = None
        super().__init__()
        self.stories = Stories(self.state, most=stories_kept)
        self.outcomes = Outcomes(self.stories)

    def feed(self, event):  # type: ignore[no-untyped-def]
        effects = super().feed(event)
        if self.stories is not None and self.last is not None:
            self.stories.observe(self.now_s, event, self.last)
            self.outcomes.observe(self.now_s, event, self.last)
        return effects

    def live(self, name: str) -> None:
        self.arrive(name)
        self.start(name)
        self.now_s += 0.5
        self.decode_on(name)

    def decode_on(self, name: str) -> None:
        self.first_token(name)
        self.hand_over(name)
        self.done(name)


def test_stories_are_bounded_and_the_oldest_go() -> None:
    cluster = Recorded(stories_kept=3)
    for index in range(5):
        cluster.live(f"r{index}")
    assert cluster.stories is not None
    assert [cluster.stories.get(f"r{index}") is None for index in range(5)] == [
        True, True, False, False, False,
    ]  # fmt: skip


def test_terms_of_old_requests_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evctl.control.stories.MAX_TERMS", 6)
    cluster = Recorded()
    for index in range(4):
        cluster.live(f"r{index}")
    assert cluster.stories is not None
    told = [cluster.stories.told(f"r{index}", 0.0, "memory") for index in range(4)]
    assert [bool(one and one.decisions[0].prefill) for one in told] == [False, False, True, True]


def test_an_appended_request_tells_who_could_append_and_that_it_was() -> None:
    cluster = appendable(append_tokens=16)
    stories = Stories(cluster.state)
    told: dict[str, RequestWhy] = {}
    for name, added in (("short", 8), ("long", 17)):
        again(cluster, added, name)
        assert cluster.last is not None
        event = RequestArrived(name, "t", None, 100, 16, b"", b"")
        stories.observe(cluster.now_s, event, cluster.last)
        found = stories.told(name, 0.0, "memory")
        assert found is not None
        told[name] = msgspec.json.decode(msgspec.json.encode(found), type=RequestWhy)
    (short,), (long,) = told["short"].decisions, told["long"].decisions
    assert (short.prefill_node, short.decode_node, short.appended) == ("n2", "n2", True)
    assert set(short.append) == {"n2"}
    assert set(short.prefill) == {"n1"}
    assert short.append["n2"].keys() == short.prefill["n1"].keys()
    assert "interfering_s" in short.append["n2"]
    assert (long.prefill_node, long.append, long.appended) == ("n1", {}, False)
    text = request_text(told["short"], None)
    assert "arrived: appended behind its prefix on n2, decode on n2" in text
    assert re.search(r"PREFILL .*DISTURBS", text)
    assert re.search(r"\nn2 append \* ", text)
    assert "DISTURBS" not in request_text(told["long"], None)


def test_errors_are_relative_and_tell_their_bias() -> None:
    errors = Errors()
    assert errors.status() is None
    for predicted, actual in ((1.0, 2.0), (3.0, 2.0), (4.0, 0.0), (2.0, 2.0)):
        errors.add(predicted, actual)
    found = errors.status()
    assert found is not None
    assert (found.count, found.median, found.p90, found.bias) == (3, 0.5, 0.5, 0.0)
    assert sum(errors.buckets) == 3


def test_a_wait_that_is_next_to_nothing_is_off_by_next_to_nothing() -> None:
    errors = Errors()
    errors.add(0.0, 0.002, of=2.0)
    errors.add(0.0, 0.0, of=2.0)
    found = errors.status()
    assert found is not None
    assert (found.count, found.median, found.p90) == (2, 0.0, 0.001)
    errors = Errors()
    errors.add(0.5, 0.0, of=2.0)
    assert (found := errors.status()) is not None
    assert (found.median, found.bias) == (0.25, 0.0), "no bias of nothing"


def test_a_fetch_is_held_against_its_prediction() -> None:
    cluster = Recorded()
    cluster.arrive("r1")
    story = cluster.stories.get("r1") if cluster.stories else None
    assert story is not None
    told = story.placings[0]
    told.dispatch = msgspec.structs.replace(
        told.dispatch, predicted=Prediction(1.0, 0.5, 0.4, 0.2)
    )
    cluster.fact("n1", FetchEnded("r1", 0, 0, (FetchSource("n3", 1, 1),), 0.1, 0.0, 0))
    cluster.start("r1")
    cluster.now_s += 0.5
    cluster.decode_on("r1")
    found = cluster.outcomes.status()
    assert found.fetch is not None
    assert found.fetch.median == pytest.approx(1.0)
    assert found.service is not None
    assert found.service.median == pytest.approx(0.2)
    assert found.wait is not None
    assert found.wait.median == pytest.approx(1.0), "0.5 s too much, of 0.5 s to the first token"


def test_a_fetch_of_where_it_was_before_is_none_of_where_it_is_now() -> None:
    """It is called back while its KV comes to the one node, and placed on the other."""
    cluster = Recorded()
    was = cluster.arrive("r1").prefill_node
    cluster.hold("1P2D")
    cluster.fact(was, FetchEnded("r1", 0, 0, (), 0.3, 0.1, 2, "cancelled"))
    cluster.fact(was, Recalled("r1"))
    late = FetchEnded("r1", 0, 0, (), 0.4, 0.2, 2, "cancelled")
    cluster.fact(was, late)
    record = cluster.state.requests["r1"]
    assert record.prefill_node != was
    story = cluster.stories.get("r1") if cluster.stories else None
    assert story is not None
    assert (story.fetch_s, story.exposed_s) == (None, None)
    cluster.fact(record.prefill_node, FetchEnded("r1", 0, 0, (), 0.5, 0.0, 0))
    assert story.fetch_s == 0.5


def test_a_decision_is_measured_from_when_its_move_has_settled() -> None:
    cluster = Recorded()

    def tell(*effects: object) -> None:
        result = StepResult(tuple(effects), (), None)  # type: ignore[arg-type]
        cluster.outcomes.observe(cluster.now_s, Tick(), result)

    tell(Decided(decision()))
    for index in range(5):
        cluster.live(f"early{index}")
    settled = Transition(1, 1, "planner", "", "2P1D", "1P2D", 0.0, (), "settled", cluster.now_s)
    tell(TransitionEnded(settled))
    began_s = cluster.now_s
    for index in range(LEAST_REQUESTS):
        cluster.live(f"r{index}")
    tell(Decided(decision(number=5, verdict="stay", moves=(), chosen="")))
    first, second = cluster.outcomes.all_plans()
    assert (first.number, first.split, first.begun_s, first.requests) == (4, "1P2D", began_s, 20)
    assert first.measured is not None
    assert first.measured.throughput_rps == pytest.approx(2.0)
    assert first.measured.ttft_s == pytest.approx(0.5)
    throughput = cluster.outcomes.status().throughput
    assert throughput is not None
    assert throughput.median == pytest.approx(0.25), "2.5 were expected"
    assert (second.number, second.split, second.measured) == (5, "2P1D", None)
    tell(TransitionEnded(settled))
    assert len(cluster.outcomes.all_plans()) == 2, "somebody moved nodes: the window is over"
