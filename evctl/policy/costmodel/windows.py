"""What a node did, summed over windows: the rows that Eq. 1 and 2 are fitted to.

The equations are linear, so they hold for sums over any iterations that are chosen by what they
were given, never by how long they took. Iterations of one window are therefore kept apart by their
size: a window's mean would hide the spread that tells fixed costs from proportional ones.
"""

from __future__ import annotations

from collections import deque

import msgspec

from evctl.core.events import IterationSample
from evctl.core.split import Phase

WINDOW_S = 5.0
MAX_ROWS = 8_192
"""Kept of one node; the oldest go first."""

Class = tuple[Phase, int, int, bool]


class WindowRow(msgspec.Struct, frozen=True):
    """Sums over the iterations of one kind and about one size in one window.

    start_s: of the window, on the reducer's clock. busy_s: what they took. Prefill: new tokens,
    query-key pairs, restored tokens. Decode: `batch` requests in each, so that phi(B) of any t_fwd
    can be summed later, and as pairs the tokens of context.
    """

    start_s: float
    phase: Phase
    iterations: int
    busy_s: float
    tokens: int = 0
    pairs: float = 0.0
    restored: int = 0
    batch: int = 0


class Windows:
    """Rows of one node. Mixed iterations are counted and left out: they share the fixed cost of
    both kinds, and nothing tells whose it was."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self.mixed = 0
        self.closed: deque[WindowRow] = deque(maxlen=MAX_ROWS)
        """Whole windows, oldest first."""
        self._window_s = window_s
        self._start_s: float | None = None
        self._open: dict[Class, WindowRow] = {}

    def observe(self, now_s: float, sample: IterationSample) -> tuple[WindowRow, ...]:
        """Count an iteration in; returns the window that ended before it, if one did."""
        ended: tuple[WindowRow, ...] = ()
        if self._start_s is None or now_s >= self._start_s + self._window_s:
            ended = self.close()
            self._start_s = now_s
        if sample.busy_s <= 0.0 or not (sample.prefill_tokens or sample.decode_requests):
            return ended
        if sample.prefill_tokens and sample.decode_requests:
            self.mixed += 1
            return ended
        row = _row(self._start_s, sample)
        key = size_class(row)
        known = self._open.get(key)
        self._open[key] = row if known is None else added(known, row)
        return ended

    def close(self) -> tuple[WindowRow, ...]:
        """End the present window now; returns its rows."""
        ended = tuple(self._open[key] for key in sorted(self._open))
        self.closed.extend(ended)
        self._open.clear()
        self._start_s = None
        return ended

    def forget(self, before_s: float = float("inf"), but: frozenset[Phase] = frozenset()) -> None:
        """Drop what was summed, of windows that began before then, but for some phases."""
        kept = [row for row in self.closed if row.start_s >= before_s or row.phase in but]
        self.closed.clear()
        self.closed.extend(kept)


def size_class(row: WindowRow) -> Class:
    """What is summed together: powers of two of what one iteration was given, decode batches of
    one size."""
    pairs = int(row.pairs / row.iterations).bit_length()
    if row.phase is Phase.DECODE:
        return (row.phase, row.batch, pairs, False)
    tokens = int(row.tokens / row.iterations).bit_length()
    return (row.phase, tokens, pairs, row.restored > 0)


def added(a: WindowRow, b: WindowRow) -> WindowRow:
    """Both rows' iterations, of one class; the window is a's."""
    return WindowRow(
        start_s=a.start_s,
        phase=a.phase,
        iterations=a.iterations + b.iterations,
        busy_s=a.busy_s + b.busy_s,
        tokens=a.tokens + b.tokens,
        pairs=a.pairs + b.pairs,
        restored=a.restored + b.restored,
        batch=a.batch,
    )


def _row(start_s: float, sample: IterationSample) -> WindowRow:
    return WindowRow(
        start_s=start_s,
        phase=Phase.DECODE if sample.decode_requests else Phase.PREFILL,
        iterations=1,
        busy_s=sample.busy_s,
        tokens=sample.prefill_tokens,
        pairs=sample.attention_pairs,
        restored=sample.restored_tokens if not sample.decode_requests else 0,
        batch=sample.decode_requests,
    )
