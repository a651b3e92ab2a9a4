"""The tree: how paths are found, made, grown and pruned."""

from __future__ import annotations

from evctl.core.blocks import KEY_BYTES
from evctl.policy.directory.cuts import cut, join
from evctl.policy.directory.runs import Run

_MOST_ROOTS = 4096


class Tree:
    """All runs, the index of their ends, and the roots that are known."""

    def __init__(self) -> None:
        self.root = Run(None, 0, b"")
        self._roots: dict[bytes, None] = {}
        self._older_roots: dict[bytes, None] = {}
        self.index: dict[bytes, Run] = {}
        """Key of a run's last block, or of a copy's last one -> run. A node that claims a block
        at two places overwrites an entry, hence no `del`: that must not stop anybody else."""
        self.doubtful: list[Run] = []
        """Runs that may be needed no more since a node was lost; prune() sees to them."""
        self.runs = 0
        self.blocks = 0

    # ------------------------------------------------------------ roots

    def add_root(self, key: bytes) -> None:
        """A parent of first blocks; at least the last `_MOST_ROOTS` that were added are known.
        What is below a forgotten one stays."""
        if key not in self._roots:
            if len(self._roots) >= _MOST_ROOTS:
                self._older_roots, self._roots = self._roots, {}
            self._roots[key] = None

    def is_root(self, key: bytes) -> bool:
        """Whether first blocks may name it as their parent."""
        return key in self._roots or key in self._older_roots

    # ------------------------------------------------------------ look

    def descend(
        self,
        keys: bytes,
        run: Run,
        position: int,
        base: int = 0,
        path: list[Run] | None = None,
    ) -> tuple[Run, int]:
        """The deepest position that `keys` share with the tree, from one that they share; the
        first of them is the block after position `base`. Runs entered are added to `path`.

        A run whose child is entered was shared to its end, for keys are chained: only the last
        run is compared, and of that only as many keys as a bisection takes.
        """
        total = base + len(keys) // KEY_BYTES
        end = run.end
        if position < end:
            high = end if end < total else total
            reached = run.common(keys, position, high, base)
            if reached < end:
                return run, reached
            position = end
        kids = run.kids
        if not kids:
            return run, position
        first = run
        at = (position - base) * KEY_BYTES
        while kids:
            kid = kids.get(keys[at : at + KEY_BYTES])
            if kid is None:
                break
            run = kid
            if path is not None:
                path.append(run)
            at = (run.end - base) * KEY_BYTES
            kids = run.kids
        if run is first:
            return run, position
        return run, run.common(keys, run.start + 1, min(run.end, total), base)

    def shared(self, keys: bytes, run: Run, end: int) -> tuple[Run, int]:
        """How far `keys` share the path to position `end` of `run`; from the leaf up, so that
        what was only added costs nothing."""
        total = len(keys) // KEY_BYTES
        while run.parent is not None:
            if end > total:
                end = total
            start = run.start
            if end > start:
                if keys[(end - 1) * KEY_BYTES : end * KEY_BYTES] == run.key(end):
                    return run, end
                at = start * KEY_BYTES
                if keys[at : at + KEY_BYTES] == run.keys[:KEY_BYTES]:
                    return run, run.common(keys, start + 1, end - 1)
            end = start
            run = run.parent
        return run, 0

    def path(self, run: Run) -> list[Run]:
        """Runs from the root's child to `run`."""
        runs: list[Run] = []
        above = run.parent
        while above is not None:
            runs.append(run)
            run = above
            above = run.parent
        runs.reverse()
        return runs

    # ------------------------------------------------------------ change

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
        known = run.keys
        if isinstance(known, bytes):
            known = run.keys = bytearray(known)
        old_end = run.end
        at_tail = ending(run, old_end)
        if at_tail:
            if run.ends is None:
                run.ends = {}
            run.ends[old_end] = at_tail
        else:
            self.index.pop(bytes(known[-KEY_BYTES:]), None)
        known += keys
        run.end = end = old_end + len(keys) // KEY_BYTES
        run.whole = (run.start, end)
        self.index[keys[-KEY_BYTES:]] = run
        run.part |= run.full
        run.full = run.expect = 0

    def trim(self, run: Run) -> None:
        """Drop the blocks at the end of the path that nobody holds or needs."""
        while run.parent is not None and not run.kids:
            if run.full:
                return
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
        run.whole = (run.start, end)
        self.index[run.key(end)] = run
        if run.ends:
            run.ends.pop(end, None)
            run.ends = run.ends or None
        for node in {**(run.l1 or {}), **(run.l2 or {}), **(run.promised or {})}:
            run.tell(node)


def ending(run: Run, position: int) -> int:
    """Copies that end at a position of the run."""
    count = 0
    for table in (run.l1, run.l2):
        if table:
            for held in table.values():
                if held[-1] == position:
                    count += 1
    return count


def _needed(run: Run) -> int:
    """Where the last block of a run without children is that anybody holds or needs."""
    needed, end = run.start, run.end
    for tip in run.tips or ():
        if tip.end > needed:
            needed = tip.end
            if needed == end:
                return end
    for table in (run.l1, run.l2):
        if table:
            for held in table.values():
                if held[-1] > needed:
                    needed = held[-1]
                    if needed == end:
                        return end
    return needed
