"""Requests through the front door over real engines, while nodes change role, stop and die."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from evctl.control.frontdoor import OverloadedError
from evctl.control.replay import replay
from evctl.policy.state import check
from tests.control.real_engines import RealCluster
from tests.control.state import Output, collect, request_for, until

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]

MAX_QUEUED = 40
LOSS_SHOWS_S = 15.0
"""Five times what is promised: the cores are shared."""


@pytest.fixture(scope="module")
def model() -> Path:
    from evengine.models.store import ensure_model

    return ensure_model("random-4l256")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(
    tmp_path_factory: pytest.TempPathFactory, model: Path
) -> AsyncIterator[RealCluster]:
    root = tmp_path_factory.mktemp("cluster") / "state"
    made = RealCluster(root, model, max_queued=MAX_QUEUED, cooldown_s=0.0)
    try:
        await made.start()
        yield made
        assert check(made.plane.state) == []
    finally:
        await made.close()
    report = replay(root / "journal")
    assert report.equal, report
    assert report.steps == made.plane.writer.steps
    journal = b"".join(path.read_bytes() for path in (root / "journal").iterdir())
    assert b"token_ids" not in journal


def prompts(count: int, seed: int, length: int = 200) -> list[list[int]]:
    """Half of them share a context, as branches of one session do."""
    rng = random.Random(seed)
    context = [rng.randrange(256) for _ in range(length)]
    return [
        [*(context if index % 2 else []), *(rng.randrange(256) for _ in range(40 + index))]
        for index in range(count)
    ]


async def test_a_split_changes_under_load_and_nothing_fails(
    cluster: RealCluster, tmp_path: Path, model: Path
) -> None:
    asked = prompts(24, seed=1)
    outputs = [cluster.submit(prompt, max_tokens=24) for prompt in asked]
    plane = cluster.plane
    await until(lambda: plane.status().decode.running >= 2, 60, "decodes")
    assert plane.status().prefill.waiting + plane.status().prefill.running > 0
    change = plane.overrides.set_split("1P2D", by="test")
    assert len(change.moves) == 1
    await until(lambda: plane.status().split == "1P2D", 60, "the change to settle")
    plane.overrides.set_split("2P1D", by="test")
    found = await cluster.finish(outputs)
    await until(lambda: not plane.state.requests, 10, "the books to close")
    assert plane.status().requests_failed == 0
    assert plane.status().split == "2P1D"
    for name in cluster.settings.nodes:
        assert (await cluster.quiet(name)).problems == ()

    single = RealCluster(tmp_path / "single", model, nodes=2, split="1P1D", max_queued=100)
    try:
        single.engines.start("n1", single.plane.endpoint)
        await single.joined("n1")
        wanted = await single.finish([single.submit(p, max_tokens=24) for p in asked])
    finally:
        await single.close()
    assert found == wanted
    assert len({tuple(tokens) for tokens in found}) > len(asked) // 2


async def test_forks_of_one_context_reuse_it(cluster: RealCluster) -> None:
    (context,) = prompts(1, seed=7, length=0)
    context = context * 4
    await cluster.finish([cluster.submit(context, max_tokens=2)])
    outputs = [cluster.submit([*context, index], max_tokens=2) for index in range(4)]
    await cluster.finish(outputs)
    cached = [output.last.cached_tokens for output in outputs if output.last]
    assert all(count >= len(context) // 16 * 16 for count in cached), cached


async def test_a_reader_that_leaves_frees_every_node(cluster: RealCluster) -> None:
    readers = []
    for index, prompt in enumerate(prompts(9, seed=2)):
        request = request_for(cluster.plane, f"leave-{index}", prompt, max_tokens=400)
        readers.append(asyncio.create_task(collect(cluster.plane, request, Output())))
    await until(lambda: cluster.plane.status().decode.running >= 1, 60, "some to decode")
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    assert not cluster.plane.state.requests
    left_s = time.monotonic()
    for name in cluster.settings.nodes:
        inspection = await cluster.quiet(name)
        assert inspection.load.l1_used_blocks == 0
        assert inspection.problems == ()
    assert time.monotonic() - left_s < 5.0


async def test_over_the_bound_requests_are_turned_away(cluster: RealCluster) -> None:
    plane = cluster.plane
    rejected_before = plane.status().requests_rejected
    ends: list[object] = []

    async def ask(index: int) -> None:
        request = request_for(plane, f"flood-{index}", prompts(1, seed=index)[0], max_tokens=2)
        try:
            ends.append((await collect(plane, request, Output())).finish)
        except OverloadedError as error:
            assert error.retry_after_s >= 1.0
            ends.append("rejected")

    await asyncio.gather(*(ask(index) for index in range(3 * MAX_QUEUED)))
    rejected = ends.count("rejected")
    assert rejected == plane.status().requests_rejected - rejected_before
    assert rejected >= 3 * MAX_QUEUED - MAX_QUEUED - 40
    assert set(ends) == {"rejected", "length"}


async def test_a_killed_engine_ends_its_requests_and_no_others(cluster: RealCluster) -> None:
    plane = cluster.plane
    outputs = [cluster.submit(p, max_tokens=400) for p in prompts(12, seed=3)]
    await until(lambda: plane.state.nodes["n3"].requests, 60, "work on n3")
    await until(lambda: plane.status().decode.running >= 2, 60, "some to decode")

    def begun() -> set[str]:
        """On n3; what waits there goes elsewhere."""
        return {
            r.request_id for r in plane.state.requests.values() if r.stage != "waiting"
            and (r.decode_node if r.stage == "decode" else r.prefill_node) == "n3"
        }  # fmt: skip

    await until(begun, 60, "requests that have begun on n3")
    victims = begun()
    os.kill(cluster.engines.processes["n3"].pid, signal.SIGKILL)
    killed_s = time.monotonic()
    await until(lambda: plane.status().nodes[2].state == "lost", LOSS_SHOWS_S, "the loss to show")
    # One of them may have ended by itself while it was counted.
    await until(lambda: not victims & plane.state.requests.keys(), LOSS_SHOWS_S, "their ends")
    assert time.monotonic() - killed_s < LOSS_SHOWS_S
    await until(lambda: all(o.finish for o in outputs), 90, "the others to finish")
    failed = [o for o in outputs if o.finish == "error"]
    assert failed
    assert all(o.last and "n3 was lost" in o.last.error for o in failed)
    assert len(failed) < len(outputs)
    cluster.engines.start("n3", plane.endpoint)
    await cluster.joined("n3")
    found = await cluster.finish([cluster.submit(p, max_tokens=4) for p in prompts(6, seed=4)])
    assert len(found) == 6
