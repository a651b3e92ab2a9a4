"""Requests under way: where they run, what they promise, and when references follow them.

A request keeps its path in the tree (its cursor) from arrival to end, so that what its nodes
report is found without a search.
"""

from __future__ import annotations

from collections import OrderedDict

from evctl.policy.directory import spans
from evctl.policy.directory.counts import LEASE, Counts
from evctl.policy.directory.ledger import DECODE, PHASES, PREFILL, Branch, BranchState, Ledger
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.tallies import Tallies
from evctl.policy.directory.tree import Tree

_MOST_CLOSED = 1024

Hint = tuple[Run, tuple[int, int], bytes]
"""Where blocks may be: the run where a path ends, two positions of the path that they are likely
to begin or end at, the parent of the path."""


class Request:
    """A request between arrival and end. Equal by identity.

    number: order of arrival. branch: None if it has none, or comes too late to count. prompt:
    blocks of its prompt; `end` grows past it with what it generates. leases: (phase, start,
    end, node) that its transfers read, on its path. root: what its first block is a child of.
    """

    __slots__ = (
        "branch", "end", "final", "id", "leases", "nodes", "number", "promise", "prompt", "root",
        "run",
    )  # fmt: skip

    def __init__(self, request_id: str, number: int, root: bytes, run: Run, prompt: int) -> None:
        self.id = request_id
        self.root = root
        self.number = number
        self.run = run
        self.end = prompt
        self.prompt = prompt
        self.branch: Branch | None = None
        self.final = False
        self.nodes: list[Node | None] = [None, None]
        self.promise: tuple[Node, int] | None = None
        self.leases: tuple[tuple[int, int, int, Node], ...] = ()


