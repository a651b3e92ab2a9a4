"""Identifiers. Each is text, compared exactly, never by prefix."""

from __future__ import annotations

from typing import NewType

ClusterId = NewType("ClusterId", str)
NodeId = NewType("NodeId", str)
BootId = NewType("BootId", str)
"""One life of a node's process; a restart gets a new one, and with it loses every KV block."""
TenantId = NewType("TenantId", str)
BranchId = NewType("BranchId", str)
"""Unique only together with its tenant."""
RequestId = NewType("RequestId", str)

MAX_ID_CHARS = 256


def check_id(value: str, kind: str) -> str:
    """Return `value` if it is usable as an identifier, else raise ValueError naming `kind`."""
    if not value or len(value) > MAX_ID_CHARS or not value.isprintable():
        shown = value if len(value) <= 40 else value[:40] + "…"
        raise ValueError(f"{kind} must be 1-{MAX_ID_CHARS} printable characters, not {shown!r}")
    return value
