"""What operators and gateways ask of the KV directory, from the writer's state."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from evctl.control.block_search import BlockSearch
from evctl.control.branch_list import BranchList
from evctl.control.references import ReferenceCounts
from evctl.control.walks import Walks
from evctl.core.kv_status import KvStatus, KvSummary, NodeBlocks
from evctl.policy.directory import BranchState
from evctl.policy.state import ClusterState


class KvBoard:
    """Reads everything, changes nothing. clock: that of the state's times.

    `status` and `summary` cost time in proportion to nodes and open requests, not to branches
    or blocks; what looks through all of these does so in slices.
    """

    def __init__(self, state: ClusterState, clock: Callable[[], float]) -> None:
        self._state = state
        walks = Walks()
        self.branches = BranchList(state.directory, walks, clock)
        self.blocks = BlockSearch(state.directory, walks)
        # Its own clock: counting is timed, and the state's clock may be one that a test winds.
        self.references = ReferenceCounts(state.directory, time.perf_counter)

    def status(self) -> KvStatus:
        """In a few figures."""
        directory = self._state.directory
        ledger = directory.ledger
        # Every live branch is quiet or has a request under way; counting states would take a
        # look at every branch.
        busy = {
            request.branch
            for request in directory.requests.open.values()
            if request.branch is not None and request.branch.state is BranchState.LIVE
        }
        live = sum(len(quiet) for quiet in ledger.quiet.values()) + len(busy)
        references = self.references.buckets()
        return KvStatus(
            copies=sum(sum(node.classes) for node in directory.nodes.values()),
            tree_blocks=directory.tree.blocks,
            live=live,
            suspect=len(ledger.branches) - live,
            ended=len(ledger.ended),
            references=references,
            references_age_s=self.references.age_s,
        )

    def of_node(self, name: str) -> NodeBlocks | None:
        """None for a node that is not there."""
        node = self._state.directory.nodes.get(name)
        if node is None:
            return None
        unreferenced, suspect, live = node.classes
        return NodeBlocks(name, (unreferenced, suspect, live), node.blocks[1], node.blocks[2])

    def summary(self) -> KvSummary:
        directory = self._state.directory
        found = [self.of_node(name) for name in sorted(directory.nodes)]
        return KvSummary(
            status=self.status(),
            runs=directory.tree.runs,
            requests=len(directory.requests.open),
            nodes=tuple(blocks for blocks in found if blocks is not None),
            tallies=msgspec.structs.asdict(directory.tallies),
        )

    def close(self) -> None:
        self.references.close()
