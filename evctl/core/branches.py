"""What a client says about the branch that a request belongs to (design, section 8)."""

from __future__ import annotations

import msgspec


class BranchSignal(msgspec.Struct, frozen=True):
    """op: continue, fork, spawn or compact. kind: main, subagent, compaction or auxiliary.
    version rises when the context was rewritten; None: nothing is said of it. final: the last
    request of the branch. expect_resume_s: when the branch comes back.
    """

    branch: str
    session: str = ""
    parent: str = ""
    op: str = "continue"
    version: int | None = None
    final: bool = False
    expect_resume_s: float | None = None
    kind: str = "main"
