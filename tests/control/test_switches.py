"""Both plus switches of routing over real engines: other nodes, other order, the same tokens."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from evctl.control.replay import replay
from evctl.core.branches import BranchSignal
from evctl.core.effects import Dispatch
from evctl.core.events import Event
from evctl.policy.state import StepResult, check
from tests.control.real_engines import RealCluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(300), pytest.mark.asyncio]

TURNS = 3
AGENTS = 4


async def conversations(root: Path, model: Path, **options: object) -> tuple[list[int], Counter]:
    """Agents that add a few tokens to what they were answered, turn by turn, all at once; every
    token that they were sent, and how many requests each pair of nodes got."""
    dice = random.Random(5)
    cluster = RealCluster(root, model, split="1P2D", **options)
    placed: Counter = Counter()

    def note(_: float, __: Event, result: StepResult) -> None:
        for effect in result.effects:
            if isinstance(effect, Dispatch):
                placed[effect.prefill_node, effect.decode_node] += 1

    try:
        await cluster.start()
        cluster.plane.writer.observers.append(note)
        contexts = [[dice.randrange(256) for _ in range(90 + 170 * i)] for i in range(AGENTS)]
        sent = []
        for _ in range(TURNS):
            outputs = [
                cluster.submit(context, BranchSignal(f"b{i}"), max_tokens=20)
                for i, context in enumerate(contexts)
            ]
            for context, tokens in zip(contexts, await cluster.finish(outputs), strict=True):
                sent += tokens
                context += tokens + [dice.randrange(256) for _ in range(9)]
        assert check(cluster.plane.state) == []
        for name in ("n1", "n2", "n3"):
            assert (await cluster.quiet(name)).problems == ()
    finally:
        await cluster.close()
    report = replay(root / "journal")
    assert report.equal, report
    return sent, placed


async def test_switches_change_where_and_when_and_no_token(tmp_path: Path) -> None:
    """What wrong code would pass? None that changes a token, or that never appends."""
    from evengine.models.store import ensure_model

    model = ensure_model("random-4l256")
    plain, placed = await conversations(tmp_path / "plain", model)
    assert {prefill for prefill, _ in placed} == {"n1"}
    plus, moved = await conversations(
        tmp_path / "plus", model, shortest_first=True, append_tokens=48
    )
    assert plus == plain
    appended = sum(count for (prefill, _), count in moved.items() if prefill != "n1")
    assert appended > 0, moved
    assert all(prefill == decode for prefill, decode in moved if prefill != "n1")
