"""Whether the planner goes where it should: a live cluster starts at a split that its load does
not fit, in auto, and is watched."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from evctl.bench.live.closed import ClosedLoad, closed_trace
from evctl.bench.live.moves import CONVERSATIONS, Scene, await_model
from evctl.bench.live.testbed import Testbed
from evctl.core.split import parse_split

STEP_S: Final = 5.0
BY: Final = "bench"
Told = Callable[[str], None]


class Moment(msgspec.Struct, frozen=True):
    """time_s: since the watch began. Figures are of the step that ended then."""

    time_s: float
    split: str
    throughput_rps: float
    ttft_s: float | None
    e2e_s: float | None


class Adaptation(msgspec.Struct, frozen=True):
    """moves: (time_s, split) whenever the split that routing aims at changed; the first is the
    start. window_s: of the planner."""

    shape: str
    window_s: float
    moments: list[Moment]
    moves: list[tuple[float, str]]

    @property
    def prefill_nodes(self) -> list[int]:
        """At the start and after each move."""
        return [parse_split(split).prefill_nodes for _, split in self.moves]

    def went(self) -> int:
        """Prefill nodes gained over the whole watch; below 0, lost."""
        return self.prefill_nodes[-1] - self.prefill_nodes[0]

    def returns(self, windows: int = 3) -> int:
        """Moves against the direction of an earlier one that is at most so many windows ago."""
        steps = [
            (at_s, after - before)
            for (at_s, _), before, after in zip(
                self.moves[1:], self.prefill_nodes, self.prefill_nodes[1:], strict=False
            )
        ]
        return sum(
            any(
                later * earlier < 0 and at_s - before_s <= windows * self.window_s
                for before_s, earlier in steps[:index]
            )
            for index, (at_s, later) in enumerate(steps)
        )


def watch(scene: Scene, folder: Path, windows: int, told: Told = lambda _: None) -> Adaptation:
    """Start at the first split of the scene's path, let the planner decide for so many windows.
    Raises EvctlError."""
    first = parse_split(scene.path[0])
    config = {**scene.config, "nodes": first.nodes, "split": str(first)}
    trace = closed_trace(scene.shape, CONVERSATIONS, int(config["block_tokens"]), scene.seed)
    moments: list[Moment] = []
    with Testbed(folder, config) as bed:
        gateway = bed.status().gateway
        with ClosedLoad(trace, gateway, scene.agents, scene.seed) as load:
            await_model(bed, told)
            bed.admin.set_mode("auto", by=BY)
            began_s = time.monotonic()
            moves = [(0.0, bed.status().target_split)]
            # Each move settles, and a window begins anew; so allow for one more.
            while (now_s := time.monotonic()) < began_s + (windows + 1) * scene.window_s:
                time.sleep(STEP_S)
                target = bed.status().target_split
                ended_s = time.monotonic()
                seen = load.seen(now_s, ended_s)
                at_s = ended_s - began_s
                if target != moves[-1][1]:
                    moves.append((at_s, target))
                    told(f"{scene.shape.name}: {target} after {at_s:.0f} s")
                moments.append(Moment(at_s, target, seen.throughput_rps, seen.ttft_s, seen.e2e_s))
    return Adaptation(scene.shape.name, scene.window_s, moments, moves)
