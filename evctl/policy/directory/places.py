"""Where keys are on paths that are known: what is found there needs no search."""

from __future__ import annotations

from evctl.core.blocks import KEY_BYTES
from evctl.policy.directory.runs import Run


def on_path(run: Run, position: int, key: bytes) -> tuple[Run, int] | None:
    """That position of the path that `run` ends, if it has the key."""
    if position <= 0:
        return None
    while run.parent is not None and position <= run.start:
        run = run.parent
    if run.parent is None or position > run.end or run.key(position) != key:
        return None
    return run, position


def at_either(
    run: Run, ends: tuple[int, int], parent: bytes, last: bytes, count: int
) -> tuple[Run, int] | None:
    """The position of `parent`, if the blocks that follow it begin or end at one of two places
    of a path: how a request's own blocks lie, whatever else was stored behind them."""
    for end in ends:
        if on_path(run, end, last) is not None:
            return on_path(run, end - count, parent)
        found = on_path(run, end, parent)
        if found is not None:
            return found
    return None


def matching_tail(run: Run, end: int, keys: bytes) -> int:
    """How many blocks at the end of `keys` are those of the run before `end`, in its order."""
    low, high = 1, min(end - run.start, len(keys) // KEY_BYTES)
    while low < high:
        middle = (low + high + 1) // 2
        if keys.endswith(run.slice(end - middle, end)):
            low = middle
        else:
            high = middle - 1
    return low


def above(run: Run | None, key: bytes) -> tuple[Run, int] | None:
    """The position with that key on the path that `run` ends, from its end up."""
    while run is not None and run.parent is not None:
        position = run.find_last(key)
        if position:
            return run, position
        run = run.parent
    return None
