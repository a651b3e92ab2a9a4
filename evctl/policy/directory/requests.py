"""Requests under way: where they run, what they promise, and when references follow them.

A request keeps its path in the tree (its cursor) from arrival to end, so that what its nodes
report is found without a search.
"""

from __future__ import annotations

from evctl.policy.directory import spans
from evctl.policy.directory.counts import LEASE, Counts
from evctl.policy.directory.ledger import DECODE, PHASES, PREFILL, Branch, BranchState, Ledger
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.tallies import Tallies
from evctl.policy.directory.tree import Tree

_MOST_CLOSED = 1024


class Request:
    """A request between arrival and end. Equal by identity.

    number: order of arrival. branch: None if it has none, or comes too late to count. prompt:
    blocks of its prompt; `end` grows past it with what it generates. leases: (phase, start,
    end, node) that its transfers read, on its path.
    """

    __slots__ = (
        "branch", "end", "final", "id", "leases", "nodes", "number", "promise", "prompt", "run",
    )  # fmt: skip

    def __init__(self, request_id: str, number: int, run: Run, prompt: int) -> None:
        self.id = request_id
        self.number = number
        self.run = run
        self.end = prompt
        self.prompt = prompt
        self.branch: Branch | None = None
        self.final = False
        self.nodes: list[Node | None] = [None, None]
        self.promise: tuple[Node, int] | None = None
        self.leases: list[tuple[int, int, int, Node]] = []


class Requests:
    """All requests under way, by id."""

    def __init__(self, tree: Tree, counts: Counts, ledger: Ledger, tallies: Tallies) -> None:
        self._tree = tree
        self._counts = counts
        self._ledger = ledger
        self._tallies = tallies
        self._arrived = 0
        self.open: dict[str, Request] = {}
        self._closed: dict[str, Request] = {}
        """The last that ended: an engine may report a block after the end of its request."""

    def start(self, request_id: str, run: Run, prompt: int, branch: Branch | None) -> Request:
        """Keep its path, and count it on its branch."""
        self._arrived += 1
        request = Request(request_id, self._arrived, run, prompt)
        self.open[request_id] = request
        request.run.settle(request)
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
            self._release_leases(request, phase)
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
        self._release_leases(request, phase)
        node, branch = request.nodes[phase], request.branch
        request.nodes[phase] = None
        if node is not None and branch is not None:
            self._ledger.forget_unverified(branch, phase, self._scope(request), node)

    def grew(self, request: Request, node: Node, start: int, run: Run, end: int) -> None:
        """`node` stored [start, end) of the path that `run` ends, for this request. What goes
        on from its cursor was generated, and belongs to its branch if that has not moved on."""
        at = request.end
        if request.id in self.open and start <= at < end and meet(request.run, at, run, end) == at:
            old = request.run
            request.run.leave(request)
            request.run, request.end = run, end
            request.run.settle(request)
            if old is not run:
                self._tree.trim(old)
        branch = request.branch
        if branch is None or branch.latest != request.number:
            return
        at = branch.end
        if branch.state is BranchState.ENDED or not start <= at < end:
            return
        if at >= request.prompt and meet(branch.run, at, run, end) == at:
            self._ledger.set_context(branch, at, run, end)
            for phase in (DECODE, PREFILL):
                if request.nodes[phase] is node:
                    self._ledger.adopt(branch, phase, at, end, node)
                    break

    def reporting(self, request_id: str) -> Request | None:
        """The request of that id, under way or over for a short time only."""
        return self.open.get(request_id) or self._closed.get(request_id)

    def path_of(self, request: Request) -> tuple[Run, int] | None:
        """Its cursor; its branch's once it is over."""
        if request.id in self.open:
            return request.run, request.end
        branch = request.branch
        if branch is None or branch.state is BranchState.ENDED:
            return None
        return branch.run, branch.end

    def close(self, request: Request) -> None:
        """It is over: its path, promise and leases are let go."""
        del self.open[request.id]
        self.release(request)
        for phase in PHASES if request.leases else ():
            self._release_leases(request, phase)
        if request.branch is not None:
            request.branch.open -= 1
            self._closed[request.id] = request
            if len(self._closed) > _MOST_CLOSED:
                del self._closed[next(iter(self._closed))]
        request.run.leave(request)
        self._tree.trim(request.run)
        request.run, request.end = self._tree.root, 0

    # ------------------------------------------------------------ promises and leases

    def promise(self, request: Request, node: Node, start: int) -> None:
        """The node will hold its prompt from block `start` on."""
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
            request.leases.append((phase, start, end, node))
            self._counts.add(request.run, start, end, node, LEASE)

    def forget_node(self, node: Node) -> None:
        """The node's life is over, and with it what it promised and lent."""
        for request in self._closed.values():
            request.nodes = [None if n is node else n for n in request.nodes]
        for request in self.open.values():
            request.nodes = [None if n is node else n for n in request.nodes]
            if request.promise is not None and request.promise[0] is node:
                self.release(request)
            for lease in [lease for lease in request.leases if lease[3] is node]:
                request.leases.remove(lease)
                self._counts.add(request.run, lease[1], lease[2], node, -LEASE)

    def _release_leases(self, request: Request, phase: int) -> None:
        for lease in [lease for lease in request.leases if lease[0] == phase]:
            request.leases.remove(lease)
            self._counts.add(request.run, lease[1], lease[2], lease[3], -LEASE)

    def _promise(self, request: Request, node: Node, start: int, delta: int) -> None:
        run = request.run
        end = request.prompt
        while run.parent is not None and start < end:
            low = max(start, run.start)
            if low < end:
                table = run.promised = run.promised or {}
                steps, _ = spans.shift(table.get(node, ()), run.start, low, end, delta)
                if steps:
                    table[node] = steps
                    run.tell(node)
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
