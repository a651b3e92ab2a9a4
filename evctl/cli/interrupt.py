"""Ctrl-C in a command of several steps: once to stop after this step, twice to stop now."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any


class GentleInterrupt:
    """As a context: `asked` turns true at the first SIGINT, and `said` is printed. The second one
    raises KeyboardInterrupt, or does the same as the first where `said_again` is given."""

    def __init__(
        self,
        said: str = "stopping after this step; Ctrl-C again stops now",
        said_again: str | None = None,
    ) -> None:
        self.asked = False
        self._said = said
        self._said_again = said_again
        self._before: Any = None

    def __enter__(self) -> GentleInterrupt:
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Who asked is told what became of it, however often they press: the process ends anyway.
        told = self.asked and self._said_again is not None
        signal.signal(signal.SIGINT, signal.SIG_IGN if told else self._before)

    def __call__(self) -> bool:
        return self.asked

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.asked and self._said_again is None:
            raise KeyboardInterrupt
        said = self._said_again if self.asked else self._said
        self.asked = True
        try:
            sys.stderr.write(f"\n{said}\n")
            sys.stderr.flush()
        except RuntimeError:  # it came in the middle of another write
            os.write(2, f"\n{said}\n".encode())
