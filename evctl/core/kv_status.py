"""What the KV directory looks like from outside: values of the admin API, the CLI and the TUI.

Keys of blocks are hexadecimal here (32 characters). A phase is P or D. A branch is named by its
tenant and its id, and a child is one whose first request named the other as its parent.
"""

from __future__ import annotations

from typing import Final

import msgspec

STATES: Final = ("live", "suspect")
"""Of branches that can be listed: an ended one is remembered by its id only."""
KINDS: Final = ("root", "fork", "sub-agent")
SORTS: Final = ("name", "blocks", "silent")

CLASSES: Final = ("unreferenced", "suspect", "live")
"""Reference classes of a copy by number; a leased one is live."""

REFERENCE_BUCKETS: Final = ("0", "1", "2", "3-4", "5-8", "9+")
"""How many references of live branches a copy has."""


def reference_bucket(references: int) -> int:
    """Index into REFERENCE_BUCKETS."""
    if references <= 2:
        return references
    return 3 if references <= 4 else 4 if references <= 8 else 5


class KvStatus(msgspec.Struct, frozen=True):
    """The directory in a few figures; part of ClusterStatus.

    copies: (block, node) pairs, whatever the tiers. live, suspect, ended: branches; the last are
    those whose ids are remembered, so the number stops at a bound. references: copies by
    REFERENCE_BUCKETS, () until first counted; counted references_age_s ago, because counting
    them costs time in proportion to the tree.
    """

    copies: int
    tree_blocks: int
    live: int
    suspect: int
    ended: int
    references: tuple[int, ...] = ()
    references_age_s: float = 0.0


class BranchRow(msgspec.Struct, frozen=True):
    """One line of a list of branches. blocks: of its context. silent_s: since its last sign of
    life. holders: phase -> node -> blocks, whether or not a copy is there.

    In a tree there may be rows of branches that ended (state "ended") or were never heard of
    ("unknown"): of these only the name is known.
    """

    tenant: str
    branch: str
    parent: str
    kind: str
    state: str
    version: int
    blocks: int
    open_requests: int
    silent_s: float
    holders: dict[str, dict[str, int]] = {}


class BranchPlace(msgspec.Struct, frozen=True, order=True):
    """Where a branch stands in the order of a list; the next page begins after it. figure: by
    which the list is sorted, 0 where that is the name."""

    figure: float
    tenant: str
    branch: str


class BranchPage(msgspec.Struct, frozen=True):
    """Branches in the order asked for. next: the last one's place, None when no others follow.
    matching: all that the filters let pass; total: all there are."""

    branches: tuple[BranchRow, ...]
    next: BranchPlace | None
    matching: int
    total: int


class HeldInterval(msgspec.Struct, frozen=True):
    """Blocks start..end of a context (end not included) that a branch holds at a node.
    verified: of those, how many the node has reported stored."""

    start: int
    end: int
    node: str
    verified: int


class BranchDetail(msgspec.Struct, frozen=True):
    """A branch with its intervals by phase and its children, the first of them by name.

    tip: key of the last block of its context, "" without one.
    """

    row: BranchRow
    tip: str
    intervals: dict[str, tuple[HeldInterval, ...]]
    children: tuple[str, ...] = ()
    children_total: int = 0


class TreeRow(msgspec.Struct, frozen=True):
    """A branch in a tree. depth: below the topmost row."""

    depth: int
    row: BranchRow


class BranchTree(msgspec.Struct, frozen=True):
    """Ancestors of a branch, itself and its descendants, each under its parent. left_out:
    descendants that did not fit."""

    tenant: str
    branch: str
    rows: tuple[TreeRow, ...]
    left_out: int = 0


class BranchEnd(msgspec.Struct, frozen=True):
    """What an end did. reason: why it changed nothing, "" when it was applied."""

    tenant: str
    branch: str
    applied: bool
    reason: str = ""


class BlockCopy(msgspec.Struct, frozen=True):
    """A block on a node: the tiers that hold it, its class, and what refers to it. by_phase:
    references by phase, of live and suspect branches together."""

    node: str
    tiers: tuple[int, ...]
    block_class: int
    live: int
    suspect: int
    leases: int
    by_phase: dict[str, int]


class BranchName(msgspec.Struct, frozen=True, order=True):
    """A branch, by its two names."""

    tenant: str
    branch: str


class KvBlock(msgspec.Struct, frozen=True):
    """A block: where it lies on its path (the first one is 1), the nodes that hold it, branches
    whose context it is in (the first of them by name), requests that promise it."""

    key: str
    position: int
    copies: tuple[BlockCopy, ...]
    branches: tuple[BranchName, ...]
    branches_total: int
    promised_by: tuple[str, ...]


class NodeBlocks(msgspec.Struct, frozen=True):
    """Blocks of a node: by class (0, 1, 2; each once, whatever the tiers) and by tier."""

    node: str
    classes: tuple[int, int, int]
    l1: int
    l2: int


class KvSummary(msgspec.Struct, frozen=True):
    """Sizes of the tree, references, blocks by node, and what was dropped or ignored so far."""

    status: KvStatus
    runs: int
    requests: int
    nodes: tuple[NodeBlocks, ...]
    tallies: dict[str, int]


class KvCheck(msgspec.Struct, frozen=True):
    """An audit of every count. found: all problems, of which the first are in `problems`.
    seconds: how long the audit took; paused_s: how long nothing else was done for it."""

    problems: tuple[str, ...]
    found: int
    branches: int
    requests: int
    runs: int
    blocks: int
    copies: int
    seconds: float
    paused_s: float

    @property
    def clean(self) -> bool:
        return self.found == 0
