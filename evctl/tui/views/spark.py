"""Sparklines: the last minutes in one line. A cell is BUCKET_S, the last cell the newest."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from evctl.tui.look import Look
from evctl.tui.model import BUCKET_S, Bucket


def series(
    history: tuple[Bucket, ...],
    value: Callable[[Bucket], float | None],
    cells: int,
    now_s: float,
) -> list[float | None]:
    """The last `cells` buckets up to now, None where a bucket is missing: gaps stay gaps."""
    newest = int(now_s // BUCKET_S)
    by_number = {bucket.number: value(bucket) for bucket in history}
    return [by_number.get(newest - back) for back in range(cells - 1, -1, -1)]


def sparkline(values: list[float | None], look: Look, style: str, most: float = 0.0) -> Text:
    """One character a value, scaled to the largest of them, or to `most` if that is larger.

    Nothing seen is a blank and not the lowest bar; the full block is left out so that two lines
    on top of each other do not melt together.
    """
    seen = [value for value in values if value is not None]
    top = max([most, *seen, 1e-9])
    ramp = look.glyphs.spark
    drawn = [
        " " if value is None else ramp[min(len(ramp) - 1, int(value / top * len(ramp)))]
        for value in values
    ]
    return Text("".join(drawn), style)


def bar(value: float, cells: int, look: Look, style: str) -> Text:
    """A used share as a bar."""
    filled = round(min(1.0, max(0.0, value)) * cells)
    text = Text(look.glyphs.full * filled, style)
    return text.append(look.glyphs.empty * (cells - filled), look.colours.faint)
