"""Colour, where it is wanted and the terminal can show it. No meaning rests on colour alone."""

from __future__ import annotations

import os
from typing import Final, TextIO

_CODES: Final = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "bold": "1", "dim": "2"}

_choice: str | None = None


def choose(color: str | None) -> None:
    """The --color flag of this run."""
    global _choice
    _choice = color


def wants_color(stream: TextIO) -> bool:
    """Flag, then NO_COLOR and TERM=dumb, then EVCTL_COLOR and files; auto means a terminal."""
    if _choice in ("always", "never"):
        return _choice == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    if not stream.isatty():
        return os.environ.get("EVCTL_COLOR") == "always"
    from evctl.config.settings import load_settings
    from evctl.core.errors import ConfigError

    try:
        return load_settings().color.value != "never"
    except ConfigError:
        return True  # told by the command that needs the settings


def painted(text: str, color: str, stream: TextIO) -> str:
    return f"\x1b[{_CODES[color]}m{text}\x1b[0m" if wants_color(stream) else text


STATE_COLORS: Final = {"ok": "green", "late": "yellow", "lost": "red", "failed": "red"}


def painted_state(padded: str, stream: TextIO) -> str:
    """A status word, possibly padded, in its colour."""
    color = STATE_COLORS.get(padded.strip())
    return painted(padded, color, stream) if color else padded
