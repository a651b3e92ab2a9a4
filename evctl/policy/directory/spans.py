"""Intervals of block positions: which blocks are there (spans), how often (steps).

Spans are a flat tuple `(start, end, start, end, ...)`, ascending, disjoint, never touching. Steps
are a flat tuple `(end, count, end, count, ...)` that begins at a start its owner knows; beyond
the last end the count is 0, neighbours differ. Nearly always both hold one interval, so every
function is linear in the number of intervals and has no other state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Spans = tuple[int, ...]
Steps = tuple[int, ...]
Change = tuple[int, int, int, int]
"""start, end, count before, count after."""


def size(spans: Spans) -> int:
    """Blocks in it."""
    if len(spans) == 2:
        return spans[1] - spans[0]
    return sum(spans[1::2]) - sum(spans[::2])


def pairs(spans: Spans) -> Iterator[tuple[int, int]]:
    """Its intervals."""
    return zip(spans[::2], spans[1::2], strict=True)


def union(left: Spans, right: Spans) -> Spans:
    """Blocks in either."""
    if not left or left == right:
        return right
    if not right:
        return left
    if len(left) == 2 and len(right) == 2 and left[0] <= right[1] and right[0] <= left[1]:
        return (min(left[0], right[0]), max(left[1], right[1]))
    merged: list[int] = []
    for start, end in sorted([*pairs(left), *pairs(right)]):
        if merged and start <= merged[-1]:
            merged[-1] = max(merged[-1], end)
        else:
            merged += (start, end)
    return tuple(merged)


def clip(spans: Spans, start: int, end: int) -> Spans:
    """Blocks in it from `start` to before `end`."""
    if len(spans) == 2:
        low, high = max(spans[0], start), min(spans[1], end)
        return (low, high) if low < high else ()
    clipped: list[int] = []
    for low, high in pairs(spans):
        low, high = max(low, start), min(high, end)
        if low < high:
            clipped += (low, high)
    return tuple(clipped)


def minus(left: Spans, right: Spans) -> Spans:
    """Blocks in `left` and not in `right`."""
    if not left or not right:
        return left
    if left == right:
        return ()
    if len(left) == len(right) == 2:
        (start, end), (low, high) = left, right
        if low <= start:
            return left if high <= start else (high, end) if high < end else ()
        if high >= end:
            return (start, low) if low < end else left
    kept: list[int] = []
    for start, end in pairs(left):
        for low, high in pairs(right):
            if high <= start:
                continue
            if low >= end:
                break
            if start < low:
                kept += (start, low)
            start = high
        if start < end:
            kept += (start, end)
    return tuple(kept)


def lead(spans: Spans, start: int) -> int:
    """End of the interval that holds `start`; `start` where none does."""
    if len(spans) == 2:
        return spans[1] if spans[0] <= start < spans[1] else start
    for low, high in pairs(spans):
        if low <= start < high:
            return high
    return start


def shift(
    steps: Steps, origin: int, start: int, end: int, delta: int
) -> tuple[Steps, Sequence[Change]]:
    """Add `delta` to the counts of [start, end), which is not empty and begins at or after
    `origin`. Returns the new steps and what changed, in order. Nearly all that happens happens
    at the end."""
    many = len(steps)
    if not many:
        first: Steps = (end, delta) if start == origin else (start, 0, end, delta)
        return first, ((start, end, 0, delta),)
    last, before = steps[-2], steps[-1]
    if start == last:  # goes on behind it
        grown = (*steps[:-2], end, delta) if before == delta else (*steps, end, delta)
        return grown, ((start, end, 0, delta),)
    low = steps[-4] if many > 2 else origin
    if end == last and start >= low:  # the last step, or the end of it
        after = before + delta
        change = ((start, end, before, after),)
        if start > low:
            left = (*steps[:-2], start, before)
            return ((*left, end, after) if after else left), change
        left = steps[:-2]
        if not after:
            return (left[:-2] if left and not left[-1] else left), change
        if left and left[-1] == after:
            return (*left[:-2], end, after), change
        return (*left, end, after), change
    changes: list[Change] = []
    out: list[int] = []
    low = origin
    for high, count in [*segments(steps), (max(end, steps[-2]), 0)]:
        for piece_end, inside in (
            (min(high, start), False),
            (min(high, end), True),
            (high, False),
        ):
            if piece_end <= low:
                continue
            if inside:
                changes.append((low, piece_end, count, count + delta))
            _append(out, piece_end, count + delta if inside else count)
            low = piece_end
    return _stripped(out), changes


def segments(steps: Steps) -> Iterator[tuple[int, int]]:
    """Its (end, count) in order."""
    return zip(steps[::2], steps[1::2], strict=True)


def cut(steps: Steps, at: int) -> tuple[Steps, Steps]:
    """The steps before `at`, and those from there on, whose start is then `at`."""
    left: list[int] = []
    right: list[int] = []
    low = -1
    for high, count in segments(steps):
        if low < at:
            _append(left, min(high, at), count)
        if high > at:
            _append(right, high, count)
        low = high
    return _stripped(left), _stripped(right)


def joined(left: Steps, right: Steps, at: int) -> Steps:
    """The reverse of cut: `right` begins at `at`, where `left` ends at the latest."""
    out: list[int] = []
    for high, count in segments(left):
        _append(out, high, count)
    if (out[-2] if out else -1) < at and right:
        _append(out, at, 0)
    for high, count in segments(right):
        _append(out, high, count)
    return _stripped(out)


def within(steps: Steps, origin: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, count) of every piece of [start, end), those of count 0 included."""
    low = origin
    for high, count in segments(steps):
        first, last = max(low, start), min(high, end)
        if first < last:
            yield first, last, count
        low = high
    first = max(low, start)
    if first < end:
        yield first, end, 0


def positive(steps: Steps, origin: int) -> Spans:
    """Where the count is not 0."""
    if len(steps) == 2:
        return (origin, steps[0])
    if len(steps) == 4 and not steps[1]:
        return (steps[0], steps[2])
    spans: list[int] = []
    low = origin
    for high, count in segments(steps):
        if count:
            if spans and spans[-1] == low:
                spans[-1] = high
            else:
                spans += (low, high)
        low = high
    return tuple(spans)


def _append(out: list[int], end: int, count: int) -> None:
    if out and out[-1] == count:
        out[-2] = end
    else:
        out += (end, count)


def _stripped(out: list[int]) -> Steps:
    if out and out[-1] == 0:
        del out[-2:]
    return tuple(out)
