"""The split of nodes over the two phases, written 4P5D (paper section 1.2)."""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec

from evctl.core.errors import RefusedError, UsageError


class Phase(StrEnum):
    """The two phases of a request; the label of work, never of a node."""

    PREFILL = "P"
    DECODE = "D"


class Role(StrEnum):
    """Which phase the router sends to a node. An engine has no role: it runs what it is sent."""

    PREFILL = "P"
    DECODE = "D"

    @property
    def phase(self) -> Phase:
        return Phase(self.value)


_PREFILL_FIRST = re.compile(r"(\d{1,6})[pP](\d{1,6})[dD]", re.ASCII)
_DECODE_FIRST = re.compile(r"(\d{1,6})[dD](\d{1,6})[pP]", re.ASCII)


class Split(msgspec.Struct, frozen=True, order=True):
    """How many nodes prefill and how many decode."""

    prefill_nodes: int
    decode_nodes: int

    def __post_init__(self) -> None:
        if self.prefill_nodes < 1 or self.decode_nodes < 1:
            raise RefusedError(
                what=f"split {self} is not possible",
                why="each phase needs at least one node",
                next_step="give a split such as 4P5D",
                code="EV-1101",
            )

    @property
    def nodes(self) -> int:
        return self.prefill_nodes + self.decode_nodes

    def __str__(self) -> str:
        return f"{self.prefill_nodes}P{self.decode_nodes}D"


def example(nodes: int) -> str:
    """A split that so many nodes can have, 4P5D where that says nothing."""
    return f"{nodes - nodes // 2}P{nodes // 2}D" if nodes > 1 else "4P5D"


def parse_split(text: str) -> Split:
    """Parse `4P5D` in any order and case, up to six digits each.

    Raises UsageError (EV-1102) for anything else, RefusedError (EV-1101) where a phase is empty.
    """
    stripped = text.strip()
    if match := _PREFILL_FIRST.fullmatch(stripped):
        return Split(int(match[1]), int(match[2]))
    if match := _DECODE_FIRST.fullmatch(stripped):
        return Split(int(match[2]), int(match[1]))
    raise UsageError(
        what=f"cannot read {text!r} as a split",
        why="a split is a number of prefill nodes and a number of decode nodes",
        next_step="write it as 4P5D",
        code="EV-1102",
    )
