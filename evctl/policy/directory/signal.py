"""What a request says about its branch, and the switches of the directory."""

from __future__ import annotations

import msgspec

from evctl.core.branches import BranchSignal

Signal = BranchSignal
"""session and expect_resume_s are for others; the directory does not look at them."""


class DirectoryConfig(msgspec.Struct, frozen=True):
    """Switches of the plus mode, all off as in the paper, and bounds.

    relabel: a node that goes from decode to prefill keeps a waiting branch's only reference.
    suspect_after_s: seconds of silence by kind of branch (root, fork, sub-agent); a kind left
    out is never suspect. tombstones: ended branches that are remembered.
    """

    relabel: bool = False
    suspect_after_s: dict[str, float] = {}
    tombstones: int = 65_536
