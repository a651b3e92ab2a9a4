"""What a fetch plan adds to a placement. python -m tests.policy.timing prints, asserts nothing."""

from __future__ import annotations

import gc
import random
import time

from evctl.core.branches import BranchSignal
from evctl.core.effects import Dispatch
from evctl.core.events import FromNode, KvHeld, NodeJoined, RequestArrived, RequestCancelled
from evctl.core.split import Phase
from evctl.policy.state import ClusterState, PolicyConfig, step

BLOCKS = 2000
NODES = tuple(f"n{i}" for i in range(9))
ROOT = bytes(16)
_random = random.Random(1)


def cluster(l2_blocks: int, cuts: int, holders: int, needed: bool) -> tuple[ClusterState, bytes]:
    """9 nodes, 6P3D; the path lies on the last of them, cut by forks into so many runs. needed:
    a branch refers to each copy, so that a lease changes no class."""
    state = ClusterState(PolicyConfig(NODES, "6P3D"))
    for name in NODES:
        step(state, NodeJoined(name, "b", 10**6, 16, 64, 10**6, l2_blocks), 0.0)
    path = _random.randbytes(16 * BLOCKS)
    for name in NODES[-holders:]:
        step(state, FromNode(name, "b", KvHeld(2, ROOT, path)), 0.0)
    for at in range(1, cuts):
        forked = path[: 16 * (at * BLOCKS // cuts)] + _random.randbytes(16)
        step(state, FromNode(NODES[-1], "b", KvHeld(2, ROOT, forked)), 0.0)
    directory = state.directory
    for name in NODES[-holders:] if needed else ():
        directory.arrive(name, "t", ROOT, path, 0.0, BranchSignal(name))
        directory.place(name, Phase.PREFILL, name)
        directory.moved(name, Phase.PREFILL)
        directory.closed(name, 0.0)
    return state, path


def placed_us(state: ClusterState, path: bytes, times: int = 400) -> tuple[float, float, int]:
    """p50 and p99 of an arrival that no branch signal helps, and blocks of its plan."""
    taken, blocks = [], 0
    for number in range(times):
        arrival = RequestArrived(f"r{number}", "t", None, BLOCKS * 16 + 1, 8, ROOT, path)
        before_ns = time.perf_counter_ns()
        result = step(state, arrival, 1.0)
        taken.append((time.perf_counter_ns() - before_ns) / 1e3)
        (dispatch,) = [e for e in result.effects if isinstance(e, Dispatch)]
        blocks = sum(piece.end - piece.start for piece in dispatch.fetch)
        step(state, RequestCancelled(f"r{number}"), 1.0)
    taken.sort()
    return taken[times // 2], taken[times * 99 // 100], blocks


def main() -> None:
    gc.disable()
    for cuts, holders in ((1, 1), (1, 3), (1, 9), (16, 3), (128, 3)):
        for needed in (True, False):
            plain = placed_us(*cluster(0, cuts, holders, needed))
            pooled = placed_us(*cluster(10**6, cuts, holders, needed))
            whose = "of live branches" if needed else "that nobody needs"
            print(
                f"{BLOCKS} blocks {whose:17} in {cuts:3} runs on {holders} of 9 nodes: "
                f"p50 {plain[0]:6.1f} us, with a plan of {pooled[2]:4} blocks {pooled[0]:6.1f} "
                f"(+{pooled[0] - plain[0]:5.1f})   goal +60"
            )


if __name__ == "__main__":
    main()
