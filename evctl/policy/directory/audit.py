"""Recompute everything that the directory keeps up to date, and say what does not agree."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from evctl.policy.directory import spans
from evctl.policy.directory.counts import LEASE, class_of
from evctl.policy.directory.directory import Directory
from evctl.policy.directory.ledger import PHASES, Branch, BranchState
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.spans import Steps

Table = dict[tuple[Run, Node], Steps]


def check(directory: Directory) -> list[str]:
    """Violations; empty when every count, mask and index entry is what it must be.

    Takes time in proportion to the tree: for tests, for `evctl kv check` and for idle moments.
    Prunes first what a lost node left behind.
    """
    directory.tree.prune(len(directory.tree.doubtful) or 1)
    runs = list(all_runs(directory))
    problems = [p for run in runs for p in _check_run(directory, run)]
    problems += _check_tree(directory, runs)
    problems += _check_index(directory, runs)
    problems += _check_nodes(directory, runs)
    problems += _check_branches(directory)
    kept = {(run, n): steps for run in runs for n, steps in (run.refs or {}).items()}
    problems += _differences("references", _recount(directory), kept)
    kept = {(run, n): steps for run in runs for n, steps in (run.promised or {}).items()}
    problems += _differences("promises", _promises(directory), kept)
    return problems


def all_runs(directory: Directory) -> Iterator[Run]:
    """Every run but the root, parents first."""
    stack = [directory.tree.root]
    while stack:
        run = stack.pop()
        if run.parent is not None:
            yield run
        stack.extend((run.kids or {}).values())


def _name(run: Run) -> str:
    return f"run {run.key(run.end).hex()[:8]} [{run.start}, {run.end})"


def _check_run(directory: Directory, run: Run) -> list[str]:
    problems = []
    parent = run.parent
    assert parent is not None
    if run.end - run.start != len(run.keys) // 16 or run.start >= run.end:
        problems.append(f"{_name(run)} holds {len(run.keys)} bytes")
    if run.whole != (run.start, run.end):
        problems.append(f"{_name(run)} says that all of it is {run.whole}")
    if run.start != parent.end:
        problems.append(f"{_name(run)} is below one that ends at {parent.end}")
    if parent.kids is None or parent.kids.get(bytes(run.keys[:16])) is not run:
        problems.append(f"{_name(run)} is not among its parent's")
    tables = (run.kids, run.ends, run.tips, run.refs, run.promised, run.l1, run.l2)
    if any(table is not None and not table for table in tables):
        problems.append(f"{_name(run)} keeps an empty table")
    held_to = max((s[-1] for tier in run.tiers for s in tier.values()), default=0)
    tips_to = max((tip.end for tip in run.tips or ()), default=0)
    if not run.kids and max(held_to, tips_to) != run.end:
        problems.append(f"{_name(run)} is needed up to {max(held_to, tips_to)} only")
    if run.kids and len(run.kids) == 1:
        problems.append(f"{_name(run)} was not joined with its child")
    for tip in run.tips or ():
        if tip.run is not run or not run.start < tip.end <= run.end:
            problems.append(f"{_name(run)} has a tip that is elsewhere, at {tip.end}")
    for tier in run.tiers:
        for node, held in tier.items():
            if node not in directory.nodes.values():
                problems.append(f"{_name(run)} has copies on a past life of {node.name}")
            if not _is_spans(held, run.start, run.end):
                problems.append(f"{_name(run)} has {held} on {node.name}")
    return problems + _check_masks(run, directory)


def _check_masks(run: Run, directory: Directory) -> list[str]:
    whole = (run.start, run.end)
    full = part = expect = 0
    for node in directory.nodes.values():
        present = run.present(node)
        full |= node.bit if present == whole else 0
        part |= node.bit if present and present != whole else 0
        if run.promised and run.expected(node) == whole:
            expect |= node.bit
    problems = []
    if (full, part) != (run.full, run.part):
        problems.append(f"{_name(run)} has masks {run.full:b}, {run.part:b}")
    if (expect | full if run.promised else 0) != (
        run.expect | full if run.promised else run.expect
    ):
        problems.append(f"{_name(run)} has expect {run.expect:b}, not {expect:b}")
    return problems


def _is_spans(held: spans.Spans, start: int, end: int) -> bool:
    ascending = all(low < high for low, high in pairwise(held))
    return bool(held) and len(held) % 2 == 0 and ascending and start <= held[0] <= held[-1] <= end


def _check_tree(directory: Directory, runs: list[Run]) -> list[str]:
    tree = directory.tree
    blocks = sum(run.end - run.start for run in runs)
    if (tree.runs, tree.blocks) == (len(runs), blocks):
        return []
    return [f"{tree.runs} runs of {tree.blocks} blocks counted, {len(runs)} of {blocks} are there"]


def _check_index(directory: Directory, runs: list[Run]) -> list[str]:
    wanted: dict[bytes, Run] = {}
    problems = []
    for run in runs:
        wanted[run.key(run.end)] = run
        ends: dict[int, int] = {}
        for tier in run.tiers:
            for held in tier.values():
                for end in held[1::2]:
                    if end != run.end:
                        ends[end] = ends.get(end, 0) + 1
        wanted.update({run.key(end): run for end in ends})
        if ends != (run.ends or {}):
            problems.append(f"{_name(run)} counts ends {run.ends}, not {ends}")
    if wanted != directory.tree.index:
        odd = len(wanted.keys() ^ directory.tree.index.keys())
        problems.append(f"{odd} keys of the index are missing or stale")
    return problems


def _check_nodes(directory: Directory, runs: list[Run]) -> list[str]:
    problems = []
    for node in directory.nodes.values():
        held = {run for run in runs if run.present(node)}
        if held != set(node.runs):
            problems.append(f"{node.name} lists {len(node.runs)} runs and holds {len(held)}")
        blocks, classes = [0, 0, 0], [0, 0, 0]
        for run in held:
            for tier in (1, 2):
                blocks[tier] += spans.size(run.held(node, tier))
            steps = (run.refs or {}).get(node, ())
            for low, high in spans.pairs(run.present(node)):
                for start, end, count in spans.within(steps, run.start, low, high):
                    classes[class_of(count)] += end - start
        if blocks != node.blocks:
            problems.append(f"{node.name} counts blocks {node.blocks}, not {blocks}")
        if classes != node.classes:
            problems.append(f"{node.name} counts classes {node.classes}, not {classes}")
        lent = _leased(directory, node)
        if lent != node.leased:
            problems.append(f"{node.name} counts {node.leased} blocks leased, not {lent}")
        named = {b for b in directory.ledger.branches.values() if _names(b, node)}
        if named != set(node.named):
            problems.append(f"{node.name} is named by {len(named)}, knows {len(node.named)}")
    return problems


def _leased(directory: Directory, node: Node) -> int:
    leases = [lease for request in directory.requests.open.values() for lease in request.leases]
    return sum(end - start for _, start, end, lender in leases if lender is node)


def _names(branch: Branch, node: Node) -> bool:
    return any(holder is node for held in branch.held for _, _, holder in held)


def _check_branches(directory: Directory) -> list[str]:
    problems = []
    alive = set(directory.nodes.values())
    open_by: dict[Branch, int] = {}
    for request in directory.requests.open.values():
        if request.branch is not None:
            open_by[request.branch] = open_by.get(request.branch, 0) + 1
        if request not in (request.run.tips or {}):
            problems.append(f"request {request.id} is not kept where it ends")
    for key, branch in directory.ledger.branches.items():
        if key in directory.ledger.ended or key != (branch.tenant, branch.id):
            problems.append(f"branch {branch.id} is live and ended")
        if branch not in (branch.run.tips or {}):
            problems.append(f"branch {branch.id} is not kept where it ends")
        if branch.open != open_by.get(branch, 0):
            problems.append(f"branch {branch.id} counts {branch.open} requests")
        quiet = branch in directory.ledger.quiet[branch.kind]
        if quiet != (branch.state is BranchState.LIVE and not branch.open):
            problems.append(f"branch {branch.id} is listed as quiet or is not, wrongly")
        for phase in PHASES:
            flat = [at for start, end, _ in branch.held[phase] for at in (start, end)]
            apart = all(low <= high for low, high in pairwise(flat))
            if flat and not (apart and flat[0] >= 0 and flat[-1] <= branch.end):
                problems.append(f"branch {branch.id} has holders {flat} of {branch.end}")
            if any(holder not in alive for _, _, holder in branch.held[phase]):
                problems.append(f"branch {branch.id} names a node that is gone")
    return problems


def _recount(directory: Directory) -> Table:
    table: Table = {}
    for branch in directory.ledger.branches.values():
        for held in branch.held:
            for start, end, node in held:
                _count(table, branch.run, start, end, node, branch.unit)
    for request in directory.requests.open.values():
        for _, start, end, node in request.leases:
            _count(table, request.run, start, end, node, LEASE)
    return table


def _promises(directory: Directory) -> Table:
    table: Table = {}
    for request in directory.requests.open.values():
        if request.promise is not None:
            node, start = request.promise
            _count(table, request.run, start, request.prompt, node, 1)
    return table


def _count(table: Table, run: Run, start: int, end: int, node: Node, unit: int) -> None:
    at: Run | None = run
    while at is not None and at.parent is not None:
        low, high = max(start, at.start), min(end, at.end)
        if low < high:
            steps, _ = spans.shift(table.get((at, node), ()), at.start, low, high, unit)
            table[at, node] = steps
        at = at.parent


def _differences(what: str, wanted: Table, kept: Table) -> list[str]:
    return [
        f"{what} of {node.name} in {_name(run)}: {kept.get((run, node), ())}, "
        f"recounted {wanted.get((run, node), ())}"
        for run, node in {**wanted, **kept}
        if wanted.get((run, node), ()) != kept.get((run, node), ())
    ]
