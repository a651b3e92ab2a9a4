"""What was dropped, ignored or guessed, counted so that an operator can see it."""

from __future__ import annotations

import msgspec


class Tallies(msgspec.Struct):
    """Counts since the start."""

    stale_boot: int = 0
    """Facts of a life of a node that is not the present one."""
    unknown_node: int = 0
    unknown_tier: int = 0
    malformed: int = 0
    """Keys that are not whole ones."""
    unknown_parent: int = 0
    """KvStored whose parent is nowhere: its blocks were not taken in."""
    unknown_evicted: int = 0
    """Blocks evicted that were not held there."""
    unknown_request: int = 0
    duplicate_request: int = 0
    """Requests that arrived again while under way: changed nothing."""
    late_version: int = 0
    """Requests and signals with a version below the branch's: served, changed no count."""
    ended_branch: int = 0
    """Requests and signals of a branch that has ended: served, changed no count."""
    unknown_branch: int = 0
    duplicate_signal: int = 0
    late_moves: int = 0
    """Moves that ended after a later request's: references stay with the later one."""
    rewrites: int = 0
    implicit_rewrites: int = 0
    """Prompts that dropped blocks of the last prompt without a word."""
    outputs_dropped: int = 0
    """Prompts that left out generated blocks only."""
    relabelled: int = 0
    suspected: int = 0
    resumed: int = 0
    """Suspect branches that came back."""
