"""Which stretches live branches reference, from their contexts alone."""

from __future__ import annotations

from collections.abc import Sequence


class References:
    """How many live branches need each stretch, and the mean of the blocks that any needs, from
    from_s until until_s."""

    def __init__(self, blocks: Sequence[int], from_s: float, until_s: float) -> None:
        self._blocks = blocks
        self._counts = [0] * len(blocks)
        self._paths: dict[int, Sequence[int]] = {}
        self._live = 0
        self._from_s = self._since_s = from_s
        self._until_s = until_s
        self._area = 0.0

    def move(
        self, branch: int, path: Sequence[int], time_s: float
    ) -> tuple[Sequence[int], Sequence[int]]:
        """The branch's context is now `path` (empty: it ended): stretches that lost their last
        reference, and those that got their first."""
        self._pass(time_s)
        before = self._paths.pop(branch, ())
        if path:
            self._paths[branch] = path
        shared = _common(before, path)
        dropped, taken = [], []
        for stretch in before[shared:]:
            self._counts[stretch] -= 1
            if not self._counts[stretch]:
                dropped.append(stretch)
                self._live -= self._blocks[stretch]
        for stretch in path[shared:]:
            self._counts[stretch] += 1
            if self._counts[stretch] == 1:
                taken.append(stretch)
                self._live += self._blocks[stretch]
        return dropped, taken

    def _pass(self, time_s: float) -> None:
        if time_s > self._since_s:
            self._area += self._live * (time_s - self._since_s)
            self._since_s = time_s

    def mean(self) -> float:
        self._pass(self._until_s)
        return self._area / (self._until_s - self._from_s)


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    for place, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return place
    return min(len(left), len(right))