class Requests:
    """All requests under way, by id."""

    def __init__(self, tree: Tree, counts: Counts, ledger: Ledger, tallies: Tallies) -> None:
        self._tree = tree
        self._counts = counts
        self._ledger = ledger
        self._tallies = tallies
        self._arrived = 0
        self.open: dict[str, Request] = {}
        self._closed: OrderedDict[str, Request] = OrderedDict()
        """The last that ended: an engine may report a block after the end of its request."""

    def start(
        self, request_id: str, root: bytes, run: Run, prompt: int, branch: Branch | None
    ) -> Request:
        """Keep its path, and count it on its branch."""
        self._arrived += 1
        request = Request(request_id, self._arrived, root, run, prompt)
        self.open[request_id] = request
        run.settle(request)
        if branch is not None:
            request.branch = branch
            branch.open += 1
            branch.latest = request.number
        return request

    def place(self, request: Request, phase: int, node: Node) -> None:
        """It will run there: blocks of its branch that nobody holds are the node's to hold."""
        branch = request.branch
        if branch is None:
            request.nodes[phase] = node
            return
        scope = self._scope(request)
        before = request.nodes[phase]
        if before is not None and before is not node:
            self._ledger.forget_unverified(branch, phase, scope, before)
        request.nodes[phase] = node
        self._ledger.adopt(branch, phase, 0, scope, node)

    def moved(self, request: Request, phase: int) -> None:
        """Its KV is verified where it was placed: the branch's references follow."""
        if request.leases:
            self.end_leases(request, phase)
        node, branch = request.nodes[phase], request.branch
        if node is None or branch is None:
            return
        if branch.asked[phase] > request.number:
            self._tallies.late_moves += 1
            return
        branch.asked[phase] = request.number
        self._ledger.assign(branch, phase, 0, self._scope(request), node)

    def failed(self, request: Request, phase: int) -> None:
        """It did not get there; references stay where they are, and what was named in advance
        is named no more."""
        self.end_leases(request, phase)
        node, branch = request.nodes[phase], request.branch
        request.nodes[phase] = None
        if node is not None and branch is not None:
            self._ledger.forget_unverified(branch, phase, self._scope(request), node)

    def grew(self, request: Request, node: Node, start: int, run: Run, end: int) -> bool:
        """`node` stores [start, end) of the path that `run` ends, for this request. What goes
        on from its cursor was generated, and belongs to its branch if that has not moved on.
        False if that changed nothing."""
        changed = False
        at = request.end
        if start <= at < end and request.id in self.open:
            old = request.run
            if old is run or meet(old, at, run, end) == at:
                changed = True
                request.end = end
                if old is not run:
                    old.leave(request)
                    request.run = run
                    run.settle(request)
                    self._tree.trim(old)
        branch = request.branch
        if branch is None or branch.latest != request.number:
            return changed
        at = branch.end
        if not start <= at < end or at < request.prompt or branch.state is BranchState.ENDED:
            return changed
        if branch.run is run or meet(branch.run, at, run, end) == at:
            changed = True
            self._ledger.set_context(branch, at, run, end)
            for phase in (DECODE, PREFILL):
                if request.nodes[phase] is node:
                    self._ledger.adopt(branch, phase, at, end, node)
                    break
        return changed

    def reporting(self, request_id: str) -> Request | None:
        """The request of that id, under way or over for a short time only."""
        return self.open.get(request_id) or self._closed.get(request_id)

    def hint(self, request: Request) -> Hint | None:
        """Where blocks that it stores are likely to be: at its cursor, or its branch's once it
        is over."""
        prompt = request.prompt
        if request.id in self.open:
            return request.run, (request.end, prompt), request.root
        branch = request.branch
        if branch is None or branch.state is BranchState.ENDED:
            return None
        return branch.run, (branch.end, prompt), request.root

    def close(self, request: Request) -> None:
        """It is over: its path, promise and leases are let go."""
        del self.open[request.id]
        if request.promise is not None:
            self.release(request)
        if request.leases:
            for phase in PHASES:
                self.end_leases(request, phase)
        if request.branch is not None:
            request.branch.open -= 1
            self._closed[request.id] = request
            if len(self._closed) > _MOST_CLOSED:
                self._closed.popitem(last=False)
        request.run.leave(request)
        self._tree.trim(request.run)
        request.run, request.end = self._tree.root, 0

    # ------------------------------------------------------------ promises and leases

    def promise(self, request: Request, node: Node, start: int) -> None:
        """The node will hold its prompt from block `start` on."""
        if request.promise is not None:
            self.release(request)
        request.promise = (node, start)
        self._promise(request, node, start, 1)

    def release(self, request: Request) -> None:
        """That is true by now, or never will be."""
        if request.promise is None:
            return
        node, start = request.promise
        request.promise = None
        self._promise(request, node, start, -1)

    def lease(self, request: Request, phase: int, node: Node, start: int, end: int) -> None:
        """A transfer for that phase of it reads [start, end) of its path from the node."""
        end = min(end, request.prompt)
        if start < end:
            request.leases = (*request.leases, (phase, start, end, node))
            node.leased += end - start
            self._counts.add(request.run, start, end, node, LEASE)

    def end_leases(self, request: Request, phase: int) -> None:
        """Transfers for that phase of it read no more."""
        leases = request.leases
        request.leases = tuple([lease for lease in leases if lease[0] != phase])
        for its_phase, start, end, node in leases:
            if its_phase == phase:
                node.leased -= end - start
                self._counts.add(request.run, start, end, node, -LEASE)

    def forget_node(self, node: Node) -> None:
        """The node's life is over, and with it what it promised and lent."""
        for request in self._closed.values():
            request.nodes = [None if n is node else n for n in request.nodes]
        for request in self.open.values():
            request.nodes = [None if n is node else n for n in request.nodes]
            if request.promise is not None and request.promise[0] is node:
                self.release(request)
            leases = request.leases
            request.leases = tuple(lease for lease in leases if lease[3] is not node)
            for _, start, end, lender in leases:
                if lender is node:
                    node.leased -= end - start
                    self._counts.add(request.run, start, end, node, -LEASE)

    def _promise(self, request: Request, node: Node, start: int, delta: int) -> None:
        run = request.run
        end = request.prompt
        while run.parent is not None and start < end:
            low = max(start, run.start)
            if low < end:
                table = run.promised
                if table is None:
                    table = run.promised = {}
                steps, _ = spans.shift(table.get(node, ()), run.start, low, end, delta)
                if steps:
                    table[node] = steps
                    run.tell_expected(node)
                else:
                    del table[node]
                    run.expect &= ~node.bit
                    if not table:
                        run.promised, run.expect = None, 0
                end = low
            run = run.parent

    def _scope(self, request: Request) -> int:
        """Blocks of its prompt that are still those of its branch's context."""
        branch = request.branch
        if branch is None or branch.state is BranchState.ENDED:
            return 0
        if branch.latest == request.number and branch.end >= request.prompt:
            return request.prompt
        return meet(request.run, request.prompt, branch.run, branch.end)


def meet(left: Run, left_end: int, right: Run, right_end: int) -> int:
    """Blocks that two paths share, each given by its run and the position where it ends."""
    while left is not right:
        if left.start >= right.start and left.parent is not None:
            left_end = min(left_end, left.start)
            left = left.parent
        else:
            right_end = min(right_end, right.start)
            assert right.parent is not None
            right = right.parent
    return min(left_end, right_end)
