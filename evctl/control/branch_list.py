"""Branches as others see them: rows, pages, one in detail, and families."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from evctl.control.walks import Walks
from evctl.core.kv_status import (
    BranchDetail,
    BranchPage,
    BranchPlace,
    BranchRow,
    BranchTree,
    HeldInterval,
    TreeRow,
)
from evctl.policy.directory import BranchState, Directory, spans
from evctl.policy.directory.ledger import Branch
from evctl.policy.directory.runs import Node, Run

MOST_ROWS: Final = 1_000
"""Of a page, of a tree, and children in a detail."""
MOST_ANCESTORS: Final = 100
_AT_ONCE: Final = 64
"""Branches looked at in one step of a walk."""
PHASES: Final = ("P", "D")


class Wanted(NamedTuple):
    """Which branches, in which order. sort: name, blocks (largest first) or silent (longest
    first). after: the last row of the page before. None filters nothing."""

    tenant: str | None = None
    state: str | None = None
    kind: str | None = None
    node: str | None = None
    prefix: str = ""
    sort: str = "name"
    after: BranchPlace | None = None
    limit: int = 100


class BranchList:
    """Reads the ledger; changes nothing. clock: that of the directory's `seen_s`."""

    def __init__(self, directory: Directory, walks: Walks, clock: Callable[[], float]) -> None:
        self._directory = directory
        self._walks = walks
        self._clock = clock

    async def page(self, wanted: Wanted) -> BranchPage:
        """Branches that end or appear while it is made may be missing."""
        found = _Page(self._directory, wanted, self._clock())
        await self._walks.take(found.walk())
        return found.made()

    async def detail(self, tenant: str, branch: str) -> BranchDetail | None:
        """None for a branch that is not known, or has ended."""
        families = _Families(self._directory, tenant)
        await self._walks.take(families.walk())
        children = sorted(families.children.get(branch, ()))
        # Asked last: the rest is of this moment, and a branch that ended meanwhile is not known.
        found = self.known(tenant, branch)
        if found is None:
            return None
        return BranchDetail(
            row=found.row,
            tip=found.tip,
            intervals=found.intervals,
            children=tuple(children[:MOST_ROWS]),
            children_total=len(children),
        )

    def known(self, tenant: str, branch: str) -> BranchDetail | None:
        """As `detail`, without children: costs no walk."""
        ledger = self._directory.ledger
        found = ledger.branches.get((tenant, branch))
        if found is None:
            return None
        tip = found.run.key(found.end).hex() if found.end else ""
        intervals = {
            name: tuple(
                HeldInterval(low, high, node.name, _stored(found.run, low, high, node))
                for low, high, node in held
            )
            for name, held in zip(PHASES, found.held, strict=True)
        }
        return BranchDetail(row_of(found, self._clock()), tip, intervals)

    async def tree(self, tenant: str, branch: str) -> BranchTree | None:
        """None for a branch that is neither known nor remembered."""
        ledger = self._directory.ledger
        if (tenant, branch) not in ledger.branches and (tenant, branch) not in ledger.ended:
            return None
        families = _Families(self._directory, tenant)
        await self._walks.take(families.walk())
        rows: list[TreeRow] = []
        left_out = 0

        def gather() -> Iterator[None]:
            nonlocal left_out
            above = self._ancestors(tenant, branch)
            rows.extend(TreeRow(at, self._row(tenant, name)) for at, name in enumerate(above))
            stack = [(len(above), branch)]
            seen = set(above)  # two branches may name each other as parents
            while stack:
                depth, name = stack.pop()
                if name in seen:
                    continue
                seen.add(name)
                if len(rows) < MOST_ROWS:
                    rows.append(TreeRow(depth, self._row(tenant, name)))
                else:
                    left_out += 1
                below = sorted(families.children.get(name, ()), reverse=True)
                stack.extend((depth + 1, child) for child in below)
                if len(seen) % _AT_ONCE == 0:
                    yield

        await self._walks.take(gather())
        return BranchTree(tenant, branch, tuple(rows), left_out)

    def _ancestors(self, tenant: str, branch: str) -> list[str]:
        """Names from the topmost known one down to the parent."""
        branches = self._directory.ledger.branches
        above: list[str] = []
        at = branches.get((tenant, branch))
        while at is not None and at.parent and at.parent not in (*above, branch):
            above.append(at.parent)
            if len(above) == MOST_ANCESTORS:
                break
            at = branches.get((tenant, at.parent))
        above.reverse()
        return above

    def _row(self, tenant: str, branch: str) -> BranchRow:
        ledger = self._directory.ledger
        found = ledger.branches.get((tenant, branch))
        if found is not None:
            return row_of(found, self._clock())
        state = "ended" if (tenant, branch) in ledger.ended else "unknown"
        return BranchRow(tenant, branch, "", "", state, 0, 0, 0, 0.0)


