"""References that branches hold decide what engines keep."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from evctl.control.replay import replay
from evctl.core.branches import BranchSignal
from evctl.policy.directory.views import branches, summary
from evctl.policy.state import check
from tests.control.real_engines import RealCluster
from tests.control.state import BLOCK_TOKENS, until

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

L1_BLOCKS = 64
CONTEXT_BLOCKS = 20


def context(seed: int, blocks: int = CONTEXT_BLOCKS) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 250) for _ in range(blocks * BLOCK_TOKENS)]


async def ask(cluster: RealCluster, prompt: list[int], signal: BranchSignal | None) -> int:
    """Send a request, wait for its end, return its cached tokens."""
    output = cluster.submit(prompt, signal, max_tokens=2)
    await cluster.finish([output])
    assert output.last is not None
    return output.last.cached_tokens


@pytest.mark.parametrize("signals", [True, False])
async def test_a_waiting_branch_is_kept_and_replaced_history_goes(
    tmp_path: Path, signals: bool
) -> None:
    """Three contexts of 20 blocks and more on a node with room for 64. Without signals the one
    that waits longest is gone when it comes back; with them, what a compaction replaced is."""

    def signal(branch: str, **fields: object) -> BranchSignal | None:
        return BranchSignal(branch, **fields) if signals else None  # type: ignore[arg-type]

    from evengine.models.store import ensure_model

    cluster = RealCluster(
        tmp_path / "state",
        ensure_model("random-4l256"),
        l1_blocks=L1_BLOCKS,
        nodes=2,
        split="1P1D",
    )
    try:
        await cluster.start()
        waiting, replaced = context(1), context(2)
        assert await ask(cluster, waiting, signal("waiting")) == 0
        await ask(cluster, replaced, signal("busy"))
        compact = replaced[: 2 * BLOCK_TOKENS] + context(3, 1)
        cached = await ask(cluster, compact, signal("busy", op="compact", version=1))
        assert cached == 2 * BLOCK_TOKENS
        await ask(cluster, context(4), signal("other"))
        await ask(cluster, context(5, 12), signal("another"))
        back = await ask(cluster, waiting + context(6, 1), signal("waiting"))
        assert (back == len(waiting)) is signals, back

        state = cluster.plane.state
        assert check(state) == []
        assert len(branches(state.directory)) == (4 if signals else 0)
        for name in state.nodes:
            held = (await cluster.quiet(name)).load.l1_cached_blocks
            said = state.directory.nodes[name]
            await until(lambda said=said, held=held: sum(said.classes) == held, 5, "evictions")
        assert sum(map(sum, summary(state.directory).classes.values())) > 0
    finally:
        await cluster.close()
    assert replay(tmp_path / "state" / "journal").equal
