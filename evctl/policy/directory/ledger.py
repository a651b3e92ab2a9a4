"""Branches: what each refers to, as positions, and the rules that change it (design, section 3).

The one writer of references. holder(branch, phase, x) is a list of intervals of the branch's
context that name a node; `Counts` keeps how often a node's blocks are named.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from enum import StrEnum

from evctl.policy.directory import spans
from evctl.policy.directory.counts import LIVE, SUSPECT, Counts
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.tree import Tree

PREFILL, DECODE = PHASES = (0, 1)
"""Phases as indexes: enums hash too slowly for what is asked of every request."""

Held = tuple[tuple[int, int, Node], ...]
"""(start, end, node), ascending, disjoint; blocks of the context without one have no holder."""


class Kind(StrEnum):
    """How a branch came to be."""

    ROOT = "root"
    FORK = "fork"
    SUBAGENT = "sub-agent"


class BranchState(StrEnum):
    """LIVE; SUSPECT after silence; ENDED ones are remembered by id only."""

    LIVE = "live"
    SUSPECT = "suspect"
    ENDED = "ended"


class Branch:
    """A unit of context: `end` blocks of the path that `run` ends. Equal by identity.

    unit: what one of its references adds to a count. prompt_end: blocks of its last prompt; what
    follows was generated. latest: number of its last request; asked: of the last one that moved
    its references, by phase. announced: a rewrite or fork was signalled and its prompt has not
    come. open: requests under way. quiet: the list that it is in while it has none.
    """

    __slots__ = (
        "announced",
        "asked",
        "end",
        "held",
        "id",
        "kind",
        "latest",
        "open",
        "parent",
        "prompt_end",
        "quiet",
        "run",
        "seen_s",
        "state",
        "tenant",
        "unit",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        tenant: str,
        branch_id: str,
        parent: str,
        kind: Kind,
        root: Run,
        quiet: dict[Branch, None],
    ) -> None:
        self.tenant = tenant
        self.id = branch_id
        self.parent = parent
        self.kind = kind
        self.quiet = quiet
        self.state = BranchState.LIVE
        self.unit = LIVE
        self.version = 0
        self.run = root
        self.end = 0
        self.prompt_end = 0
        self.held: list[Held] = [(), ()]
        self.asked = [0, 0]
        self.latest = 0
        self.announced = False
        self.open = 0
        self.seen_s = 0.0


class Ledger:
    """All branches by (tenant, id), and the last ended ones."""

    def __init__(self, tree: Tree, counts: Counts, tombstones: int) -> None:
        self._tree = tree
        self._counts = counts
        self._most_ended = tombstones
        self.branches: dict[tuple[str, str], Branch] = {}
        self.ended: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.quiet: dict[Kind, dict[Branch, None]] = {kind: {} for kind in Kind}
        """Live branches without a request, the longest silent first."""

    # ------------------------------------------------------------ lives of branches

    def start(self, tenant: str, branch_id: str, parent: str, kind: Kind, now_s: float) -> Branch:
        """A branch with an empty context."""
        branch = Branch(tenant, branch_id, parent, kind, self._tree.root, self.quiet[kind])
        self.branches[tenant, branch_id] = branch
        branch.run.settle(branch)
        self.heard(branch, now_s)
        return branch

    def end(self, branch: Branch) -> None:
        """-1 on all of its blocks, in both phases."""
        for phase in PHASES:
            self.assign(branch, phase, 0, branch.end, None)
        del self.branches[branch.tenant, branch.id]
        branch.quiet.pop(branch, None)
        branch.state = BranchState.ENDED
        self.ended[branch.tenant, branch.id] = None
        if len(self.ended) > self._most_ended:
            self.ended.popitem(last=False)
        branch.run.leave(branch)
        self._tree.trim(branch.run)

    def heard(self, branch: Branch, now_s: float) -> None:
        """A sign of life: a suspect branch is live again."""
        branch.seen_s = now_s
        if branch.state is BranchState.SUSPECT:
            self._turn(branch, BranchState.LIVE)
        branch.quiet.pop(branch, None)
        if not branch.open:
            branch.quiet[branch] = None

    def suspect(self, branch: Branch) -> None:
        """Silent for too long: its references count less."""
        del branch.quiet[branch]
        self._turn(branch, BranchState.SUSPECT)

    def _turn(self, branch: Branch, state: BranchState) -> None:
        before = branch.unit
        branch.state = state
        branch.unit = LIVE if state is BranchState.LIVE else SUSPECT
        for held in branch.held:
            for start, end, node in held:
                self._counts.add(branch.run, start, end, node, branch.unit - before)

    # ------------------------------------------------------------ contexts

    def set_context(self, branch: Branch, keep: int, run: Run, end: int) -> None:
        """The context is position `end` of `run` from now on; the first `keep` blocks are the
        old ones. -1 on blocks dropped; blocks added have no holder yet."""
        if keep < branch.end:
            for phase in PHASES:
                self.assign(branch, phase, keep, branch.end, None)
        old = branch.run
        if old is run:
            shrunk = end < branch.end
            branch.end = end
            if shrunk:
                self._tree.trim(run)
            return
        branch.run.leave(branch)
        branch.run, branch.end = run, end
        branch.run.settle(branch)
        self._tree.trim(old)

    def copy_holders(self, source: Branch, target: Branch) -> None:
        """A fork refers to what its parent refers to, where the parent does."""
        for phase in PHASES:
            for start, end, node in source.held[phase]:
                self.assign(target, phase, start, end, node)

    # ------------------------------------------------------------ references

    def assign(self, branch: Branch, phase: int, start: int, end: int, node: Node | None) -> None:
        """holder(branch, phase, x) = node for x in [start, end); None: nobody."""
        if start >= end:
            return
        held = branch.held[phase]
        counts, run, unit = self._counts, branch.run, branch.unit
        if held and held[-1][2] is node and held[-1][0] <= start <= held[-1][1]:
            low, high, _ = held[-1]  # nearly always: the same node holds what was added
            if high < end:
                counts.add(run, high, end, held[-1][2], unit)
                grown = (low, end, held[-1][2])
                branch.held[phase] = (*held[:-1], grown) if len(held) > 1 else (grown,)
            return
        before: list[tuple[int, int, Node]] = []
        after: list[tuple[int, int, Node]] = []
        at = start
        for low, high, holder in held:
            if high <= start:
                before.append((low, high, holder))
                continue
            if low >= end:
                after.append((low, high, holder))
                continue
            if low < start:
                before.append((low, start, holder))
            if high > end:
                after.append((end, high, holder))
            first, last = max(low, start), min(high, end)
            if holder is node:
                if at < first:
                    counts.add(run, at, first, node, unit)
                at = last
            else:
                counts.add(run, first, last, holder, -unit)
        if node is not None and at < end:
            counts.add(run, at, end, node, unit)
        between = [] if node is None else [(start, end, node)]
        branch.held[phase] = _merged(before + between + after)
        self._name(branch, [holder for _, _, holder in held], node)

    def adopt(self, branch: Branch, phase: int, start: int, end: int, node: Node) -> None:
        """Name the node for the blocks of [start, end) that nobody holds in that phase."""
        held = branch.held[phase]
        if len(held) == 1 and held[0][0] <= start:
            low, high, holder = held[0]
            if high >= end:
                return
            if holder is node and high >= start:
                self._counts.add(branch.run, high, end, node, branch.unit)
                branch.held[phase] = ((low, end, node),)
                return
        for low, high in _free(held, start, end):
            self.assign(branch, phase, low, high, node)

    def forget_unverified(self, branch: Branch, phase: int, end: int, node: Node) -> None:
        """Names for the first `end` blocks that point at the node, which has not stored them."""
        for low, high, holder in branch.held[phase]:
            if holder is not node or low >= end:
                continue
            high = min(high, end)
            run = branch.run
            while run.parent is not None and run.end > low:
                named = spans.clip((run.start, run.end), low, high)
                for first, last in spans.pairs(spans.minus(named, run.present(node))):
                    self.assign(branch, phase, first, last, None)
                run = run.parent

    def drop_node(self, node: Node) -> None:
        """The node's life is over: all references to it go, and nobody is told, for its copies
        go too. Leases and promises are gone already."""
        done: dict[Run, int] = {}
        for branch in node.named:
            for phase in PHASES:
                held = branch.held[phase]
                if len(held) == 1:
                    start, _, holder = held[0]
                    if holder is not node:
                        continue
                    branch.held[phase] = ()
                else:
                    starts = [start for start, _, holder in held if holder is node]
                    if not starts:
                        continue
                    branch.held[phase] = tuple([each for each in held if each[2] is not node])
                    start = starts[0]
                run = branch.run
                while run.end > start and done.get(run, run.end) > start:
                    done[run] = start
                    refs = run.refs
                    if refs is not None and refs.pop(node, ()) and not refs:
                        run.refs = None
                    run = run.parent  # type: ignore[assignment]
        node.named = {}

    def forget_node(self, node: Node, phases: tuple[int, ...]) -> Iterator[Branch]:
        """Drop every reference to the node in those phases; yields the branches touched."""
        for branch in list(node.named):
            touched = False
            for phase in phases:
                for start, end, holder in branch.held[phase]:
                    if holder is node:
                        self.assign(branch, phase, start, end, None)
                        touched = True
            if touched:
                yield branch

    def _name(self, branch: Branch, old: list[Node], node: Node | None) -> None:
        if node is not None:
            node.named[branch] = None
        for holder in old:
            if holder is not node and not any(
                other is holder for held in branch.held for _, _, other in held
            ):
                holder.named.pop(branch, None)


def _free(held: Held, start: int, end: int) -> list[tuple[int, int]]:
    free = []
    for low, high, _ in held:
        if low >= end:
            break
        if start < low:
            free.append((start, low))
        start = max(start, high)
    if start < end:
        free.append((start, end))
    return free


def _merged(held: list[tuple[int, int, Node]]) -> Held:
    merged: list[tuple[int, int, Node]] = []
    for start, end, node in held:
        if merged and merged[-1][2] is node and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end, node)
        else:
            merged.append((start, end, node))
    return tuple(merged)
