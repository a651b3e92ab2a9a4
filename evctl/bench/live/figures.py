"""Timelines of adaptations as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from evctl.bench.live.adapt import Adaptation
from evctl.core.split import parse_split

FILE: Final = "planner-live.svg"


def draw(adaptations: Sequence[Adaptation], path: Path) -> None:
    """Prefill nodes, throughput and mean TTFT over time, a column for each. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        3, len(adaptations), figsize=(6 * len(adaptations), 7), sharex="col", squeeze=False
    )
    for column, one in enumerate(adaptations):
        times_s = [moment.time_s for moment in one.moments]
        nodes = [parse_split(moment.split).prefill_nodes for moment in one.moments]
        rows = (
            ("prefill nodes", nodes, "post"),
            ("requests/s", [moment.throughput_rps for moment in one.moments], None),
            ("mean TTFT (s)", [moment.ttft_s for moment in one.moments], None),
        )
        for row, (name, values, step) in enumerate(rows):
            axis = axes[row][column]
            if step:
                axis.step(times_s, values, where="post")
            else:
                axis.plot(times_s, values)
            axis.set_ylabel(name)
            axis.set_ylim(bottom=0)
            for at_s, _ in one.moves[1:]:
                axis.axvline(at_s, color="grey", linewidth=0.8, linestyle=":")
        start = one.moves[0][1]
        axes[0][column].set_title(f"{one.shape}, from {start}, windows of {one.window_s:g} s")
        axes[-1][column].set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
