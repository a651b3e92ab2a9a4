"""Bounds of fetches."""

from __future__ import annotations

import msgspec


class FetchLimits(msgspec.Struct, frozen=True):
    """deadline_s: after so long a request computes what peers have not sent. answer_s: for one to
    say where its blocks lie. transfer_s: for one batch to be read. batch_blocks: in one batch.
    bytes_in_flight: of all batches together. hold_s: how long a peer keeps blocks in place for
    us; quarantine_s: how long slots rest that a failed read might still write to.
    restore_blocks: L2 -> L1 in one job. at_start: fetch only once a request could begin (to
    compare with)."""

    deadline_s: float = 5.0
    answer_s: float = 2.0
    transfer_s: float = 3.0
    batch_blocks: int = 64
    bytes_in_flight: int = 64 << 20
    hold_s: float = 5.0
    quarantine_s: float = 30.0
    restore_blocks: int = 64
    at_start: bool = False