class _Page:
    """The walk over all branches that keeps the first `limit` rows after a place."""

    def __init__(self, directory: Directory, wanted: Wanted, now_s: float) -> None:
        self._wanted = wanted
        self._now_s = now_s
        # A list, for the ledger changes between the slices of the walk. Those that name a node
        # are known to it.
        life = directory.nodes.get(wanted.node) if wanted.node is not None else None
        if wanted.node is None:
            self._branches = list(directory.ledger.branches.values())
        else:
            self._branches = list(life.named) if life is not None else []
        self._total = len(directory.ledger.branches)
        self._matching = 0
        self._after = 0
        self._best: list[tuple[BranchPlace, Branch]] = []
        """The first ones so far and some more; `_worst` is the last that may stay."""
        self._worst: BranchPlace | None = None

    def walk(self) -> Iterator[None]:
        for start in range(0, len(self._branches), _AT_ONCE):
            fresh = [
                (self._place(branch), branch)
                for branch in self._branches[start : start + _AT_ONCE]
                if self._passes(branch)
            ]
            self._matching += len(fresh)
            after = self._wanted.after
            if after is not None:
                fresh = [pair for pair in fresh if pair[0] > after]
            self._after += len(fresh)
            self._keep(fresh)
            yield

    def made(self) -> BranchPage:
        """The page, rows as they are now."""
        self._cut()
        rows = tuple(row_of(branch, self._now_s) for _, branch in self._best)
        follow = self._after > len(rows) and self._best
        return BranchPage(rows, self._best[-1][0] if follow else None, self._matching, self._total)

    def _keep(self, fresh: list[tuple[BranchPlace, Branch]]) -> None:
        if self._worst is not None:
            fresh = [pair for pair in fresh if pair[0] < self._worst]
        self._best += fresh
        if len(self._best) > 2 * self._wanted.limit + _AT_ONCE:
            self._cut()

    def _cut(self) -> None:
        self._best.sort(key=_first)
        del self._best[self._wanted.limit :]
        if len(self._best) == self._wanted.limit:
            self._worst = self._best[-1][0]

    def _passes(self, branch: Branch) -> bool:
        wanted = self._wanted
        return (
            branch.state is not BranchState.ENDED
            and wanted.tenant in (None, branch.tenant)
            and wanted.state in (None, branch.state.value)
            and wanted.kind in (None, branch.kind.value)
            and branch.id.startswith(wanted.prefix)
        )

    def _place(self, branch: Branch) -> BranchPlace:
        figure = 0.0
        if self._wanted.sort == "blocks":
            figure = -branch.end
        elif self._wanted.sort == "silent":
            figure = branch.seen_s
        return BranchPlace(figure, branch.tenant, branch.id)


def _first(pair: tuple[BranchPlace, Branch]) -> BranchPlace:
    return pair[0]


class _Families:
    """The walk over all branches of a tenant that finds whose children they are."""

    def __init__(self, directory: Directory, tenant: str) -> None:
        self._tenant = tenant
        self._branches = list(directory.ledger.branches.values())
        self.children: dict[str, list[str]] = {}

    def walk(self) -> Iterator[None]:
        for start in range(0, len(self._branches), _AT_ONCE):
            for branch in self._branches[start : start + _AT_ONCE]:
                if branch.parent and branch.tenant == self._tenant:
                    self.children.setdefault(branch.parent, []).append(branch.id)
            yield


def row_of(branch: Branch, now_s: float) -> BranchRow:
    """A branch as it is now."""
    holders: dict[str, dict[str, int]] = {}
    for name, held in zip(PHASES, branch.held, strict=True):
        blocks: dict[str, int] = {}
        for start, end, node in held:
            blocks[node.name] = blocks.get(node.name, 0) + end - start
        holders[name] = dict(sorted(blocks.items()))
    return BranchRow(
        tenant=branch.tenant,
        branch=branch.id,
        parent=branch.parent,
        kind=branch.kind.value,
        state=branch.state.value,
        version=branch.version,
        blocks=branch.end,
        open_requests=branch.open,
        silent_s=max(0.0, now_s - branch.seen_s),
        holders=holders,
    )


def _stored(run: Run, start: int, end: int, node: Node) -> int:
    """How many blocks of [start, end) of the path that `run` ends the node has."""
    total = 0
    at: Run | None = run
    while at is not None and at.parent is not None and at.end > start:
        total += spans.size(spans.clip(at.present(node), start, end))
        at = at.parent
    return total
