"""What operators ask of the directory. Reads only; values are frozen and sorted by id."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from evctl.policy.directory import spans
from evctl.policy.directory.audit import all_runs
from evctl.policy.directory.counts import class_of, leases, lives, suspects
from evctl.policy.directory.directory import Directory
from evctl.policy.directory.ledger import PHASES, Branch
from evctl.policy.directory.runs import Node, Run

PHASE_NAMES = ("P", "D")


class BranchRow(msgspec.Struct, frozen=True):
    """One line of a list of branches. blocks: of its context. holders: node -> blocks, by
    phase, whether or not a copy is there."""

    tenant: str
    branch: str
    parent: str
    kind: str
    state: str
    version: int
    blocks: int
    open_requests: int
    seen_s: float
    holders: dict[str, dict[str, int]]


class Interval(msgspec.Struct, frozen=True):
    """Blocks start..end of a context that a branch holds at a node. verified: of those, how
    many the node has reported stored."""

    start: int
    end: int
    node: str
    verified: int


class BranchDetail(msgspec.Struct, frozen=True):
    """A branch with its intervals by phase and its children."""

    row: BranchRow
    tip: bytes
    intervals: dict[str, tuple[Interval, ...]]
    children: tuple[str, ...]


class Copy(msgspec.Struct, frozen=True):
    """A block on a node: tiers that hold it, its class, and what refers to it."""

    node: str
    tiers: tuple[int, ...]
    block_class: int
    live: int
    suspect: int
    leases: int
    by_phase: dict[str, int]


class BlockView(msgspec.Struct, frozen=True):
    """A block by key: its position, the nodes that hold it, the branches whose context it is
    in as (tenant, id), and the requests that promise it."""

    key: bytes
    position: int
    copies: tuple[Copy, ...]
    branches: tuple[tuple[str, str], ...]
    promised_by: tuple[str, ...]


class TreeSummary(msgspec.Struct, frozen=True):
    """Sizes. copies: (block, node) pairs. classes: node -> its blocks of class 0, 1, 2."""

    runs: int
    blocks: int
    copies: int
    deepest: int
    index: int
    branches: int
    live: int
    suspect: int
    ended: int
    requests: int
    classes: dict[str, tuple[int, int, int]]
    tiers: dict[str, tuple[int, int]]


def branches(
    directory: Directory,
    *,
    tenant: str | None = None,
    state: str | None = None,
    kind: str | None = None,
    node: str | None = None,
    after: tuple[str, str] = ("", ""),
    limit: int = 100,
) -> list[BranchRow]:
    """Branches in the order of (tenant, id), those after `after`, at most `limit`."""
    rows: list[BranchRow] = []
    for key in sorted(key for key in directory.ledger.branches if key > after):
        branch = directory.ledger.branches[key]
        if tenant not in (None, branch.tenant) or state not in (None, branch.state.value):
            continue
        row = _row(branch)
        if kind not in (None, row.kind):
            continue
        if node is not None and not any(node in held for held in row.holders.values()):
            continue
        rows.append(row)
        if len(rows) == limit:
            break
    return rows


def branch(directory: Directory, tenant: str, branch_id: str) -> BranchDetail | None:
    """One branch; None if it is not known, or has ended."""
    found = directory.ledger.branches.get((tenant, branch_id))
    if found is None:
        return None
    intervals = {
        PHASE_NAMES[phase]: tuple(
            Interval(start, end, node.name, _verified(found.run, start, end, node))
            for start, end, node in found.held[phase]
        )
        for phase in PHASES
    }
    children = sorted(
        b.id
        for b in directory.ledger.branches.values()
        if (b.tenant, b.parent) == (tenant, branch_id)
    )
    tip = found.run.key(found.end) if found.end else b""
    return BranchDetail(_row(found), tip, intervals, tuple(children))


def block(directory: Directory, key: bytes) -> BlockView | None:
    """A block by its key; None if the tree does not know it. Searches all runs:
    0.4 us each and 0.1 ms a megabyte of keys, then all branches and open requests."""
    for run in all_runs(directory):
        position = run.find(key)
        if position:
            break
    else:
        return None
    users = [b for b in directory.ledger.branches.values() if _passes(b, run, position)]
    promised = sorted(
        request.id
        for request in directory.requests.open.values()
        if request.promise is not None
        and request.promise[1] < position <= request.prompt
        and _on_path(request.run, run)
    )
    copies = [_copy(run, position, node, users) for node in run.holders()]
    return BlockView(
        key=key,
        position=position,
        copies=tuple(sorted((c for c in copies if c.tiers), key=lambda c: c.node)),
        branches=tuple(sorted((b.tenant, b.id) for b in users)),
        promised_by=tuple(promised),
    )


def reference_histogram(directory: Directory) -> dict[int, int]:
    """References (live and suspect) of a copy -> copies that have as many."""
    histogram: dict[int, int] = {}
    for run in all_runs(directory):
        for _, low, high, count in _counted(run):
            refs = lives(count) + suspects(count)
            histogram[refs] = histogram.get(refs, 0) + high - low
    return dict(sorted(histogram.items()))


def summary(directory: Directory) -> TreeSummary:
    """Sizes of everything."""
    nodes = sorted(directory.nodes.values(), key=lambda node: node.name)
    states = [b.state.value for b in directory.ledger.branches.values()]
    return TreeSummary(
        runs=directory.tree.runs,
        blocks=directory.tree.blocks,
        copies=sum(sum(node.classes) for node in nodes),
        deepest=max((run.end for run in all_runs(directory)), default=0),
        index=len(directory.tree.index),
        branches=len(states),
        live=states.count("live"),
        suspect=states.count("suspect"),
        ended=len(directory.ledger.ended),
        requests=len(directory.requests.open),
        classes={n.name: (n.classes[0], n.classes[1], n.classes[2]) for n in nodes},
        tiers={n.name: (n.blocks[1], n.blocks[2]) for n in nodes},
    )


class Piece(msgspec.Struct, frozen=True):
    """Blocks of one path on one node that have one class: `keys` from position `start` on."""

    start: int
    block_class: int
    keys: bytes


def copies_of(directory: Directory, node: str, block_class: int | None = None) -> Iterator[Piece]:
    """All copies of a node, in any tier, in the order in which their runs came to it; of one
    class, or of all. What a node that resynchronises is sent."""
    life = directory.nodes.get(node)
    for run in list(life.runs) if life is not None else ():
        for holder, low, high, count in _counted(run):
            found = class_of(count)
            if holder is life and block_class in (None, found):
                yield Piece(low, found, run.slice(low, high))


def _counted(run: Run) -> Iterator[tuple[Node, int, int, int]]:
    """(node, start, end, count) of every piece of every copy in the run."""
    for node in run.holders():
        steps = (run.refs or {}).get(node, ())
        for low, high in spans.pairs(run.present(node)):
            for start, end, count in spans.within(steps, run.start, low, high):
                yield node, start, end, count


def _row(found: Branch) -> BranchRow:
    holders: dict[str, dict[str, int]] = {}
    for phase in PHASES:
        blocks: dict[str, int] = {}
        for start, end, node in found.held[phase]:
            blocks[node.name] = blocks.get(node.name, 0) + end - start
        holders[PHASE_NAMES[phase]] = dict(sorted(blocks.items()))
    return BranchRow(
        tenant=found.tenant,
        branch=found.id,
        parent=found.parent,
        kind=found.kind.value,
        state=found.state.value,
        version=found.version,
        blocks=found.end,
        open_requests=found.open,
        seen_s=found.seen_s,
        holders=holders,
    )


def _verified(run: Run, start: int, end: int, node: Node) -> int:
    total = 0
    while run.parent is not None and run.end > start:
        total += spans.size(spans.clip(run.present(node), start, end))
        run = run.parent
    return total


def _copy(run: Run, position: int, node: Node, users: list[Branch]) -> Copy:
    at = position - 1
    steps = (run.refs or {}).get(node, ())
    ((_, _, count),) = spans.within(steps, run.start, at, position)
    by_phase = {
        PHASE_NAMES[phase]: sum(
            holder is node and start <= at < end
            for user in users
            for start, end, holder in user.held[phase]
        )
        for phase in PHASES
    }
    tiers = tuple(tier for tier in (1, 2) if spans.clip(run.held(node, tier), at, position))
    return Copy(
        node.name, tiers, class_of(count), lives(count), suspects(count), leases(count), by_phase
    )


def _passes(user: Branch, run: Run, position: int) -> bool:
    return user.end >= position and _on_path(user.run, run)


def _on_path(tip: Run, run: Run) -> bool:
    at: Run | None = tip
    while at is not None and at.start >= run.start:
        if at is run:
            return True
        at = at.parent
    return False
