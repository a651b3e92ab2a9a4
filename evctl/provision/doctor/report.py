"""What the doctor says."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec


class Level(StrEnum):
    """OK and INFO need no action; INFO is a value without a judgement. FAIL: the cluster will not
    start, or strangers can get at what it holds."""

    OK = "ok"
    INFO = "info"
    WARN = "warn"
    FAIL = "fail"


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at. name: stable, for scripts. why: why it matters. next_step and
    lines (to paste or to load): what to do about it, empty where there is nothing to do."""

    name: str
    level: Level
    found: str
    why: str
    next_step: str = ""
    lines: tuple[str, ...] = ()


def counts(checks: Sequence[Check]) -> dict[str, int]:
    """How many checks have each level, worst last."""
    return {level.value: sum(check.level is level for check in checks) for level in Level}


def passed(checks: Sequence[Check]) -> bool:
    return all(check.level is not Level.FAIL for check in checks)


_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


def told_bytes(size_bytes: int) -> str:
    """`1.50 GiB`, `24.0 MiB`."""
    if size_bytes < _GIB:
        return f"{size_bytes / _MIB:.1f} MiB"
    return f"{size_bytes / _GIB:.2f} GiB"
