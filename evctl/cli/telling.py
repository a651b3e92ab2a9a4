"""What a long command is at, on stderr."""

from __future__ import annotations

import sys


class Telling:
    """Called with a few words; in a terminal they are always on the same line."""

    def __init__(self) -> None:
        self._moving = sys.stderr.isatty()

    def __call__(self, what: str) -> None:
        sys.stderr.write(f"\r\x1b[2K{what}" if self._moving else f"{what}\n")
        sys.stderr.flush()
