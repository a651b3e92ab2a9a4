"""Lines of the logs: JSON objects of ours, or whatever else a process wrote."""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import msgspec

from evctl.cli.style import painted

LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_COLORS: Final = {"warning": "yellow", "error": "red", "critical": "red", "debug": "dim"}
_KNOWN: Final = frozenset({"time_s", "level", "logger", "message"})


class LogLine(msgspec.Struct, frozen=True):
    """time_s: seconds since the epoch; None, like an empty level, where the line has none."""

    unit: str
    raw: str
    time_s: float | None = None
    level: str = ""
    logger: str = ""
    message: str = ""
    extras: dict[str, Any] = {}

    def values(self) -> dict[str, Any]:
        """As an object; text that was none becomes its message."""
        head = {"unit": self.unit, "time_s": self.time_s, "level": self.level or None}
        return {**head, "logger": self.logger or None, "message": self.message, **self.extras}


def parse_line(unit: str, text: str) -> LogLine:
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        found = None
    if not isinstance(found, dict) or "message" not in found:
        return LogLine(unit, text, message=text)
    time_s = found.get("time_s")
    return LogLine(
        unit,
        text,
        float(time_s) if isinstance(time_s, int | float) else None,
        str(found.get("level", "")).lower(),
        str(found.get("logger", "")),
        str(found["message"]),
        {key: value for key, value in found.items() if key not in _KNOWN},
    )


INDENT: Final = 30
"""Where messages begin, and where they go on below."""


def shown(line: LogLine, stream: TextIO, width: int | None = None) -> str:
    """For people: local time, unit, level, message, the rest as key=value. width: of the
    terminal, to break between words."""
    if line.time_s is None:
        return f"{'':12} {line.unit:<8} {'':7} {_folded(line.message, width)}"
    clock = datetime.fromtimestamp(line.time_s, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    extras = {k: v for k, v in line.extras.items() if v != "" and k != "exception"}
    rest = "".join(f" {key}={_told(value)}" for key, value in extras.items())
    level = f"{line.level:<7}"
    if line.level in _COLORS:
        level = painted(level, _COLORS[line.level], stream)
    text = f"{clock:<12} {line.unit:<8} {level} {_folded(f'{line.message}{rest}', width)}"
    return f"{text}\n{line.extras['exception']}" if line.extras.get("exception") else text


def _folded(text: str, width: int | None) -> str:
    """In as many lines as it takes, where each has room for some words."""
    if width is None or width < INDENT + 20 or len(text) <= width - INDENT:
        return text
    parts = textwrap.wrap(text, width - INDENT, break_long_words=False, break_on_hyphens=False)
    return f"\n{' ' * INDENT}".join(parts)


def _told(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if text and " " not in text else f'"{text}"'
