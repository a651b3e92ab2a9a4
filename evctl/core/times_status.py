"""What is known of a node's times, as seen from outside."""

from __future__ import annotations

import msgspec


class IterationError(msgspec.Struct, frozen=True):
    """Iterations of one kind (prefill, decode, mixed) since the model is in force. errors: sum of
    |predicted - measured| / measured."""

    kind: str
    iterations: int
    errors: float

    @property
    def mean(self) -> float:
        return self.errors / self.iterations if self.iterations else 0.0


class NodeTimes(msgspec.Struct, frozen=True):
    """Of one node. source: "prior" while nothing is learned, "fitted", "kept" from an earlier
    life, "borrowed" where terms of a phase (prefill, decode) are those of the node like it that
    `borrowed` names; itself, if they are of the engine that it was before. warming: it works for
    both phases until it is. waits_for: what the last try lacked.

    coefficients: seconds a unit by term (c0 .. d3); errors: their standard errors, null where the
    data cannot tell (`unidentified` names the term). windows: fitted ones, prefill and decode.
    residual: median error over them, null without any. off: predicted over measured busy time of
    the last window, minus 1. tokens_per_iteration: m; restored_share: of cached tokens, those from
    host memory.
    """

    node: str
    source: str
    warming: bool = False
    waits_for: str = ""
    tokens_per_iteration: float = 0.0
    restored_share: float = 0.0
    coefficients: dict[str, float] = {}
    errors: dict[str, float | None] = {}
    unidentified: tuple[str, ...] = ()
    windows: tuple[int, int] = (0, 0)
    residual: float | None = None
    borrowed: dict[str, str] = {}
    off: float | None = None
    iterations: tuple[IterationError, ...] = ()
