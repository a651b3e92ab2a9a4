"""The tree: how paths are found, made, grown and pruned."""

from __future__ import annotations

from evctl.core.blocks import KEY_BYTES
from evctl.policy.directory.cuts import cut, join
from evctl.policy.directory.runs import Run


class Tree:
    """All runs, the index of their ends, and the roots that are known."""

    def __init__(self) -> None:
        self.root = Run(None, 0, b"")
        self.roots: dict[bytes, None] = {}
        self.index: dict[bytes, Run] = {}
        """Key of a run's last block, or of a copy's last one -> run. A node that claims a block
        at two places overwrites an entry, hence no `del`: that must not stop anybody else."""
        self.doubtful: list[Run] = []
        """Runs that may be needed no more since a node was lost; prune() sees to them."""
        self.runs = 0
        self.blocks = 0

    # ------------------------------------------------------------ look

    def descend(self, keys: bytes, run: Run, position: int, base: int = 0) -> tuple[Run, int]:
        """The deepest position that `keys` share with the tree, from one that they share; the
        first of them is the block after position `base`."""
        total = base + len(keys) // KEY_BYTES
        at = (position - base) * KEY_BYTES
        if position < run.end:
            rest = run.slice(position, run.end)
            if not keys.startswith(rest, at):
                return run, run.common(keys, position, min(run.end, total), base)
            position = run.end
            at += len(rest)
        startswith = keys.startswith
        while position != total and run.kids:
            kid = run.kids.get(keys[at : at + KEY_BYTES])
            if kid is None:
                break
            run = kid
            if not startswith(run.keys, at):
                return run, run.common(keys, position + 1, min(run.end, total), base)
            position = run.end
            at += len(run.keys)
        return run, position

    def shared(self, keys: bytes, run: Run, end: int) -> tuple[Run, int]:
        """How far `keys` share the path to position `end` of `run`; from the leaf up, so that
        what was only added costs nothing."""
        total = len(keys) // KEY_BYTES
        while run.parent is not None:
            if end > total:
                end = total
            if end > run.start:
                if keys[(end - 1) * KEY_BYTES : end * KEY_BYTES] == run.key(end):
                    return run, end
                at = run.start * KEY_BYTES
                if keys[at : at + KEY_BYTES] == run.keys[:KEY_BYTES]:
                    return run, run.common(keys, run.start + 1, end)
            end = run.start
            run = run.parent
        return run, 0

    def path(self, run: Run) -> list[Run]:
        """Runs from the root's child to `run`."""
        runs: list[Run] = []
        at: Run = run
        while at.parent is not None:
            runs.append(at)
            at = at.parent
        runs.reverse()
        return runs

    # ------------------------------------------------------------ change

    def ensure(self, keys: bytes, run: Run, position: int) -> Run:
        """The run in which the path of `keys` ends, made where it is missing. The keys share
        `position` of `run` with the tree and nothing after it."""
        if position * KEY_BYTES == len(keys):
            return run
        return self.extend(run, position, keys[position * KEY_BYTES :])

    def extend(self, run: Run, position: int, keys: bytes) -> Run:
        """Put blocks that are not in the tree after `position` of `run`."""
        if position < run.end:
            run = cut(self.index, run, position)
            self.runs += 1
        self.blocks += len(keys) // KEY_BYTES
        if run.parent is not None and not run.kids:
            self._grow(run, keys)
            return run
        kid = Run(run, run.end, keys)
        if run.kids is None:
            run.kids = {}
        run.kids[keys[:KEY_BYTES]] = kid
        self.index[keys[-KEY_BYTES:]] = kid
        self.runs += 1
        return kid

    def _grow(self, run: Run, keys: bytes) -> None:
        if isinstance(run.keys, bytes):
            run.keys = bytearray(run.keys)
        old_end = run.end
        tail = run.key(old_end)
        run.keys += keys
        run.end = old_end + len(keys) // KEY_BYTES
        self.index[keys[-KEY_BYTES:]] = run
        at_tail = 0
        for tier in run.tiers:
            for held in tier.values():
                at_tail += held[-1] == old_end
        if at_tail:
            run.ends = run.ends or {}
            run.ends[old_end] = at_tail
        else:
            self.index.pop(tail, None)
        run.part |= run.full
        run.full = run.expect = 0

    def trim(self, run: Run) -> None:
        """Drop the blocks at the end of the path that nobody holds or needs."""
        while run.parent is not None and not run.kids:
            needed = _needed(run)
            if needed == run.end:
                return
            self.blocks -= run.end - needed
            if needed > run.start:
                self._shorten(run, needed)
                return
            keys, parent = run.keys, run.parent
            self.index.pop(bytes(keys[-KEY_BYTES:]), None)
            run.parent = None
            self.runs -= 1
            kids = parent.kids
            assert kids is not None
            del kids[bytes(keys[:KEY_BYTES])]
            if kids:
                if len(kids) == 1 and parent.parent is not None:
                    (only,) = kids.values()
                    join(self.index, parent, only)
                    self.runs -= 1
                return
            parent.kids = None
            run = parent

    def prune(self, most: int) -> None:
        """Trim so many of the doubtful runs, the last ones first."""
        doubtful = self.doubtful
        for run in doubtful[-most:]:
            self.trim(run)
        del doubtful[-most:]

    def _shorten(self, run: Run, end: int) -> None:
        self.index.pop(run.key(run.end), None)
        run.keys = run.keys[: (end - run.start) * KEY_BYTES]
        run.end = end
        self.index[run.key(end)] = run
        if run.ends:
            run.ends.pop(end, None)
            run.ends = run.ends or None
        for node in {**run.tiers[0], **run.tiers[1], **(run.promised or {})}:
            run.tell(node)


def _needed(run: Run) -> int:
    """Where the last block of a run without children is that anybody holds or needs."""
    needed = run.start
    for tier in run.tiers:
        if tier:
            for held in tier.values():
                if held[-1] > needed:
                    needed = held[-1]
    if run.tips:
        for tip in run.tips:
            if tip.end > needed:
                needed = tip.end
    return needed
