"""The pool on the wire: plans and fetches ahead go out, inventories and figures come in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from evctl.config.cluster import ClusterConfig, NodeConfig, PlannerKeys
from evctl.control.metrics import render_metrics
from evctl.control.pool import MOST_CAUSES, PoolMeasures
from evctl.control.settings import ControlSettings
from evctl.core.branches import BranchSignal
from evctl.core.effects import FetchAhead as FetchAheadEffect
from evctl.core.events import (
    FetchAheadEnded,
    FetchEnded,
    FirstToken,
    FromNode,
    RequestDone,
    TransferDone,
)
from evctl.core.kv import FetchPiece, FetchSource
from evctl.core.pool_status import TierOccupancy
from evctl.policy.planner import PlannerConfig
from evctl.policy.state import ClusterState, PolicyConfig, StepResult
from evctl.provision.engine_config import engine_config
from evctl.serve import plan_of
from evctl.wire.messages import FetchAhead, InventoryBlock, StartRequest
from evengine.limits import LoopLimits
from tests.control.fake_engine import LAYOUT, FakeEngine
from tests.control.state import Output, collect, request_for, until
from tests.control.test_engines import Stage

PROMPT = list(range(40))
"""Two full blocks and a tail."""


class Pool(Stage):
    """1P2D with L2 on every node; n3 holds the prompt there."""

    async def open(self) -> None:
        for name in ("n1", "n2"):
            self.engines[name] = FakeEngine(self.plane, name, l2_blocks=50)
        await until(lambda: self.alive() == {"n1", "n2"}, 5, "engines to join")
        self.request = request_for(self.plane, "r1", PROMPT)
        keys = [self.request.block_keys[:16], self.request.block_keys[16:32]]
        holder = self.engines["n3"] = FakeEngine(self.plane, "n3", l2_blocks=60)
        holder.blocks = (
            InventoryBlock(keys[1], 2, 0, 0, keys[0]),
            InventoryBlock(keys[0], 2, 0, 0, self.request.root_key),
        )
        directory = self.plane.state.directory
        await until(
            lambda: directory.match(self.request.block_keys).coverage == {"n3": 2},
            5,
            "the inventory of a tier whose root only the tenants tell",
        )
        nodes = self.plane.state.nodes.values()
        await until(lambda: all(node.report for node in nodes), 5, "a report of each node")

    def run(self, request_id: str, branch: BranchSignal | None = None) -> Output:
        output = Output()
        request = request_for(self.plane, request_id, PROMPT, branch)
        self.tasks.append(asyncio.create_task(collect(self.plane, request, output)))
        return output


@pytest_asyncio.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    made = Pool(tmp_path, split="1P2D", tenants=("default", "t"))
    await made.open()
    yield made
    await made.close()


async def test_a_request_goes_out_with_what_peers_hold(pool: Pool) -> None:
    pool.run("r1")
    engine, start = await pool.sent("r1")
    assert engine.name == "n1"
    assert isinstance(start, StartRequest)
    assert start.fetch == (FetchPiece(0, 2, ("n3",)),)
    node = pool.plane.state.nodes["n3"]
    assert node.l2_blocks == 60
    pool.engines["n3"].l2_used_blocks = 2
    await until(lambda: node.report and node.report.l2_used_blocks == 2, 5, "a heartbeat")


async def test_a_waiting_branch_is_fetched_for_and_all_of_it_shows(pool: Pool) -> None:
    for engine in pool.engines.values():
        engine.counters = {
            "l1_class2_blocks": 7.0,
            "l2_class0_blocks": 1.0,
            "l2_class1_blocks": 2.0,
            "l2_class2_blocks": 3.0,
            "l2_quarantined_blocks": 4.0,
            "l2_pins": 3.0,
            "loans": 0.0,
        }
    output = pool.run("r1", BranchSignal("b", expect_resume_s=0.2))
    engine, _ = await pool.sent("r1")
    peers = (FetchSource("n3", 1, 1000),)
    engine.fact(
        FetchEnded("r1", 0, 0, peers, 0.2, 0.05, 1, "deadline", 7.0),
        FirstToken("r1", 40),
        TransferDone("r1", "n2", 3, 1, 0),
    )
    pool.engines["n2"].tokens("r1", 0, 5, finish="length")
    pool.engines["n2"].fact(RequestDone("r1", "length", 40, 32, 1))
    await until(lambda: output.finish, 5, "the end of the request")
    await until(lambda: engine.of(FetchAhead), 5, "a fetch ahead")
    (ahead,) = engine.of(FetchAhead)
    assert (ahead.root_key, ahead.keys) == (pool.request.root_key, pool.request.block_keys)
    assert ahead.pieces == (FetchPiece(0, 2, ("n3",)),)
    engine.fact(FetchAheadEnded(ahead.ticket, (FetchSource("n3", 2, 2000),), 0.1, 0))
    await until(lambda: not pool.plane.state.ahead.tickets, 5, "the fetch to end")
    engines = pool.plane.hub.engines.values()
    await until(lambda: all(len(e.counters) == 7 for e in engines), 5, "heartbeats")
    status = pool.plane.status().pool
    assert status is not None
    assert status.fetched_blocks == {"l1": 0, "own_l2": 0, "peer_l2": 1}
    assert status.share_hidden == pytest.approx(0.75), "time in a queue hides nothing"
    assert status.fetch_queued_s == 7.0
    assert status.recomputed_blocks == {"deadline": 1}
    assert (status.ahead.blocks, status.ahead.outcomes["done"]) == (2, 1)
    assert [node.node for node in status.nodes] == ["n1", "n2", "n3"]
    assert status.nodes[2].l2 == TierOccupancy(60, 0, (1, 2, 3), 4)
    told = status.nodes[2]
    assert (told.pins, told.loans, told.write_queue_blocks) == (3, 0, None), "0 is told, None not"
    assert status.nodes[2].l1 == TierOccupancy(256, 10, (), 0), (
        "an engine that says half says none"
    )
    text = render_metrics(pool.plane.snapshot).decode()
    for line in (
        'evctl_fetched_blocks_total{path="peer_l2"} 1.0',
        'evctl_fetched_bytes_total{path="peer_l2"} 1000.0',
        "evctl_fetch_seconds_count 1.0",
        "evctl_fetch_seconds_sum 0.2",
        "evctl_fetch_exposed_seconds_sum 0.05",
        "evctl_fetch_hidden_ratio 0.75",
        'evctl_recomputed_blocks_total{cause="deadline"} 1.0',
        'evctl_fetch_ahead_total{outcome="sent"} 1.0',
        "evctl_fetch_ahead_blocks_total 2.0",
        'evctl_node_tier_blocks{class="suspect",node="n3",tier="l2"} 2.0',
        'evctl_node_quarantined_blocks{node="n3",tier="l2"} 4.0',
        'evctl_engine{node="n1",what="l2_class1_blocks"} 2.0',
    ):
        assert line in text


def test_the_policy_gets_what_the_cluster_file_says(tmp_path: Path) -> None:
    config = ClusterConfig(
        name="x",
        nodes=[NodeConfig(name="a"), NodeConfig(name="b")],
        split="1P1D",
        api_keys={"key-one-1": "ann", "key-two-2": "bob"},
        fetch_ahead=False,
        suspect_after_s={"fork": 30.0},
        planner=PlannerKeys(rules="paper", window_s=30.0, least_requests=4, least_decode=2),
        routing="predicted",
        shortest_first=True,
        prefill_ageing=0.5,
        append_tokens=99,
    )
    (tmp_path / "cluster.json").write_text(config.model_dump_json())
    settings, _ = plan_of(tmp_path)
    assert settings.tenants == ("ann", "bob")
    assert (settings.fetch_ahead, settings.suspect_after_s) == (False, {"fork": 30.0})
    assert settings.planner == PlannerConfig(window_s=30.0, least_requests=4, least_decode=2)
    assert ControlSettings(tmp_path, "x", (), "", "", 16).planner.sound, "plus is the default"
    assert (settings.routing, settings.append_tokens) == ("predicted", 99)
    assert (settings.shortest_first, settings.prefill_ageing) == (True, 0.5)
    engine = engine_config(
        config, "a", control_endpoint="", control_public_key="", keypair=tmp_path, model=""
    )
    limits = msgspec.convert(engine["limits"], LoopLimits)
    assert (limits.shortest_first, limits.prefill_ageing) == (True, 0.5), "both sides agree"


async def test_the_policy_has_the_switches(tmp_path: Path) -> None:
    stage = Stage(
        tmp_path,
        fetch_ahead=False,
        suspect_after_s={"fork": 30.0},
        routing="session",
        shortest_first=True,
        prefill_ageing=0.5,
        append_tokens=99,
    )
    config = stage.plane.state.config
    assert (config.routing, config.append_tokens) == ("session", 99)
    assert (config.shortest_first, config.prefill_ageing) == (True, 0.5)
    assert (config.fetch_ahead, config.directory.suspect_after_s) == (False, {"fork": 30.0})
    await stage.close()


async def test_a_fetch_ahead_that_cannot_be_sent_is_over(pool: Pool) -> None:
    state, plane = pool.plane.state, pool.plane
    await pool.engines.pop("n1").close()
    plane.hub._roster.drop("n1")
    ignored = state.tallies.ignored
    pieces = (FetchPiece(0, 2, ("n3",)),)
    plane._dispatcher.carry_out(FetchAheadEffect("n1", "a77", b"", b"", pieces))
    assert state.tallies.ignored == ignored + 1, "the fact of a ticket that is not known"


def told(measures: PoolMeasures, *facts: FetchEnded | FetchAheadEnded) -> None:
    for fact in facts:
        measures.observe(1.0, FromNode("n1", "b", fact), StepResult((), (), None))


async def test_totals_add_up_and_stay_in_bounds(pool: Pool) -> None:
    measures = PoolMeasures()
    state = ClusterState(PolicyConfig(("n1", "n2"), "1P1D"))
    empty = measures.status(state, {})
    assert (empty.share_hidden, empty.fetches, empty.nodes) == (None, 0, ())
    peers = (FetchSource("n2", 3, 30), FetchSource("n3", 4, 40))
    told(
        measures,
        FetchEnded("r", 1, 2, peers, 2.0, 0.5, 0),
        FetchEnded("s", 0, 5, (), 2.0, 9.0, 0),
        FetchEnded("t", 0, 0, (), 0.0, 0.0, 6, ""),
        FetchAheadEnded("a", peers, 1.0, 1, "gone"),
    )
    found = measures.status(state, pool.plane.hub.engines)
    assert found.fetched_blocks == {"l1": 1, "own_l2": 7, "peer_l2": 7}
    sizes = {"l1": LAYOUT.block_bytes, "own_l2": 7 * LAYOUT.block_bytes, "peer_l2": 70}
    assert found.fetched_bytes == sizes
    assert found.share_hidden == pytest.approx(1 - 2.5 / 4.0), "no more is exposed than it took"
    assert (found.ahead.blocks, found.ahead.bytes) == (7, 70)
    assert found.recomputed_blocks == {"other": 6}, "ahead, nothing was computed instead"
    told(measures, *(FetchEnded("r", 0, 0, (), 0.1, 0.0, 1, f"c{i}") for i in range(100)))
    before = measures.status(state, {})
    told(
        measures,
        FetchEnded("r", 0, 0, peers, math.inf, 0.0, 0),
        FetchEnded("r", -5, 0, (), 1.0, 0.0, 0),
        FetchAheadEnded("a", (FetchSource("n2", 2**40, 1),), 1.0, 1, "gone"),
    )
    assert measures.status(state, {}) == before, "what cannot be would stay in every sum"
    causes = before.recomputed_blocks
    assert len(causes) <= MOST_CAUSES
    assert sum(causes.values()) == 106
