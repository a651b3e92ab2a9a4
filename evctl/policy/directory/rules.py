"""What a signal does to a branch: the rows of the table in section 3 that harnesses cause."""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from evctl.policy.directory.ledger import DECODE, PREFILL, Branch, BranchState, Kind, Ledger
from evctl.policy.directory.runs import Node, Run
from evctl.policy.directory.signal import DirectoryConfig, Signal
from evctl.policy.directory.tallies import Tallies

_KINDS: Final = {"fork": Kind.FORK, "spawn": Kind.SUBAGENT}


class Rules:
    """New, extended, rewritten, forked, silent and ended branches."""

    def __init__(self, ledger: Ledger, tallies: Tallies, config: DirectoryConfig) -> None:
        self._ledger = ledger
        self._tallies = tallies
        self._config = config

    def branch_of(self, tenant: str, signal: Signal | None, now_s: float) -> Branch | None:
        """The branch that a request counts on, made if it is new; None if it counts nowhere."""
        if signal is None or not signal.branch:
            return None
        key = (tenant, signal.branch)
        branch = self._ledger.branches.get(key)
        if branch is None:
            if key in self._ledger.ended:
                self._tallies.ended_branch += 1
                return None
            kind = _KINDS.get(signal.op, Kind.ROOT)
            if signal.kind == "subagent":
                kind = Kind.SUBAGENT
            branch = self._ledger.start(tenant, signal.branch, signal.parent, kind, now_s)
            branch.version = signal.version or 0
        elif signal.version is not None and signal.version < branch.version:
            self._tallies.late_version += 1
            return None
        return branch

    def resume(self, branch: Branch, keep: int, run: Run, total: int, version: int | None) -> None:
        """The branch's prompt has come: extended, or rewritten in one of three ways. keep:
        blocks that it shares with the context."""
        rises = version is not None and version > branch.version
        if keep < branch.end:
            if rises or branch.announced:
                self._tallies.rewrites += 1
            elif keep >= branch.prompt_end:
                self._tallies.outputs_dropped += 1
            else:
                self._tallies.implicit_rewrites += 1
        if version is not None and rises:
            branch.version = version
        branch.announced = False
        self._ledger.set_context(branch, keep, run, total)
        branch.prompt_end = total

    def heard(self, branch: Branch, now_s: float) -> None:
        """A sign of life."""
        self._tallies.resumed += branch.state is BranchState.SUSPECT
        self._ledger.heard(branch, now_s)

    def fork(self, tenant: str, branch_id: str, parent: str, now_s: float) -> bool:
        """A branch with its parent's context and holders, until its first prompt says more."""
        key = (tenant, branch_id)
        if key in self._ledger.ended:
            self._tallies.ended_branch += 1
            return False
        source = self._ledger.branches.get((tenant, parent))
        if key in self._ledger.branches or source is None:
            self._tallies.unknown_branch += source is None
            self._tallies.duplicate_signal += source is not None
            return False
        child = self._ledger.start(tenant, branch_id, parent, Kind.FORK, now_s)
        self._ledger.set_context(child, 0, source.run, source.end)
        self._ledger.copy_holders(source, child)
        child.prompt_end = source.end
        child.announced = True
        return True

    def rewrite(self, tenant: str, branch_id: str, version: int, now_s: float) -> bool:
        """The next prompt, of that version, drops blocks; which ones, only it can say."""
        branch = self.known(tenant, branch_id)
        if branch is None:
            return False
        if version <= branch.version:
            self._tallies.late_version += version < branch.version
            self._tallies.duplicate_signal += version == branch.version
            return False
        branch.version = version
        branch.announced = True
        self.heard(branch, now_s)
        return True

    def known(self, tenant: str, branch_id: str) -> Branch | None:
        """The branch a signal names, if it lives; counted if not."""
        branch = self._ledger.branches.get((tenant, branch_id))
        if branch is None:
            ended = (tenant, branch_id) in self._ledger.ended
            self._tallies.ended_branch += ended
            self._tallies.unknown_branch += not ended
        return branch

    def mark_silent(self, now_s: float) -> int:
        """Branches that waited longer than their kind may become suspect."""
        marked = 0
        for kind, after_s in self._config.suspect_after_s.items():
            quiet = self._ledger.quiet[Kind(kind)]
            late = takewhile(lambda branch: branch.seen_s + after_s <= now_s, quiet)  # noqa: B023
            for branch in list(late):
                self._ledger.suspect(branch)
                marked += 1
        self._tallies.suspected += marked
        return marked

    def reset_decode(self, node: Node) -> int:
        """A node leaves decode: nobody's D references are there any more. Returns branches."""
        if self._config.relabel:
            self._relabel(node)
        return len(list(self._ledger.forget_node(node, (DECODE,))))

    def _relabel(self, node: Node) -> None:
        """A waiting branch's D reference becomes its P reference where it has none."""
        for branch in [b for b in node.named if not b.open]:
            for start, end, holder in branch.held[DECODE]:
                if holder is node:
                    self._ledger.adopt(branch, PREFILL, start, end, node)
                    self._tallies.relabelled += 1
